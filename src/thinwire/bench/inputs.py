"""What kernels are measured on: vectors, ordinary and adversarial, and layouts of one and of many pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from thinwire import Layout
from thinwire.compressors.density import kept

PIECES = 300
Draw = Callable[[int, torch.Generator], Tensor]


@dataclass(frozen=True)
class Inputs:
    """Two vectors of one layout, and the share of their numbers that is kept."""

    first: Tensor
    second: Tensor
    layout: Layout
    density: float

    @property
    def counts(self) -> list[int]:
        """How many numbers of each piece are kept."""
        return [kept(piece.numel, self.density, None) for piece in self.layout.pieces]

    @property
    def tau(self) -> float:
        """The magnitude that just this share of the sum of both vectors reaches."""
        k = kept(self.layout.numel, self.density, None)
        return float((self.first + self.second).abs().topk(k, sorted=False).values.min())


def draw_inputs(distribution: str, layout: Layout, density: float, device: torch.device) -> Inputs:
    """Two vectors of a distribution, the same ones each time."""
    first, second = (draw(distribution, layout.numel, seed, device) for seed in (0, 1))
    return Inputs(first, second, layout, density)


def draw(distribution: str, numel: int, seed: int, device: torch.device) -> Tensor:
    """A float32 vector of a distribution."""
    return DISTRIBUTIONS[distribution](numel, torch.Generator(device).manual_seed(seed))


def _normal(numel: int, generator: torch.Generator) -> Tensor:
    return torch.randn(numel, generator=generator, device=generator.device)


def _laplace(numel: int, generator: torch.Generator) -> Tensor:
    """The difference of two exponential variables."""
    one, other = (torch.empty(numel, device=generator.device).exponential_(generator=generator) for _ in range(2))
    return one - other


def _cauchy(numel: int, generator: torch.Generator) -> Tensor:
    return torch.empty(numel, device=generator.device).cauchy_(generator=generator)


def _one_huge(numel: int, generator: torch.Generator) -> Tensor:
    x = _normal(numel, generator)
    x[numel // 2] = 1e30
    return x


def _some_infinite(numel: int, generator: torch.Generator) -> Tensor:
    """One number in 1,000 is infinite. The sign goes by the place, so that no sum of two such vectors is NaN."""
    x = _normal(numel, generator)
    chosen = torch.rand(numel, generator=generator, device=generator.device) < 1e-3
    even = torch.arange(numel, device=generator.device) % 2 == 0
    return torch.where(chosen, torch.where(even, torch.inf, -torch.inf), x)


ORDINARY: dict[str, Draw] = {"normal": _normal, "laplace": _laplace}
ADVERSARIAL: dict[str, Draw] = {
    "all equal": lambda numel, generator: torch.ones(numel, device=generator.device),
    "all zero": lambda numel, generator: torch.zeros(numel, device=generator.device),
    "one huge": _one_huge,
    "sorted": lambda numel, generator: _normal(numel, generator).sort().values,
    "cauchy": _cauchy,  # tails so heavy that there is no mean
    "denormal": lambda numel, generator: _normal(numel, generator) * 2.0**-131,
    "some infinite": _some_infinite,
}
DISTRIBUTIONS = ORDINARY | ADVERSARIAL


def one_piece(numel: int) -> Layout:
    """The whole vector as one piece."""
    return Layout.of([("x", 0, (numel,))])


def many_pieces(numel: int) -> Layout:
    """300 pieces from 10 numbers to a fifth of the whole, as the layers of a network are."""
    sizes = np.geomspace(10, numel / 5, PIECES)
    sizes = np.maximum(1, sizes * (numel / sizes.sum())).astype(int)
    return Layout.of([(str(i), i, (int(size),)) for i, size in enumerate(sizes)])

"""EF21 with workers weighted by how smooth their functions are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import fsum, inf
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.checks import is_number
from thinwire.compressors import Compressor
from thinwire.errors import AttachError, ConfigError
from thinwire.feedback.base import Round, Signal, State
from thinwire.feedback.increments import Increments, check_rule
from thinwire.layout import Layout
from thinwire.ops import Key, piece_indices
from thinwire.payload import Payload, add_all_to


@dataclass(frozen=True)
class EF21W(Increments):
    """EF21-W (Richtarik, Gasanov and Burlachenko 2024, "Error Feedback Reloaded", algorithm 2).

        w_i = L_i / sum_j L_j;   c_i = C(grad_i / (n w_i) - g_i)
        g_i <- g_i + c_i;   g <- g + sum_i w_i c_i;   out = g

    `smoothness` holds L_i for each worker, in rank order. Every f_i / (n w_i) is then as smooth as their mean. For a
    positively homogeneous C such as top-k the trajectory is EF21's, up to rounding.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> rule = EF21W(TopK(count=1), (0.75, 0.25), start="compressed")
    >>> simulation = Simulation({"x": torch.zeros(3)}, rule, workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(3)]
    [[2.0, 0.0, 1.5], [3.0, 1.0, 1.5], [3.0, 1.0, 2.0]]
    """

    compressor: Compressor
    smoothness: tuple[float, ...]
    start: str = "gradient"
    name: ClassVar[str] = "ef21w"
    piecewise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rule(self, self.start)
        numbers = isinstance(self.smoothness, tuple) and all(is_number(L) and 0 < L < inf for L in self.smoothness)
        if not (numbers and self.smoothness):
            raise ConfigError(
                f"{self.name} smoothness must hold a positive number for each worker, such as (1.0, 2.5), "
                f"got {self.smoothness!r}"
            )

    def admit_workers(self, workers: int) -> None:
        if workers != len(self.smoothness):
            raise AttachError(
                f"{self.name} has the smoothness of {len(self.smoothness)} workers, this run has {workers}: give one "
                "number for each worker, in rank order"
            )

    @cached_property
    def _total(self) -> float:
        return fsum(self.smoothness)

    def share(self, worker: int, workers: int) -> float:
        return self.smoothness[worker] / self._total

    @cached_property
    def _shares(self) -> tuple[float, ...]:
        return tuple(self.share(worker, len(self.smoothness)) for worker in range(len(self.smoothness)))

    @cached_property
    def _scales(self) -> tuple[float, ...]:
        """1 / (n w_i)"""
        return tuple(self._total / (len(self.smoothness) * own) for own in self.smoothness)

    def target_(self, signal: Signal, layout: Layout, state: State, key: Key) -> Tensor:
        """grad_i / (n w_i), each piece by its own worker."""
        owners: list[int] = key.owners(piece_indices(layout)).tolist()
        return _times_each(signal.value, [self._scales[worker] for worker in owners], layout)

    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        return self.follow_(target, layout, state, key)

    def add_(self, round: Round, mean: Tensor) -> Tensor:
        """g <- g + sum_i w_i c_i, in place."""
        return add_all_to(mean, round.payloads, self._shares)


def _times_each(x: Tensor, factors: list[float], layout: Layout) -> Tensor:
    """x with each piece multiplied by its factor."""
    if len(set(factors)) == 1:
        return x * factors[0]
    column, numels = torch.tensor(factors, dtype=x.dtype), _numels(layout)
    if isinstance(numels, int):
        return (x.view(-1, numels) * column.unsqueeze(1)).view(-1)
    return x * column.repeat_interleave(numels)


@lru_cache(maxsize=64)
def _numels(layout: Layout) -> int | Tensor:
    """The size that all pieces have, or that of each."""
    numels = [piece.numel for piece in layout.pieces]
    return numels[0] if len(set(numels)) == 1 and numels[0] else torch.tensor(numels, dtype=torch.int64)

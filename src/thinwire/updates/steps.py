"""Steps of the outer loop: plain, of one length, or of one spectral norm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from thinwire.checks import is_number
from thinwire.errors import ConfigError
from thinwire.named import Named


class Update(Named, ABC):
    """One step from x along g, in place."""

    proportional: ClassVar[bool] = False
    """Whether a step is as long as g is large, so that what was saved up over several steps moves x as far in one."""

    @abstractmethod
    def __call__(self, x: Mapping[str, Tensor], g: Mapping[str, Tensor], size: float) -> None:
        """Move the parameters that g names; the others stay."""


@dataclass(frozen=True)
class Descent(Update):
    """x <- x - s g."""

    name: ClassVar[str] = "descent"
    proportional: ClassVar[bool] = True

    @torch.no_grad()
    def __call__(self, x: Mapping[str, Tensor], g: Mapping[str, Tensor], size: float) -> None:
        for name, gradient in g.items():
            x[name].sub_(gradient, alpha=size)


@dataclass(frozen=True)
class Normalised(Update):
    """x <- x - s g / |g|, the norm over all parameters together; no step where g = 0.

    With EF21's g this is |EF21| (Khirirat et al. 2024, "Error Feedback under (L0, L1)-Smoothness: Normalization and
    Momentum"): s = s_0 / sqrt(K + 1) for K rounds needs no smoothness constant. With EF21-SGDM's it is |EF21-SGDM|.
    """

    name: ClassVar[str] = "normalised"

    @torch.no_grad()
    def __call__(self, x: Mapping[str, Tensor], g: Mapping[str, Tensor], size: float) -> None:
        length = sum(float(gradient.double().square().sum()) for gradient in g.values()) ** 0.5
        if length > 0:
            for name, gradient in g.items():
                x[name].sub_(gradient, alpha=size / length)


@dataclass(frozen=True)
class Muon(Update):
    """X <- X + s LMO(G), LMO(G) = argmin <G, Z> over |Z| <= 1, for each parameter by itself.

    For matrices |.| is the spectral norm and LMO(G) = -U V' for G = U S V' (dimensions after the first are taken
    together); for vectors it is the largest magnitude and LMO(g) = -sign(g). With the result of
    `ef21p(ef21sgdm(C, eta=beta), C_s)` this is EF21-Muon (Gruntkowska, Gaponov, Tovmasyan and Richtarik 2025), whose
    gradients are compressed before the LMO; to compress what comes out of it may fail at any step size.

    U V' is taken from the singular value decomposition. `NewtonSchulz` only comes near it, and is far faster on a GPU.
    """

    name: ClassVar[str] = "muon"

    @torch.no_grad()
    def __call__(self, x: Mapping[str, Tensor], g: Mapping[str, Tensor], size: float) -> None:
        for name, gradient in g.items():
            x[name].sub_(direction(gradient), alpha=size)


def direction(gradient: Tensor) -> Tensor:
    """-LMO(G): U V' of a matrix, the signs of a vector. Singular values that are zero count for nothing."""
    if gradient.ndim < 2 or not gradient.numel():
        return gradient.sign()
    matrix = gradient.flatten(1).to(torch.promote_types(gradient.dtype, torch.float32))
    U, S, V = torch.linalg.svd(matrix, full_matrices=False)
    known = S > S.max() * S.numel() * torch.finfo(S.dtype).eps
    polar: Tensor = (U * known) @ V
    return polar.to(gradient.dtype).view(gradient.shape)


class Regulariser(Protocol):
    """A convex function r of all parameters whose proximal map is known."""

    def value(self, x: Mapping[str, Tensor]) -> float:
        """r(x)"""

    def prox_(self, x: Tensor, size: float) -> Tensor:
        """argmin_y r(y) + |y - x|^2 / (2 size), in place; r is the sum of its values on each tensor."""


@dataclass(frozen=True)
class Proximal(Update):
    """x <- prox_{s r}(x - s g): with EF21's g this is EF21-Prox (Fatkhullin et al. 2021) for min f + r.

    Stationary points are those where the gradient mapping (x - prox_{s r}(x - s grad f(x))) / s is zero.
    """

    regulariser: Regulariser
    name: ClassVar[str] = "proximal"
    proportional: ClassVar[bool] = True

    @torch.no_grad()
    def __call__(self, x: Mapping[str, Tensor], g: Mapping[str, Tensor], size: float) -> None:
        for name, gradient in g.items():
            self.regulariser.prox_(x[name].sub_(gradient, alpha=size), size)

    @torch.no_grad()
    def mapping(self, x: Tensor, gradient: Tensor, size: float) -> Tensor:
        """(x - prox_{s r}(x - s grad)) / s, which is zero at stationary points of f + r."""
        return (x - self.regulariser.prox_(x - size * gradient, size)) / size


@dataclass(frozen=True)
class L1(Named):
    """r(x) = weight |x|_1; its proximal map is the soft threshold."""

    weight: float
    name: ClassVar[str] = "l1"

    def __post_init__(self) -> None:
        if not (is_number(self.weight) and 0 <= self.weight < inf):
            raise ConfigError(f"l1 weight must be at least 0, got {self.weight}")

    def value(self, x: Mapping[str, Tensor]) -> float:
        return self.weight * sum(float(tensor.abs().sum()) for tensor in x.values())

    def prox_(self, x: Tensor, size: float) -> Tensor:
        """sign(x) max(|x| - s weight, 0)"""
        return x.copy_(torch.nn.functional.softshrink(x, size * self.weight))


@dataclass(frozen=True)
class Box(Named):
    """r(x) = 0 where low <= x <= high for every coordinate, infinity elsewhere; its proximal map is the projection."""

    low: float
    high: float
    name: ClassVar[str] = "box"
    positional: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not (is_number(self.low) and is_number(self.high) and self.low <= self.high):
            raise ConfigError(f"box needs low <= high, got {self.low} and {self.high}")

    def value(self, x: Mapping[str, Tensor]) -> float:
        inside = all(bool(((self.low <= t) & (t <= self.high)).all()) for t in x.values())
        return 0.0 if inside else inf

    def prox_(self, x: Tensor, size: float) -> Tensor:
        return x.clamp_(self.low, self.high)

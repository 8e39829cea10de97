"""A step followed by the proximal map of a regulariser that need not be smooth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from thinwire.checks import is_number
from thinwire.errors import ConfigError
from thinwire.named import Named
from thinwire.updates.steps import Update


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

"""A step of the outer loop, and the regulariser that one of them takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from thinwire.named import Named


class Update(Named, ABC):
    """One step from x along g, in place."""

    @abstractmethod
    def __call__(self, x: Mapping[str, Tensor], g: Mapping[str, Tensor], size: float) -> None:
        """Move the parameters that g names; the others stay."""


class Regulariser(Protocol):
    """A convex function r of all parameters whose proximal map is known."""

    def value(self, x: Mapping[str, Tensor]) -> float:
        """r(x)"""

    def prox_(self, x: Tensor, size: float) -> Tensor:
        """argmin_y r(y) + |y - x|^2 / (2 size), in place; r is the sum of its values on each tensor."""

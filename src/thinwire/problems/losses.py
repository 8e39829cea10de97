"""Losses of a linear model's predictions z = ⟨a, x⟩, each with the curvature that smoothness constants need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from thinwire.errors import DataError


class Loss(Protocol):
    """ℓ(z, y), element by element."""

    curvature: ClassVar[float]
    """The largest second derivative in z."""
    convexity: ClassVar[float]
    """The smallest one."""

    def check(self, targets: Any) -> None:
        """Refuse targets for which the loss is not made."""

    def value(self, predictions: Any, targets: Any) -> Any:
        """ℓ(z, y)."""

    def derivative(self, predictions: Any, targets: Any) -> Any:
        """∂ℓ/∂z."""


@dataclass(frozen=True)
class LogisticLoss:
    """ℓ(z, y) = log(1 + exp(−yz)) for y = ±1."""

    curvature: ClassVar[float] = 0.25
    convexity: ClassVar[float] = 0.0

    def check(self, targets: Any) -> None:
        _check(targets, np.abs(targets) == 1, "the logistic loss takes −1 and +1: write the two classes so")

    def value(self, predictions: Any, targets: Any) -> Any:
        return np.logaddexp(0.0, -targets * predictions)

    def derivative(self, predictions: Any, targets: Any) -> Any:
        """−y/(1 + exp(yz)) = (tanh(z/2) − y)/2, which neither overflows nor needs a logistic function."""
        slopes = np.multiply(predictions, 0.5)
        np.tanh(slopes, out=slopes)
        slopes -= targets
        slopes *= 0.5
        return slopes


@dataclass(frozen=True)
class SquaredLoss:
    """ℓ(z, y) = (z − y)²/2.

    The EF21 paper prints (z − y)², but steps along this one's gradient and takes this one's L = λ_max(AᵀA)/N.
    """

    curvature: ClassVar[float] = 1.0
    convexity: ClassVar[float] = 1.0

    def check(self, targets: Any) -> None:
        _check(targets, np.isfinite(targets), "the squared loss takes finite numbers")

    def value(self, predictions: Any, targets: Any) -> Any:
        return 0.5 * np.square(predictions - targets)

    def derivative(self, predictions: Any, targets: Any) -> Any:
        return predictions - targets


def _check(targets: Any, good: Any, bound: str) -> None:
    if not good.all():
        place = int(np.flatnonzero(~good)[0])
        raise DataError(f"target {place} is {targets[place]:g}, but {bound}")

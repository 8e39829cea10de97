"""The two terms of an objective: losses of predictions z = ⟨a, x⟩, and regularisers r(x), which all workers share.

Each tells the curvature that smoothness constants need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from thinwire.errors import ConfigError, DataError


class SampleLoss(Protocol):
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
        _check_targets(targets, np.abs(targets) == 1, "the logistic loss takes −1 and +1: write the two classes so")

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
        _check_targets(targets, np.isfinite(targets), "the squared loss takes finite numbers")

    def value(self, predictions: Any, targets: Any) -> Any:
        return 0.5 * np.square(predictions - targets)

    def derivative(self, predictions: Any, targets: Any) -> Any:
        return predictions - targets


def _check_targets(targets: Any, good: Any, bound: str) -> None:
    if not good.all():
        place = int(np.flatnonzero(~good)[0])
        raise DataError(f"target {place} is {targets[place]:g}, but {bound}")


class Penalty(Protocol):
    """r(x) and what theory needs of it."""

    @property
    def smoothness(self) -> float:
        """The largest curvature of r in size."""

    @property
    def convexity(self) -> float | None:
        """r's strong convexity, 0 for none; None where r is not convex."""

    def value(self, x: Any) -> float:
        """r(x)."""

    def gradient(self, x: Any) -> Any:
        """∇r(x)."""


@dataclass(frozen=True)
class Nonconvex:
    """r(x) = λ Σ x²/(1 + x²), with ∇r(x) = 2λx/(1 + x²)² and |r″| ≤ 2λ."""

    strength: float = 0.1

    def __post_init__(self) -> None:
        _check_strength(self.strength)

    @property
    def smoothness(self) -> float:
        return 2 * self.strength

    @property
    def convexity(self) -> float | None:
        return None if self.strength else 0.0

    def value(self, x: Any) -> float:
        squares = np.square(x)
        return float(self.strength * (squares / (1 + squares)).sum())

    def gradient(self, x: Any) -> Any:
        return 2 * self.strength * x / np.square(1 + np.square(x))


@dataclass(frozen=True)
class L2:
    """r(x) = λ/2 ‖x‖², λ-strongly convex; λ = 0 is no regulariser."""

    strength: float

    def __post_init__(self) -> None:
        _check_strength(self.strength)

    @property
    def smoothness(self) -> float:
        return self.strength

    @property
    def convexity(self) -> float | None:
        return self.strength

    def value(self, x: Any) -> float:
        return float(0.5 * self.strength * (x @ x))

    def gradient(self, x: Any) -> Any:
        return self.strength * x


def _check_strength(strength: float) -> None:
    if not (np.isfinite(strength) and strength >= 0):
        raise ConfigError(f"a regulariser's strength must be a finite number of at least 0, got {strength}")

"""Regularisers r(x), which all workers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from thinwire.errors import ConfigError


class Regulariser(Protocol):
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
        _check(self.strength)

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
        _check(self.strength)

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


def _check(strength: float) -> None:
    if not (np.isfinite(strength) and strength >= 0):
        raise ConfigError(f"a regulariser's strength must be a finite number of at least 0, got {strength}")

"""The distortion recursion E Gᵗ⁺¹ ≤ (1 − θ) Gᵗ + β L̃² ‖xᵗ⁺¹ − xᵗ‖², from which every EF21 step size follows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from thinwire.errors import ConfigError


@dataclass(frozen=True)
class Recursion:
    """θ and β of a method, where G = (1/n) Σ ‖gᵢ − ∇fᵢ(x)‖² is how far the workers' estimates lie from their gradients.

    The 3PC paper writes A and B.
    """

    theta: float
    beta: float

    def __post_init__(self) -> None:
        if not (0 < self.theta <= 1 and 0 <= self.beta < math.inf):
            raise ConfigError(f"a recursion needs theta in (0, 1] and beta >= 0, got {self.theta} and {self.beta}")

    @property
    def ratio(self) -> float:
        """√(β/θ): how much of L̃ an admissible step size pays for compression."""
        return math.sqrt(self.beta / self.theta)


def young(alpha: float) -> float:
    """s* = 1/√(1 − α) − 1, the parameter of Young's inequality that makes β/θ least; infinite at α = 1."""
    _check_alpha(alpha)
    return math.inf if alpha == 1 else 1 / math.sqrt(1 - alpha) - 1


def markov(alpha: float, s: float | None = None) -> Recursion:
    """EF21's recursion: θ = 1 − (1 − α)(1 + s), β = (1 − α)(1 + 1/s)   (Richtárik et al. 2021).

    At s* = `young(α)`: θ = 1 − √(1 − α), β = (1 − α)/θ and √(β/θ) = (1 + √(1 − α))/α − 1. At α = 1 nothing is lost:
    θ = 1, β = 0.

    >>> f"{markov(1 / 123).ratio:.3f}"
    '244.499'
    """
    _check_alpha(alpha)
    if alpha == 1:
        return Recursion(1.0, 0.0)
    if s is None:
        theta = alpha / (1 + math.sqrt(1 - alpha))  # = 1 − √(1 − α), without its cancellation at small α
        return Recursion(theta, (1 - alpha) / theta)
    if not 0 < s < alpha / (1 - alpha):
        raise ConfigError(f"s must lie in (0, {alpha / (1 - alpha):.3g}) for alpha = {alpha:g}, got {s}; best is s*")
    return Recursion(1 - (1 - alpha) * (1 + s), (1 - alpha) * (1 + 1 / s))


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha <= 1:
        raise ConfigError(f"a contraction's alpha lies in (0, 1], got {alpha}")

"""What of the iterates x_0, x_1, … is the estimate: the last, or a mean with weights w_t over x_0 … x_{T−1}."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from thinwire.linear.schedules import Times, check_positive


class Average(Protocol):
    """Weights of a mean of iterates."""

    @property
    def is_mean(self) -> bool:
        """False where only the last iterate counts."""

    def weights(self, t: Times) -> Times:
        """w_t."""


@dataclass(frozen=True)
class Final:
    """The last iterate, x_T."""

    is_mean: bool = False

    def weights(self, t: Times) -> Times:
        return np.zeros(len(t))


@dataclass(frozen=True)
class Uniform:
    """x̄ = (1/T) Σ x_t."""

    is_mean: bool = True

    def weights(self, t: Times) -> Times:
        return np.ones(len(t))


@dataclass(frozen=True)
class Weighted:
    """x̄ = Σ (a + t)² x_t / S_T with S_T = Σ (a + t)² (theorem 2.4).

    >>> float(Weighted(3).weights(np.arange(4.0)).sum()) == weight_sum(3, 4)
    True
    """

    shift: float
    is_mean: bool = True

    def __post_init__(self) -> None:
        check_positive("the shift a of the weights (a + t)²", self.shift)

    def weights(self, t: Times) -> Times:
        return np.square(self.shift + t)


def weight_sum(shift: float, steps: int) -> float:
    """S_T = (T/6) (2T² + 6aT − 3T + 6a² − 6a + 1), the sum of (a + t)² for t < T (theorem 2.4)."""
    a, T = shift, steps
    return T / 6 * (2 * T * T + 6 * a * T - 3 * T + 6 * a * a - 6 * a + 1)

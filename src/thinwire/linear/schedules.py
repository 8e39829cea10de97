"""What depends on t = 0, 1, … alone: step sizes η_t as the paper writes them (any callable from an array of t to an
array will do), and which of the iterates x_0, x_1, … is the estimate: the last, or a mean with weights w_t."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from thinwire.errors import ConfigError

Times = NDArray[np.float64]
Schedule = Callable[[Times], Times]


def check_positive(name: str, value: float, least: float = 0.0) -> None:
    """Refuse what is not a finite number above `least`."""
    if not (np.isfinite(value) and value > least):
        raise ConfigError(f"{name} must be a finite number above {least:g}, got {value!r}")


@dataclass(frozen=True)
class Constant:
    """η_t = size.

    >>> Constant(0.5)(np.arange(2.0)).tolist()
    [0.5, 0.5]
    """

    size: float

    def __post_init__(self) -> None:
        check_positive("a constant step size", self.size)

    def __call__(self, t: Times) -> Times:
        return np.full(len(t), float(self.size))


@dataclass(frozen=True)
class Theory:
    """η_t = 8 / (μ (a + t)) with a > 1 (theorem 2.4; a = (α + 2) d/k for α ≥ 5, in practice d/k).

    >>> Theory(mu=0.5, shift=16)(np.arange(2.0)).tolist()
    [1.0, 0.9411764705882353]
    """

    mu: float
    shift: float

    def __post_init__(self) -> None:
        check_positive("μ", self.mu)
        check_positive("the shift a of theory's step sizes", self.shift, least=1.0)

    def __call__(self, t: Times) -> Times:
        return (8 / self.mu) / (self.shift + t)


@dataclass(frozen=True)
class Shifted:
    """η_t = γ / (λ (t + a)), as in the paper's figure 2 (γ = 2, a = d/k or 10 d/k).

    >>> Shifted(gamma=2, strength=0.1, shift=20)(np.arange(2.0)).round(4).tolist()
    [1.0, 0.9524]
    """

    gamma: float
    strength: float
    shift: float

    def __post_init__(self) -> None:
        for name, value in (("γ", self.gamma), ("λ", self.strength), ("the shift a", self.shift)):
            check_positive(name, value)

    def __call__(self, t: Times) -> Times:
        return (self.gamma / self.strength) / (t + self.shift)


@dataclass(frozen=True)
class Bottou:
    """η_t = γ₀ / (1 + γ₀ λ t), as in the paper's figures 3 and 4.

    >>> Bottou(initial=2, strength=0.25)(np.arange(3.0)).tolist()
    [2.0, 1.3333333333333333, 1.0]
    """

    initial: float
    strength: float

    def __post_init__(self) -> None:
        check_positive("γ₀", self.initial)
        if not (np.isfinite(self.strength) and self.strength >= 0):
            raise ConfigError(f"λ must be a finite number of at least 0, got {self.strength!r}")

    def __call__(self, t: Times) -> Times:
        return self.initial / (1 + self.initial * self.strength * t)


def shift_for(d: int, k: float, memories: int = 1) -> float:
    """a = W d/k: a coordinate waits about d/k of its worker's steps, and each of W workers takes one step in W.

    >>> shift_for(d=2000, k=10, memories=4)
    800.0
    """
    check_positive("k", k)
    return memories * d / k


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

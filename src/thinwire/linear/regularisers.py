"""Where the regulariser's part λx of the gradient goes: past the memory, or through it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thinwire.errors import ConfigError


@dataclass(frozen=True)
class Decoupled:
    """(λ/2)‖x‖² beside the memory: x ← (1 − ηλ) x − C(m + η∇ℓ), exact, and every worker can do it by itself.

    x = s v with a number s that all threads know, so a step costs nothing for the regulariser. The virtual iterate
    x − m still takes SGD's steps. Needs ηλ < 1.
    """

    strength: float = 0.0

    def __post_init__(self) -> None:
        _check(self.strength)


@dataclass(frozen=True)
class InMemory:
    """(λ/2)‖x‖² through the memory, as the paper prints it: p = m + η(∇ℓ + λx). Each step then costs O(d)."""

    strength: float

    def __post_init__(self) -> None:
        _check(self.strength)


Regulariser = Decoupled | InMemory


def _check(strength: float) -> None:
    if not (np.isfinite(strength) and strength >= 0):
        raise ConfigError(f"a regulariser's strength λ must be a finite number of at least 0, got {strength!r}")

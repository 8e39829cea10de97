"""Numbers that move with the step: a sparsifier's density or threshold during warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thinwire.checks import is_number, is_whole
from thinwire.errors import ConfigError
from thinwire.named import Named


@dataclass(frozen=True)
class Warmup(Named):
    """A number that moves geometrically from `start` to `end` in `steps` steps, then stays (Lin et al. 2018, DGC).

        value(t) = start * (end / start)^(t / steps)   for t < steps,   end afterwards

    >>> Warmup(0.25, 0.01, 2).at(1), Warmup(0.25, 0.01, 2).at(7)
    (0.05, 0.01)
    """

    start: float
    end: float
    steps: int
    name: ClassVar[str] = "warmup"
    positional: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if not (is_number(self.start) and is_number(self.end) and self.start > 0 and self.end > 0):
            raise ConfigError(f"warmup runs between two positive numbers, got {self.start} and {self.end}")
        if not (is_whole(self.steps) and self.steps >= 1):
            raise ConfigError(f"warmup steps must be a whole number, at least 1, got {self.steps}")

    def at(self, step: int) -> float:
        """The value at `step`."""
        if step >= self.steps:
            return self.end
        return float(self.start * (self.end / self.start) ** (step / self.steps))


Number = float | Warmup
"""A constant, or a number that moves with the step."""


def is_moving(value: object) -> bool:
    """Whether a value is a constant or moving number."""
    return isinstance(value, Warmup) or is_number(value)


def at(number: Number, step: int) -> float:
    """The value of a constant or moving number at `step`."""
    return number.at(step) if isinstance(number, Warmup) else number


def bounds(number: Number) -> tuple[float, float]:
    """The least and the greatest value that a number ever takes."""
    ends = (number.start, number.end) if isinstance(number, Warmup) else (number, number)
    return min(ends), max(ends)

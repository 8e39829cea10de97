"""An alpha that moves, for each parameter by itself, to hold a ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.checks import is_number
from thinwire.errors import ConfigError
from thinwire.layout import Layout
from thinwire.named import Named
from thinwire.ops.blocks import shares_of


@dataclass(frozen=True)
class Target(Named):
    """Send one number in `ratio`, in the mean over steps; not in the paper.

        alpha <- clip(alpha * clip(1 + gain (ratio k / d - 1), 1/2, 2), start / 16, 16 start)

    where k of a parameter's d numbers were sent this step. It stands still where the mean of k is d / ratio; a step
    without any lowers alpha by the share `gain`. A larger gain follows faster, and lets small parameters send more
    than was asked for: of 100 asked for, noise gave 100.0 with 2,000 numbers and 98.7 with 20, at a gain of 0.03 100.0
    and 93.5 (1,500 steps after as many). Each worker moves its own alpha, which is saved with its state as one number a
    parameter.

    >>> from thinwire import VGC
    >>> str(VGC(Target(100)))
    'vgc(target(100))'
    """

    ratio: float
    start: float = 1.5
    gain: float = 0.01
    name: ClassVar[str] = "target"

    def __post_init__(self) -> None:
        if not (is_number(self.ratio) and 1 < self.ratio < float("inf")):
            raise ConfigError(
                f"target ratio must be above 1, such as 100 for one number in a hundred, got {self.ratio!r}"
            )
        if not (is_number(self.start) and 0 < self.start < float("inf")):
            raise ConfigError(f"target start must be a positive number, got {self.start!r}")
        if not (is_number(self.gain) and 0 < self.gain < 0.5):
            raise ConfigError(f"target gain must lie in (0, 0.5), got {self.gain!r}")

    def move_(self, alphas: Tensor, positions: Tensor, layout: Layout) -> None:
        """alpha of each piece, after `positions` were sent, in place."""
        factor = 1 + self.gain * (self.ratio * shares_of(positions, layout, alphas.dtype) - 1)
        alphas.mul_(factor.clamp_(0.5, 2)).clamp_(self.start / 16, self.start * 16)

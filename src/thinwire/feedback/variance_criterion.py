"""What VGC's two algorithms share: a number is sent once its accumulated gradient is unambiguous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.checks import is_number
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback, Need, Round, Signal, Slot, State, mean_into
from thinwire.feedback.memory import check_decay
from thinwire.layout import Layout
from thinwire.named import Named
from thinwire.ops.blocks import shares_of
from thinwire.warmup import Number, at, bounds, is_moving

TOTAL, SQUARES = Slot("total"), Slot("squares")
"""r, the sum of the gradients since the last sending, and v, that of the squared per-sample gradients.

For another number of workers both are averaged. The mean of what is kept is thus kept; v then is that of one worker,
n times what belongs to a mean of n, so that a number waits for a little longer than it would have to.
"""


class Criterion(Feedback):
    """r^2 > alpha v, with r <- r + g and v <- v + q (Tsuzuku, Imachi and Akiba 2018, criterion 3).

    q = sum_z c_z^2 over the per-sample gradients c_z that sum to g. With n of them since the last sending this is
    |t| > sqrt(alpha (n - 1) / (n - alpha)) for Student's t of the mean gradient. As r^2 <= n v, alpha must be below the
    number of samples in a worker's batch, or no number could pass in one step.

    With `decay` d below 1 (not in the paper) what waits fades, r <- d r + g and v <- d^2 v + q: older gradients then
    weigh less in both, and the criterion is still Student's t, of the weighted mean.
    """

    alpha: Number | Target
    zeta: float
    decay: float
    needs: ClassVar[frozenset[Need]] = frozenset({Need.MOMENTS})
    owes: ClassVar[tuple[str, ...]] = ("total", "squares")
    wants_linear: ClassVar[bool] = False
    """The paper trains with Adam. A number waits while it is noise, and the square of summed noise grows as Adam's
    second moment does: with the number of steps."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        if isinstance(self.alpha, Target):
            return TOTAL, SQUARES, Slot("alpha", single=True, initial=self.alpha.start)
        return TOTAL, SQUARES

    def receive(self, round: Round, layout: Layout, state: State, out: Tensor) -> Tensor:
        return mean_into(out, round.payloads)

    def residual(self, signal: Signal, state: State) -> Tensor:
        return state["total"]

    def admit_terms(self, name: str, terms: int) -> None:
        alpha = self.alpha.start if isinstance(self.alpha, Target) else bounds(self.alpha)[1]
        if terms <= alpha:
            raise ConfigError(
                f"{self} on parameter {name!r}: r^2 / v cannot exceed the number of gradients that were squared in a "
                f"step, {terms} on some rank, so nothing could pass alpha = {alpha} in one step. Take larger batches "
                "(or more micro-batches) on every rank, or a smaller alpha"
            )

    def alphas(self, layout: Layout, state: State, step: int) -> Tensor:
        """alpha of each piece, in the state's type, on its device."""
        if isinstance(self.alpha, Target):
            return state["alpha"]
        return state["total"].new_full((len(layout.pieces),), at(self.alpha, step))

    def fade_(self, state: State) -> None:
        """r <- d r, v <- d^2 v."""
        if self.decay != 1:
            state["total"].mul_(self.decay)
            state["squares"].mul_(self.decay * self.decay)

    def steer_(self, positions: Tensor, layout: Layout, state: State) -> None:
        """Move alpha towards its target, if it has one, after `positions` were sent."""
        if isinstance(self.alpha, Target):
            self.alpha.move_(state["alpha"], positions, layout)


def check_criterion(rule: Criterion) -> None:
    """Check alpha, zeta and decay."""
    check_decay(rule.name, rule.decay)
    if not isinstance(rule.alpha, Target):
        if not is_moving(rule.alpha):
            raise ConfigError(
                f"{rule.name} alpha must be a positive number, warmup(...) or target(...), got {rule.alpha!r}"
            )
        low, high = bounds(rule.alpha)
        if not (0 < low and high < float("inf")):
            raise ConfigError(f"{rule.name} alpha must be a positive number (1 to 2 in the paper), got {rule.alpha}")
    if not (is_number(rule.zeta) and 0 < rule.zeta <= 1):
        raise ConfigError(f"{rule.name} zeta must lie in (0, 1] (0.999 in the paper), got {rule.zeta!r}")


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

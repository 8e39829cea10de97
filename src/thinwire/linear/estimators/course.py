"""The course of one linear model's training: epochs, until its loss has settled."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from thinwire.linear import LockFree, Schedule
from thinwire.linear.schedules import Times

RISE = 1.01
"""How many times the first loss the last may be: at the least loss, steps of any size make it tremble a little."""
CUT = 0.2
"""What is left of the steps where the loss trembles, as in scikit-learn's learning_rate="adaptive". (Halves come to the
same losses in up to twice as many epochs: diabetes, digits, iris, Friedman's regression.)"""


@dataclass(frozen=True)
class Share:
    """A share of another schedule's step sizes.

    >>> from thinwire.linear import Constant
    >>> Share(Constant(0.5), 0.2)(np.zeros(1)).tolist()
    [0.1]
    """

    schedule: Schedule
    share: float

    def __call__(self, t: Times) -> Times:
        return self.share * self.schedule(t)


class Course:
    """Epochs until the loss has not fallen by `tol` for `patience` of them, and has not risen by `tol` either.

    A loss that trembles by more than `tol` says that the steps are too large for what is left to learn, and stopping
    then would keep whatever the last epoch came to. So the steps are cut, and training goes on; where `cuts` is False
    they may not be, and it stops.
    """

    def __init__(self, engine: LockFree, tol: float | None, patience: int, *, cuts: bool) -> None:
        self.engine, self._tol, self._patience, self._cuts = engine, tol, patience, cuts
        self.epochs = 0
        self.interrupted = self.settled = False
        self._start = engine.loss()
        self._whole, self._share = engine.schedule, 1.0
        self._best, self._worst, self._stale = np.inf, -np.inf, 0

    def epoch(self) -> None:
        """One more; Ctrl-C ends it early."""
        try:
            run = self.engine.run(len(self.engine.samples))
            self.interrupted = run.stopped == "interrupted"
            self._look()
        except KeyboardInterrupt:
            self.interrupted = True
        self.epochs += 1

    def _look(self) -> None:
        if self._tol is None:
            return
        loss = self.engine.loss()
        fell = loss < self._best - self._tol
        self._stale = 0 if fell else self._stale + 1
        self._worst = loss if fell else max(self._worst, loss)
        self._best = min(self._best, loss)
        if self._stale >= self._patience:
            self._end_or_cut(loss)

    def _end_or_cut(self, loss: float) -> None:
        """What lies behind is no measure of smaller steps, which are compared with where they begin."""
        assert self._tol is not None
        self.settled = not (self._cuts and self._worst > self._best + self._tol)
        if not self.settled:
            self._share *= CUT
            self.engine.schedule = Share(self._whole, self._share)
            self._best, self._worst, self._stale = loss, loss, 0

    def close(self) -> None:
        """Whole steps again, for samples that may follow; a warning where the loss has risen by more than noise."""
        self.engine.schedule = self._whole
        end = self.engine.loss()
        if end > RISE * self._start:
            warnings.warn(
                f"the loss rose from {self._start:g} to {end:g}: the step size eta0 is too large for these samples",
                ConvergenceWarning,
                stacklevel=4,
            )

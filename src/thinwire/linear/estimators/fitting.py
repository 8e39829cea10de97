"""What an estimator decides by itself: the first step size, and how many epochs it takes for the loss to settle."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from thinwire.linear import LockFree, Loss, Samples, Schedule
from thinwire.linear.rules import RANDOM, TOP, StepRule
from thinwire.linear.schedules import Times

CURVATURE = {Loss.LOGISTIC: 0.25, Loss.SQUARED: 1.0, Loss.HINGE: 1.0}
"""The largest ∂²ℓ/∂z². The hinge has none; 1 makes its steps those of the squared loss."""
RISE = 1.01
"""How many times the first loss the last may be: at the least loss, steps of any size make it tremble a little."""
CUT = 0.2
"""What is left of the steps where the loss trembles, as in scikit-learn's learning_rate="adaptive". (Halves come to the
same losses in up to twice as many epochs: diabetes, digits, iris, Friedman's regression.)"""


def waiting(code: StepRule, d: int) -> float:
    """d/k: how many of its worker's steps a coordinate waits, about. What is large does not wait.

    >>> waiting(StepRule(TOP, remembers=True, kept=5), d=100)
    20.0
    """
    return d / (code.kept * code.probability) if code.writes in (TOP, RANDOM) else 1.0


def first_step(samples: Samples, code: StepRule, strength: float, workers: int, intercept: float) -> float:
    """η₀ = min(1/L, 1/(λa)) for L = max_i w_i ℓ″ (‖a_i‖² + b), a = max(2, W d/k): more lets one sample overshoot.

    η_t = η₀/(1 + η₀λt) is 1/(λ(t + a)) then, with the delay a ≥ W d/k that a memory needs, and λη < 1. A memory of
    which coordinates are drawn bears η h < 2p/(2 − p), p = k/(W d), where the mean loss has curvature h: of that, half.
    """
    rows = samples.rows
    norms = np.einsum("ij,ij->i", rows, rows) if samples.dense else _sums_of_squares(rows)
    largest = float(np.max(samples.weights * (norms + intercept)))
    smooth = 1 / (CURVATURE[samples.loss] * largest) if largest > 0 else 1.0
    delay = max(2.0, workers * waiting(code, samples.d))
    bounds = [smooth, *([1 / (strength * delay)] if strength > 0 else [])]
    if code.writes == RANDOM and code.remembers and largest > 0:
        bounds.append(1 / (workers * waiting(code, samples.d) * mean_curvature(samples)))
    return min(bounds)


def mean_curvature(samples: Samples) -> float:
    """λ_max of (1/n) Σ w_i ℓ″ a_i a_iᵀ, from below: ten steps of the power method."""
    rows, weights = samples.rows, samples.weights * CURVATURE[samples.loss] / len(samples)
    v, largest = np.random.default_rng(0).normal(size=samples.d), 0.0
    for _ in range(10):
        v = rows.T @ (weights * (rows @ (v / np.linalg.norm(v))))
        largest = float(np.linalg.norm(v))
        if largest == 0:
            break
    return max(largest, np.finfo(np.float64).tiny)


def _sums_of_squares(rows: Any) -> Any:
    return np.asarray(rows.multiply(rows).sum(axis=1)).ravel()


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


class Epochs:
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

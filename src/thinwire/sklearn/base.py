"""What the classifier and the regressor share: parameters, epochs, early stopping, and the engines behind them."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from thinwire.engines.lockfree import Average, Bottou, Constant, Decoupled, Final, LockFree, Samples, Uniform, Weighted
from thinwire.engines.lockfree.rules import Compiled
from thinwire.errors import ConfigError
from thinwire.feedback import Rule, as_rule
from thinwire.sklearn.steps import first_step
from thinwire.spec import parse

Array = NDArray[Any]
AVERAGES = ("final", "uniform", "weighted")
SCHEDULES = ("bottou", "constant")


@dataclass(frozen=True)
class OnePass:
    """An order for `LockFree`: one permutation of the samples, from step `begin` on."""

    begin: int

    def __call__(self, samples: int, seed: int, begin: int, end: int) -> NDArray[np.int64]:
        permutation = np.random.default_rng((seed, self.begin)).permutation(samples)
        return permutation[begin - self.begin : end - self.begin]


class Course:
    """The training of one linear model: epochs, until its loss has not fallen by `tol` for `patience` of them."""

    def __init__(self, engine: LockFree, tol: float | None, patience: int) -> None:
        self.engine, self._tol, self._patience = engine, tol, patience
        self.epochs = 0
        self.interrupted = self.settled = False
        self._best, self._stale = np.inf, 0

    def epoch(self) -> None:
        run = self.engine.run(len(self.engine.samples))
        self.epochs += 1
        self.interrupted = run.stopped == "interrupted"
        if self._tol is not None:
            loss = self.engine.loss()
            self._stale = 0 if loss < self._best - self._tol else self._stale + 1
            self._best = min(self._best, loss)
            self.settled = self._stale >= self._patience


class LinearMemSGD(BaseEstimator):  # type: ignore[misc]
    """The base of both estimators; a subclass says what its targets and its loss are."""

    rule: Rule | str
    alpha: float
    fit_intercept: bool
    max_iter: int
    tol: float | None
    n_iter_no_change: int
    learning_rate: str
    eta0: float | str
    average: str
    flush: bool
    n_jobs: int | None
    random_state: Any
    warm_start: bool
    _engines: list[LockFree]

    # --------------------------------------------------------------------------------------------------- for subclasses

    def _loss(self) -> str:
        """The engine's name of the loss."""
        raise NotImplementedError

    def _fit(self, X: Any, columns: Array, sample_weight: Any) -> Self:
        """Train one model for each column of targets."""
        if not (self.warm_start and len(getattr(self, "_engines", ())) == columns.shape[1]):
            self._engines = []
        self._employ(X, columns, sample_weight)
        courses = [Course(engine, self.tol, self.n_iter_no_change) for engine in self._engines]
        self.n_iter_ = self._train(courses)
        return self._publish()

    def _partial_fit(self, X: Any, columns: Array, sample_weight: Any) -> Self:
        """One pass over these samples, from where the last call ended; the memories stay."""
        self._employ(X, columns, sample_weight)
        for engine in self._engines:
            engine.order = OnePass(engine.step)
            if engine.run(len(engine.samples)).stopped == "interrupted":
                _say_interrupted(engine)
                break
        self.n_iter_ = 1
        return self._publish()

    # ----------------------------------------------------------------------------------------------------------- checks

    def _checked(self, X: Any, y: Any, *, reset: bool, numeric: bool) -> tuple[Any, Any]:
        self._check_parameters()
        options = {"accept_sparse": "csr", "accept_large_sparse": False, "dtype": [np.float64, np.float32]}
        X, y = validate_data(self, X, y, reset=reset, y_numeric=numeric, **options)
        return X, y

    def _features(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(
            self, X, reset=False, accept_sparse="csr", accept_large_sparse=False, dtype=[np.float64, np.float32]
        )

    def _check_parameters(self) -> None:
        for name, value, least in (("alpha", self.alpha, 0), ("max_iter", self.max_iter, 1)):
            if not (np.isfinite(value) and value >= least):
                raise ConfigError(f"{name} must be a finite number of at least {least}, got {value!r}")
        if self.n_iter_no_change < 1:
            raise ConfigError(f"n_iter_no_change must be at least 1, got {self.n_iter_no_change!r}")
        for name, text, known in (
            ("average", self.average, AVERAGES),
            ("learning_rate", self.learning_rate, SCHEDULES),
        ):
            if text not in known:
                raise ConfigError(f"{name} must be one of {', '.join(known)}, got {text!r}")
        if self.eta0 != "auto" and not (
            isinstance(self.eta0, int | float) and np.isfinite(self.eta0) and self.eta0 > 0
        ):
            raise ConfigError(f'eta0 must be a positive step size or "auto", got {self.eta0!r}')

    # --------------------------------------------------------------------------------------------------------- training

    def _employ(self, X: Any, columns: Array, sample_weight: Any) -> None:
        """An engine for each column of targets, made anew or fed with these samples."""
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        if not getattr(self, "_engines", ()):
            every = [Samples.of(X, column, loss=self._loss(), weights=weights) for column in columns.T]
            seeds = check_random_state(self.random_state).randint(np.iinfo(np.int32).max, size=len(every))
            self._engines = [self._engine(samples, int(seed)) for samples, seed in zip(every, seeds, strict=True)]
            return
        for engine, column in zip(self._engines, columns.T, strict=True):
            engine.feed_(Samples.of(_like(X, engine.samples), column, loss=self._loss(), weights=weights))

    def _engine(self, samples: Samples, seed: int) -> LockFree:
        rule = as_rule(parse(self.rule) if isinstance(self.rule, str) else self.rule)
        threads, share = _threads(self.n_jobs), float(self.fit_intercept)
        code = Compiled.of(rule, samples.d).code
        eta0 = first_step(samples, code, self.alpha, threads, share) if self.eta0 == "auto" else float(self.eta0)
        schedule = Bottou(eta0, self.alpha) if self.learning_rate == "bottou" else Constant(eta0)
        return LockFree(
            samples,
            rule,
            schedule,
            regulariser=Decoupled(self.alpha),
            average=self._average(eta0),
            threads=threads,
            seed=seed,
            intercept=share,
        )

    def _average(self, eta0: float) -> Average:
        """Weights (a + t)² take a from the step sizes: η_t = 1/(λ(t + a))."""
        if self.average == "weighted":
            return Weighted(max(1.0, 1 / (self.alpha * eta0)) if self.alpha > 0 else 1.0)
        return Uniform() if self.average == "uniform" else Final()

    def _train(self, courses: list[Course]) -> int:
        """Epochs of all models in turn, so that Ctrl-C finds none left behind."""
        for _ in range(self.max_iter):
            active = [course for course in courses if not course.settled]
            for course in active:
                course.epoch()
                if course.interrupted:
                    _say_interrupted(course.engine)
                    return course.epochs
            if not active:
                break
        else:
            if self.tol is not None and not all(course.settled for course in courses):
                warnings.warn(
                    f"{self.max_iter} epochs were not enough for the loss to settle within tol={self.tol:g}: raise "
                    "max_iter or tol, or scale the features (StandardScaler)",
                    ConvergenceWarning,
                    stacklevel=4,
                )
        return max(course.epochs for course in courses)

    def _publish(self) -> Self:
        for engine in self._engines:
            if self.flush:
                engine.flush_()
        self.coef_ = np.stack([engine.estimate for engine in self._engines])
        self.intercept_ = np.array([engine.estimated_intercept for engine in self._engines])
        self.t_ = self._engines[0].step
        self.written_ = sum(engine.written for engine in self._engines)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _threads(n_jobs: int | None) -> int:
    """scikit-learn's n_jobs: None is 1, -1 all cores, -2 all but one.

    >>> _threads(None), _threads(3)
    (1, 3)
    """
    if n_jobs == 0:
        raise ConfigError("n_jobs must be a number of threads, or negative to count from all cores (-1), got 0")
    cores = os.cpu_count() or 1
    return 1 if n_jobs is None else n_jobs if n_jobs > 0 else max(1, cores + 1 + n_jobs)


def _like(X: Any, samples: Samples) -> Any:
    """The rows in the form and type of an engine that was fed with others before."""
    if samples.dense:
        X = X.toarray() if hasattr(X, "toarray") else X
    elif not hasattr(X, "tocsr"):
        X = csr_matrix(X)
    return X.astype(samples.dtype, copy=False)


def _say_interrupted(engine: LockFree) -> None:
    warnings.warn(f"interrupted after {engine.step} steps: the model so far is kept", ConvergenceWarning, stacklevel=5)

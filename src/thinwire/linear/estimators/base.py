"""What the classifier and the regressor share: parameters, epochs, and the engines behind them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from thinwire import linear
from thinwire.errors import ConfigError
from thinwire.feedback import Rule
from thinwire.linear import LockFree, Samples
from thinwire.linear.checks import cores
from thinwire.linear.estimators.fitting import Epochs, first_step
from thinwire.linear.rules import step_rule
from thinwire.linear.units import Units
from thinwire.spec import rule_from

Array = NDArray[Any]
PARAMETERS: tuple[tuple[str, int, Any], ...] = (
    ("alpha", 0, Real),
    ("max_iter", 1, Integral),
    ("n_iter_no_change", 1, Integral),
)
"""Numbers: the least that each may be, and of which kind."""
OF_CALLS = ("max_iter", "tol", "n_iter_no_change", "flush", "warm_start", "random_state", "class_weight")
"""Parameters that may change while training goes on."""
ROWS: dict[str, Any] = {"accept_sparse": "csr", "accept_large_sparse": False, "dtype": [np.float64, np.float32]}
"""What scikit-learn's checks let through."""
AVERAGES = ("final", "uniform", "weighted")
SCHEDULES = ("bottou", "constant")


@dataclass(frozen=True)
class OnePass:
    """An order for `LockFree`: one permutation of the samples, from step `begin` on."""

    begin: int

    def __call__(self, samples: int, seed: int, begin: int, end: int) -> NDArray[np.int64]:
        permutation = np.random.default_rng((seed, self.begin)).permutation(samples)
        return permutation[begin - self.begin : end - self.begin]


class LinearMemSGD(BaseEstimator):  # type: ignore[misc]
    """The base of both estimators; a subclass says what its targets and its loss are."""

    _engines: list[LockFree]
    _built: dict[str, Any]

    def __init__(
        self,
        *,
        rule: Rule | str = "memsgd(topk(count=1))",
        units: str | None = None,
        alpha: float = 1e-4,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float | None = 1e-4,
        n_iter_no_change: int = 5,
        learning_rate: str = "bottou",
        eta0: float | str = "auto",
        average: str = "final",
        flush: bool = False,
        n_jobs: int | None = None,
        random_state: Any = None,
        warm_start: bool = False,
    ) -> None:
        self.rule, self.units, self.alpha, self.fit_intercept = rule, units, alpha, fit_intercept
        self.max_iter, self.tol, self.n_iter_no_change = max_iter, tol, n_iter_no_change
        self.learning_rate, self.eta0, self.average, self.flush = learning_rate, eta0, average, flush
        self.n_jobs, self.random_state, self.warm_start = n_jobs, random_state, warm_start

    # --------------------------------------------------------------------------------------------------- for subclasses

    def _loss(self) -> str:
        """The engine's name of the loss."""
        raise NotImplementedError

    def _loss_unit(self, samples: Samples) -> float:
        """The loss that `tol` is a share of."""
        raise NotImplementedError

    def _fit(self, X: Any, columns: Array, sample_weight: Any) -> Self:
        """Train one model for each column of targets, from zero or, with a warm start, from the last coefficients."""
        coefficients = np.atleast_2d(self.coef_) if self._goes_on() else [None] * columns.shape[1]
        intercepts = self.intercept_ if self._goes_on() else np.zeros(columns.shape[1])
        self._employ(X, columns, sample_weight, coefficients, intercepts)
        courses = [self._course(engine) for engine in self._engines]
        self.n_iter_ = self._train(courses)
        for course in courses:
            if self.flush:
                course.engine.flush_()
            course.close()
        return self._publish()

    def _course(self, engine: LockFree) -> Epochs:
        tol = None if self.tol is None else self.tol * self._loss_unit(engine.samples)
        return Epochs(engine, tol, self.n_iter_no_change, cuts=self.learning_rate != "constant")

    def _partial_fit(self, X: Any, columns: Array, sample_weight: Any) -> Self:
        """One pass over these samples, from where the last call ended; the memories stay."""
        if getattr(self, "_engines", ()):
            self._feed(X, columns, sample_weight)
        else:
            self._employ(X, columns, sample_weight, [None] * columns.shape[1], np.zeros(columns.shape[1]))
        for engine in self._engines:
            engine.order = OnePass(engine.step)
            if engine.run(len(engine.samples)).stopped == "interrupted":
                _say_interrupted(engine)
                break
        self.n_iter_ = 1
        return self._publish()

    def _goes_on(self) -> bool:
        return self.warm_start and hasattr(self, "coef_")

    # ----------------------------------------------------------------------------------------------------------- checks

    def _checked(self, X: Any, y: Any, *, reset: bool, numeric: bool) -> tuple[Any, Any]:
        self._check_parameters()
        X, y = validate_data(self, X, y, reset=reset, y_numeric=numeric, **ROWS)
        return X, y

    def _features(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, **ROWS)

    def _check_parameters(self) -> None:
        for name, least, kind in PARAMETERS:
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < np.inf:
                what = "a whole number" if kind is Integral else "a finite number"
                raise ConfigError(f"{name} must be {what} of at least {least}, got {value!r}")
        for name, known in (("average", AVERAGES), ("learning_rate", SCHEDULES)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.tol is not None and not (isinstance(self.tol, Real) and self.tol >= 0):
            raise ConfigError(f"tol must be a number of at least 0, or None for all epochs, got {self.tol!r}")
        if self.eta0 != "auto" and not (isinstance(self.eta0, Real) and 0 < self.eta0 < np.inf):
            raise ConfigError(f'eta0 must be a positive step size or "auto", got {self.eta0!r}')
        self._check_decay()
        if self.flush and self.average != "final":
            raise ConfigError(f"flush changes the last iterate, and average={self.average!r} asks for a mean: drop one")

    def _check_decay(self) -> None:
        """Refuse steps in which the penalty alone would turn the coefficients' sign; "auto" takes none."""
        if self.eta0 != "auto" and float(self.eta0) * self.alpha >= 1:
            raise ConfigError(
                f"eta0 * alpha must be below 1, since a step shrinks the coefficients by 1 - eta0 * alpha, got "
                f'{self.eta0:g} * {self.alpha:g}: take an eta0 below {1 / self.alpha:g}, a smaller alpha, or "auto"'
            )

    # --------------------------------------------------------------------------------------------------------- training

    def _employ(
        self, X: Any, columns: Array, sample_weight: Any, coefficients: Iterable[Any], intercepts: Iterable[float]
    ) -> None:
        """A new engine for each column of targets."""
        seeds = check_random_state(self.random_state).randint(np.iinfo(np.int32).max, size=columns.shape[1])
        samples, rule = self._samples(X, columns, sample_weight, self.units), rule_from(self.rule)
        eta0 = self._first_step(samples[0], rule)
        every = zip(samples, seeds, coefficients, intercepts, strict=True)
        self._engines = [self._engine(own, rule, eta0, int(seed), start, float(b)) for own, seed, start, b in every]
        self._built = self._building()

    def _feed(self, X: Any, columns: Array, sample_weight: Any) -> None:
        """Hand these samples to the engines that there are; longer rows than before make their steps smaller."""
        changed = [name for name, value in self._building().items() if self._built[name] != value]
        if changed:
            raise ConfigError(f"{', '.join(changed)} changed since training began: call fit, or set it back")
        old = self._engines[0].samples
        samples = self._samples(_like(X, old), columns, sample_weight, old.units)
        bound = self._schedule(self._first_step(samples[0], rule_from(self.rule)))
        for engine, own in zip(self._engines, samples, strict=True):
            engine.feed_(own)
            if bound(np.zeros(1)) < engine.schedule(np.zeros(1)):
                engine.schedule = bound

    def _building(self) -> dict[str, Any]:
        """The parameters that an engine is built by."""
        parameters: dict[str, Any] = self.get_params(deep=False)
        return {name: value for name, value in parameters.items() if name not in OF_CALLS}

    def _samples(self, X: Any, columns: Array, sample_weight: Any, units: str | Units | None) -> list[Samples]:
        """Of each column of targets; rows and weights are the same, and so are step sizes."""
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        first = Samples.of(X, columns[:, 0], loss=self._loss(), weights=weights).in_units(units)
        return [first, *(first.relabelled(column) for column in columns.T[1:])]

    def _first_step(self, samples: Samples, rule: Rule) -> float:
        if self.eta0 != "auto":
            return float(self.eta0)
        return first_step(
            samples, step_rule(rule, samples.d), self.alpha, _threads(self.n_jobs), float(self.fit_intercept)
        )

    def _schedule(self, eta0: float) -> linear.Schedule:
        return linear.Bottou(eta0, self.alpha) if self.learning_rate == "bottou" else linear.Constant(eta0)

    def _engine(self, samples: Samples, rule: Rule, eta0: float, seed: int, start: Any, intercept: float) -> LockFree:
        return LockFree(
            samples,
            rule,
            self._schedule(eta0),
            regulariser=linear.Decoupled(self.alpha),
            average=self._average(eta0),
            threads=_threads(self.n_jobs),
            seed=seed,
            start=start,
            intercept=float(self.fit_intercept),
            start_intercept=intercept,
        )

    def _average(self, eta0: float) -> linear.Average:
        """Weights (a + t)² take a from the step sizes: η_t = 1/(λ(t + a))."""
        if self.average == "weighted":
            return linear.Weighted(max(1.0, 1 / (self.alpha * eta0)) if self.alpha > 0 else 1.0)
        return linear.Uniform() if self.average == "uniform" else linear.Final()

    def _train(self, courses: list[Epochs]) -> int:
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
        """coef_ and what else is known now; the engines let go of the samples."""
        coefficients = np.stack([engine.estimate for engine in self._engines])
        intercepts = np.array([engine.estimated_intercept for engine in self._engines])
        if not (np.isfinite(coefficients).all() and np.isfinite(intercepts).all()):
            raise ConfigError(
                f"training diverged, its coefficients are not finite: give a smaller eta0 than {self.eta0!r}, or scale "
                "the features (StandardScaler)"
            )
        self.coef_, self.intercept_ = coefficients, intercepts
        self.t_ = self._engines[0].step
        self.written_ = sum(engine.written for engine in self._engines)
        for engine in self._engines:
            engine.feed_(engine.samples.first())
            engine.last = None
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.n_jobs not in (None, 1)
        return tags


def _threads(n_jobs: int | None) -> int:
    """scikit-learn's n_jobs: None is 1, -1 all cores, -2 all but one.

    >>> _threads(None), _threads(3)
    (1, 3)
    """
    if n_jobs is not None and (not isinstance(n_jobs, Integral) or n_jobs == 0):
        raise ConfigError(f"n_jobs must be a number of threads, or negative to count from all (-1), got {n_jobs!r}")
    return 1 if n_jobs is None else int(n_jobs) if n_jobs > 0 else max(1, cores() + 1 + int(n_jobs))


def _like(X: Any, samples: Samples) -> Any:
    """The rows in the form and type of an engine that was fed with others before."""
    if samples.dense:
        X = X.toarray() if hasattr(X, "toarray") else X
    elif not hasattr(X, "tocsr"):
        X = csr_matrix(X)
    return X.astype(samples.dtype, copy=False)


def _say_interrupted(engine: LockFree) -> None:
    warnings.warn(f"interrupted after {engine.step} steps: the model so far is kept", ConvergenceWarning, stacklevel=5)

"""MemSGDClassifier: linear classification by Mem-SGD, one model against the rest for each of several classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight

from thinwire.errors import ConfigError
from thinwire.feedback import Rule
from thinwire.linear import Samples
from thinwire.linear.estimators.base import LinearMemSGD

Array = NDArray[Any]
LOSSES = {"log_loss": "logistic", "hinge": "hinge", "squared_error": "squared"}


def _has_probabilities(estimator: MemSGDClassifier) -> bool:
    if estimator.loss != "log_loss":
        raise AttributeError(f'probabilities need loss="log_loss", got {estimator.loss!r}')
    return True


@final
class MemSGDClassifier(ClassifierMixin, LinearMemSGD):  # type: ignore[misc]
    """Linear classifier trained by Mem-SGD (Stich, Cordonnier and Jaggi 2018), lock-free on `n_jobs` threads.

        (1/n) Σ w_i ℓ(⟨a_i, x⟩ + b, y_i) + (alpha/2)‖x‖²

    A step writes only the coordinates that `rule` keeps, and remembers the rest: see `thinwire.linear`.

    Parameters
    ----------
    loss : "log_loss", "hinge" or "squared_error"
    rule : text or rule
        What a step writes: "memsgd(topk(count=1))", "memsgd(randk(count=10))", "plain(identity())" for plain SGD.
    units : None or "popularity"
        How topk and threshold compare features of sparse rows: as they are, or with rare ones in smaller units, so that
        they wait less for what popular ones hardly miss. `partial_fit` keeps the units of its first samples.
    alpha : float
        Strength of the L2 penalty. The intercept has none.
    class_weight : None, "balanced" or dict
        What a sample of each class weighs, beside its sample weight: one, n / (classes · samples of the class), or what
        {label: weight} says, one where it says nothing. In the models of several classes all samples weigh so, those of
        the rest too. `partial_fit` takes no "balanced", for it has not seen all samples.
    fit_intercept : bool
    max_iter : int
        Epochs at most.
    tol, n_iter_no_change : float or None, int
        Stop when the loss over all samples has not fallen by `tol` in so many epochs in a row. Where it has risen by
        more than `tol` meanwhile, steps are too large for what is left to learn, and "bottou" goes on with a fifth of
        them. None runs all epochs, and cuts no steps.
    learning_rate : "bottou" or "constant"
        η₀ / (1 + η₀ alpha t), or η₀, which no loss changes.
    eta0 : float or "auto"
        η₀, with eta0 · alpha < 1; "auto" takes what the loss and the memory bear.
    average : "final", "uniform" or "weighted"
        coef_ and intercept_ after T steps are x_T; the mean (1/T) Σ x_t; or the theorem's Σ (a + t)² x_t / Σ (a + t)²,
        a = max(1, 1/(alpha · eta0)). Both means are over t = 0 … T − 1, the iterates at which gradients were taken:
        with the start x_0 and without x_T (`SGDClassifier` has x_1 … x_T). `fit` begins a mean at its own start, also
        with `warm_start`; `partial_fit` goes on with it.
    flush : bool
        Write what the memories hold when `fit` ends; with average="final" only.
    n_jobs : int or None
        Threads; -1 is all cores. Only one thread gives the same result every time (the tag `non_deterministic`).
    random_state : int, RandomState or None
    warm_start : bool
        `fit` begins at the last coefficients, with step sizes and memories anew.

    Attributes
    ----------
    classes_, coef_, intercept_, n_iter_, n_features_in_, t_ (steps of each model), written_ (coordinates written)

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.feature_extraction.text import TfidfVectorizer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), MemSGDClassifier(random_state=0)).fit(X, y)
    >>> bool(model.score(X, y) > 0.97)
    True

    >>> words = make_pipeline(TfidfVectorizer(), MemSGDClassifier("hinge", random_state=0))
    >>> _ = words.fit(["thin wire", "a thin thread", "thick rope", "a thick cable"], ["thin", "thin", "thick", "thick"])
    >>> words.predict(["thin cable thin"]).tolist()
    ['thin']
    """

    classes_: Array

    def __init__(
        self,
        loss: str = "log_loss",
        *,
        rule: Rule | str = "memsgd(topk(count=1))",
        units: str | None = None,
        alpha: float = 1e-4,
        class_weight: Mapping[Any, float] | str | None = None,
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
        self.loss, self.rule, self.units = loss, rule, units
        self.alpha, self.class_weight, self.fit_intercept = alpha, class_weight, fit_intercept
        self.max_iter, self.tol, self.n_iter_no_change = max_iter, tol, n_iter_no_change
        self.learning_rate, self.eta0, self.average, self.flush = learning_rate, eta0, average, flush
        self.n_jobs, self.random_state, self.warm_start = n_jobs, random_state, warm_start

    def _loss(self) -> str:
        if self.loss not in LOSSES:
            raise ConfigError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}")
        return LOSSES[self.loss]

    def _loss_unit(self, samples: Samples) -> float:
        """One: labels are ±1, whatever the samples."""
        return 1.0

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on samples X of shape (n, d), dense or sparse, and their labels y."""
        goes_on = self._goes_on()
        X, y = self._checked(X, y, reset=not goes_on, numeric=False)
        check_classification_targets(y)
        self.classes_ = self._agreed(np.unique(y), self.classes_ if goes_on else None, "with warm_start they stay")
        return self._fit(X, self._columns(y), self._weights(X, y, sample_weight))

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One pass over some samples; the first call names all `classes` that will ever come."""
        if self.class_weight == "balanced":
            raise ConfigError(
                'class_weight="balanced" needs all samples, and partial_fit has some: give {label: weight}, as '
                "sklearn.utils.class_weight.compute_class_weight finds them"
            )
        known: Any = getattr(self, "classes_", None)
        if known is None and classes is None:
            raise ConfigError("classes must be passed on the first call to partial_fit: all that will ever come")
        X, y = self._checked(X, y, reset=known is None, numeric=False)
        check_classification_targets(y)
        given = np.unique(known if classes is None else classes)
        agreed = self._agreed(given, known, "`classes` is not the same as on last call to partial_fit")
        unknown = np.setdiff1d(y, agreed)
        if len(unknown):
            raise ConfigError(f"labels {unknown.tolist()} are not among classes {agreed.tolist()}")
        self.classes_ = agreed
        return self._partial_fit(X, self._columns(y), self._weights(X, y, sample_weight))

    def _agreed(self, classes: Array, known: Array | None, why: str) -> Array:
        """The classes, two at least, and those that are known where there are some."""
        if len(classes) < 2:
            raise ConfigError(f"a classifier needs at least 2 classes, got one class: {classes[0]!r}")
        if known is not None and not np.array_equal(classes, known):
            raise ConfigError(f"classes were {known.tolist()} and are {classes.tolist()}: {why}")
        return classes

    def _weights(self, X: Any, y: Array, sample_weight: Any) -> Any:
        """Of the samples, times those of their classes."""
        if self.class_weight is None:
            return sample_weight
        if self.class_weight != "balanced" and not isinstance(self.class_weight, Mapping):
            raise ConfigError(f'class_weight must be None, "balanced" or {{label: weight}}, got {self.class_weight!r}')
        of_classes = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
        return _check_sample_weight(sample_weight, X) * of_classes[np.searchsorted(self.classes_, y)]

    def _columns(self, y: Array) -> Array:
        """±1: for two classes one column, else each class against the rest."""
        chosen = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        return np.where(y[:, None] == chosen[None, :], 1.0, -1.0)

    def decision_function(self, X: Any) -> Array:
        """⟨a, x⟩ + b: (n,) for two classes, else (n, classes)."""
        scores: Array = self._features(X) @ self.coef_.T + self.intercept_
        return scores.ravel() if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> Array:
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        labels: Array = self.classes_[chosen]
        return labels

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Array:
        """1/(1 + exp(−score)); of several classes, divided by their sum."""
        scores = self.decision_function(X)
        with np.errstate(over="ignore"):
            positive: Array = 1 / (1 + np.exp(-scores))
        if positive.ndim == 1:
            return np.column_stack([1 - positive, positive])
        positive[positive.sum(axis=1) == 0] = 1
        shares: Array = positive / positive.sum(axis=1, keepdims=True)
        return shares

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any) -> Array:
        """The logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            logarithms: Array = np.log(self.predict_proba(X))
        return logarithms

"""MemSGDRegressor: linear least squares by Mem-SGD."""

from __future__ import annotations

from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from thinwire.linear import Samples
from thinwire.linear.estimators.base import LinearMemSGD

Array = NDArray[Any]


@final
class MemSGDRegressor(RegressorMixin, LinearMemSGD):  # type: ignore[misc]
    """Linear regression by Mem-SGD, lock-free on `n_jobs` threads: squared loss and an L2 penalty.

    Parameters and attributes are those of `MemSGDClassifier`, without `loss`, `class_weight` and `classes_`. `tol` is
    in units of R²: targets may be of any scale, so the loss is measured by that of the best constant (without an
    intercept, of zero). `SGDRegressor` has it in the units of the loss.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), MemSGDRegressor(average="weighted", random_state=0)).fit(X, y)
    >>> bool(model.score(X, y) > 0.5)
    True
    """

    def _loss(self) -> str:
        return "squared"

    def _loss_unit(self, samples: Samples) -> float:
        weights, targets = samples.weights, samples.targets
        if self.fit_intercept and weights.any():
            targets = targets - np.average(targets, weights=weights)
        return float(0.5 * np.mean(weights * np.square(targets)))

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on samples X of shape (n, d), dense or sparse, and their targets y."""
        X, y = self._checked(X, y, reset=not self._goes_on(), numeric=True)
        return self._fit(X, np.asarray(y, np.float64)[:, None], sample_weight)._one()

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """One pass over some samples."""
        X, y = self._checked(X, y, reset=not hasattr(self, "coef_"), numeric=True)
        return self._partial_fit(X, np.asarray(y, np.float64)[:, None], sample_weight)._one()

    def _one(self) -> Self:
        """coef_ of shape (d,), as regressors with one target have it."""
        self.coef_ = self.coef_[0]
        return self

    def predict(self, X: Any) -> Array:
        """⟨a, x⟩ + b."""
        predicted: Array = self._features(X) @ self.coef_ + self.intercept_
        return predicted

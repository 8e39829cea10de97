"""The problems of the EF21 paper by name: what is minimised over a data set that workers share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from thinwire.errors import ConfigError
from thinwire.problems.datasets import Dataset, signs
from thinwire.problems.finite_sum import FiniteSum
from thinwire.problems.shards import Shards
from thinwire.problems.terms import L2, LogisticLoss, Nonconvex, SquaredLoss

Vector = NDArray[np.float64]


def logistic_regression(dataset: Dataset, shards: Shards, strength: float = 0.1) -> FiniteSum:
    """(1/N) Σ log(1 + exp(−y ⟨a, x⟩)) + λ Σ x²/(1 + x²), the paper's, with λ = 0.1; two classes as −1 and +1."""
    labels = signs(dataset.labels, f"data set {dataset.name!r}")
    return FiniteSum.of(dataset.rows, labels, shards, LogisticLoss(), Nonconvex(strength))


def l2_logistic_regression(dataset: Dataset, shards: Shards, strength: float = 0.1) -> FiniteSum:
    """(1/N) Σ log(1 + exp(−y ⟨a, x⟩)) + λ/2 ‖x‖², λ-strongly convex; two classes as −1 and +1."""
    labels = signs(dataset.labels, f"data set {dataset.name!r}")
    return FiniteSum.of(dataset.rows, labels, shards, LogisticLoss(), L2(strength))


def least_squares(dataset: Dataset, shards: Shards, strength: float = 0.0) -> FiniteSum:
    """(1/2N) Σ (⟨a, x⟩ − y)² + λ/2 ‖x‖²; two classes as −1 and +1, other labels as they are."""
    two = len(np.unique(dataset.labels)) == 2
    labels = signs(dataset.labels, f"data set {dataset.name!r}") if two else dataset.labels
    return FiniteSum.of(dataset.rows, labels, shards, SquaredLoss(), L2(strength))


def least_squares_minimiser(problem: FiniteSum) -> Vector:
    """The x of least norm that solves (BᵀB + λI) x = Bᵀc, where B = √W A, c = √W y and W weighs worker i's rows by
    1/(nNᵢ). With fewer rows than columns by x = Bᵀz and (BBᵀ + λI) z = c: the smaller of the two matrices is made."""
    roots = np.repeat(1 / np.sqrt(problem.workers * problem.sizes), problem.sizes)
    dense, wide = isinstance(problem.rows, np.ndarray), len(roots) < problem.d
    B = problem.rows * roots[:, None] if dense else problem.rows.multiply(roots[:, None]).tocsr()
    c = problem.targets * roots
    gram = B @ B.T if wide else B.T @ B
    ridge = problem.regulariser.smoothness * np.eye(gram.shape[0])
    solved = np.linalg.lstsq((gram if dense else gram.toarray()) + ridge, c if wide else B.T @ c, rcond=None)[0]
    solution: Vector = B.T @ solved if wide else solved
    return solution


OBJECTIVES: dict[str, Callable[..., FiniteSum]] = {
    "logistic": logistic_regression,
    "l2": l2_logistic_regression,
    "least-squares": least_squares,
}


def objective(name: str, dataset: Dataset, shards: Shards, strength: float | None = None) -> FiniteSum:
    """The problem of that name; `strength` is λ, the problem's own unless given."""
    if name not in OBJECTIVES:
        raise ConfigError(f"unknown problem {name!r}; the problems are {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name](dataset, shards, *([] if strength is None else [strength]))

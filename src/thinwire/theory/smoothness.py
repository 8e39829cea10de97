"""Smoothness constants of a sum of n functions, and those of linear models from their data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.extras import require

Vector = NDArray[np.float64]
Offsets = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Smoothness:
    """Of f = (1/n) Σ fᵢ: its own constant, its workers' Lᵢ, and what is known of its curvature from below."""

    pooled: float
    """L of the mean over all samples, which the EF21 paper takes."""
    averaged: float
    """L of f itself; another number than `pooled` only where the workers have unequal numbers of samples."""
    workers: Vector
    """Lᵢ."""
    samples: Vector
    """maxⱼ Lᵢⱼ: the smoothness of each worker's steepest sample."""
    sizes: Offsets
    """Nᵢ, the number of each worker's samples."""
    mu: float | None = None
    """PL constant; None where there is none or it is not known."""
    strongly_convex: bool = False
    """Whether μ is strong convexity too."""

    @property
    def overall(self) -> float:
        """L: the larger of `pooled` and `averaged`; admissible for f, and the paper's where shards have one size."""
        return max(self.pooled, self.averaged)

    @property
    def quadratic_mean(self) -> float:
        """L̃ = √((1/n) Σ Lᵢ²)."""
        return float(np.sqrt(np.square(self.workers).mean()))

    @property
    def arithmetic_mean(self) -> float:
        """(1/n) Σ Lᵢ ≤ L̃."""
        return float(self.workers.mean())


def linear_model_smoothness(
    rows: Any,
    offsets: Offsets,
    curvature: float,
    added: float = 0.0,
    mu: float | None = None,
    strongly_convex: bool = False,
) -> Smoothness:
    """Of fᵢ(x) = mean over worker i's rows a of loss(⟨a, x⟩) + r(x); worker i has the rows offsets[i] … offsets[i+1].

    L = c λ_max(AᵀA)/N + ρ and Lᵢ = c λ_max(AᵢᵀAᵢ)/Nᵢ + ρ, where c = `curvature` bounds the loss's second derivative
    (1/4 for the logistic loss, 1 for half the square) and ρ = `added` that of r (2λ for λ Σ x²/(1 + x²), λ for
    λ/2 ‖x‖²).
    """
    parts = (rows[first:last] for first, last in pairwise(offsets.tolist()))
    squares = np.square(rows) if isinstance(rows, np.ndarray) else rows.multiply(rows)
    steepest = np.maximum.reduceat(np.asarray(squares.sum(axis=1)).ravel(), offsets[:-1])
    return Smoothness(
        pooled=curvature * largest_eigenvalue(rows) / rows.shape[0] + added,
        averaged=curvature * largest_eigenvalue(_weighted(rows, offsets)) + added,
        workers=np.array([curvature * largest_eigenvalue(part) / part.shape[0] + added for part in parts]),
        samples=curvature * steepest + added,
        sizes=np.diff(offsets),
        mu=mu,
        strongly_convex=strongly_convex,
    )


def least_squares_pl(rows: Any, offsets: Offsets) -> float | None:
    """μ = σ²_{min,+}(A)/N of least squares, with f's own weights on the rows; None where it cannot be told."""
    return smallest_positive_eigenvalue(_weighted(rows, offsets))


def _weighted(rows: Any, offsets: Offsets) -> Any:
    """The rows times 1/√(n Nᵢ): the Gram matrix of these is that of f = (1/n) Σ fᵢ."""
    sizes = np.diff(offsets)
    weights = np.repeat(1 / np.sqrt(len(sizes) * sizes), sizes)[:, None]
    return rows * weights if isinstance(rows, np.ndarray) else rows.multiply(weights).tocsr()


DENSE_SIDE = 2048
"""Up to this side a Gram matrix is made dense (32 MiB) and all its eigenvalues are found; beyond it, Lanczos."""


def largest_eigenvalue(rows: Any) -> float:
    """λ_max(AᵀA)."""
    if min(rows.shape) <= DENSE_SIDE:
        return max(0.0, float(_eigenvalues(rows)[-1]))
    linalg = require("scipy.sparse.linalg", "tasks", "smoothness constants")
    gram = linalg.LinearOperator(
        (rows.shape[1],) * 2, matvec=lambda v: rows.T @ (rows @ v), dtype=np.float64
    )  # a start of ones: the same answer each time
    return float(linalg.eigsh(gram, k=1, which="LA", return_eigenvectors=False, v0=np.ones(rows.shape[1]))[0])


def smallest_positive_eigenvalue(rows: Any) -> float | None:
    """σ²_{min,+}(A), the least eigenvalue of AᵀA that is not zero; None where A is zero or too large to tell.

    An eigenvalue counts as zero below max(shape) · eps · λ_max, which is what rounding leaves of one.
    """
    if min(rows.shape) > DENSE_SIDE:
        return None
    values = _eigenvalues(rows)
    positive = values[values > max(rows.shape) * np.finfo(np.float64).eps * values[-1]]
    return float(positive[0]) if positive.size and values[-1] > 0 else None


def _eigenvalues(rows: Any) -> Any:
    gram = rows.T @ rows if rows.shape[1] <= rows.shape[0] else rows @ rows.T
    return np.linalg.eigvalsh(gram if isinstance(gram, np.ndarray) else gram.toarray())

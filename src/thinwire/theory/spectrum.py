"""Extreme eigenvalues of AᵀA for a matrix A of samples, dense or CSR: of whichever of AᵀA and AAᵀ is smaller."""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.extras import require

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

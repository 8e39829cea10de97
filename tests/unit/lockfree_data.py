"""Small random data for tests of the lock-free engine."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from thinwire.linear import Loss, Samples


def matrix(n: int, d: int, density: float, seed: int = 0, dtype: type = np.float64) -> Any:
    """Rows of norm one at most, dense with zeros in them."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * (rng.random((n, d)) < density)
    return (rows / np.maximum(1e-9, np.linalg.norm(rows, axis=1, keepdims=True))).astype(dtype)


def samples(
    n: int = 60, d: int = 150, *, sparse: bool = True, loss: str = "logistic", density: float = 0.2, seed: int = 0,
    dtype: type = np.float64, weights: Any = None,
) -> Samples:  # fmt: skip
    """A linear model's data with noise; labels for losses of classes."""
    rows = matrix(n, d, density, seed, dtype)
    rng = np.random.default_rng(seed + 1)
    signal = rows @ rng.normal(size=d) + 0.1 * rng.normal(size=n)
    targets = np.where(signal > 0, 1.0, -1.0) if Loss.of(loss).of_classes else signal
    return Samples.of(csr_matrix(rows) if sparse else rows, targets, loss=loss, weights=weights)

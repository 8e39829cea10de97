"""Data of the shapes of the Mem-SGD paper's sets, made up: sparse rows as in RCV1, dense ones as in epsilon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from thinwire.extras import require

if TYPE_CHECKING:
    from thinwire.linear import Samples

SPARSE_D, ENTRIES, DENSE_D = 47_236, 70, 2_000
SHAPES = ("uniform", "skewed", "dense")
"""Columns equally popular; the j-th most popular one with a chance of 1/(j + 10), as words are; every column."""


def made_up(shape: str, samples: int) -> Samples:
    """Rows of norm one in float32, with labels of a random model."""
    from thinwire.linear import Samples

    rng = np.random.default_rng(0)
    rows = _dense(rng, samples) if shape == "dense" else _sparse(rng, samples, skewed=shape == "skewed")
    score = rows @ rng.normal(size=rows.shape[1]).astype(np.float32)
    return Samples.of(rows, np.where(score > 0, 1.0, -1.0))


def _dense(rng: np.random.Generator, samples: int) -> Any:
    rows = rng.standard_normal((samples, DENSE_D), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _sparse(rng: np.random.Generator, samples: int, *, skewed: bool) -> Any:
    matrix = require("scipy.sparse", "tasks", "sparse rows").csr_matrix
    columns = np.sort(np.array([_columns(rng, skewed) for _ in range(samples)]), axis=1)
    values = np.abs(rng.standard_normal((samples, ENTRIES), dtype=np.float32))
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    pointers = np.arange(0, samples * ENTRIES + 1, ENTRIES)
    return matrix((values.ravel(), columns.ravel(), pointers), shape=(samples, SPARSE_D))


def _columns(rng: np.random.Generator, skewed: bool) -> Any:
    """70 different columns."""
    if not skewed:
        return rng.choice(SPARSE_D, ENTRIES, replace=False, shuffle=False)
    drawn = np.empty(0, np.int64)
    while len(drawn) < ENTRIES:  # Zipf's law by inversion: P(rank < j) = log((j + 10)/10) / log((d + 10)/10)
        ranks = 10 * ((SPARSE_D + 10) / 10) ** rng.random(2 * ENTRIES) - 10
        drawn = np.unique(np.concatenate([drawn, ranks.astype(np.int64)]))
    return rng.permutation(drawn)[:ENTRIES] * 40_503 % SPARSE_D  # popular columns do not lie side by side

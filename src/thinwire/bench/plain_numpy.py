"""EF21 as its authors' scripts write it: dense matrices, one worker after the other, numpy alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.problems import FiniteSum

Vector = NDArray[np.float64]
Shards = list[tuple[Any, Vector]]


def dense_shards(problem: FiniteSum) -> Shards:
    """Each worker's rows as a dense float64 matrix, and its labels."""
    ends = zip(problem.offsets[:-1], problem.offsets[1:], strict=True)
    return [(_dense(problem.rows[first:last]), problem.targets[first:last]) for first, last in ends]


def _dense(rows: Any) -> Any:
    return rows if isinstance(rows, np.ndarray) else rows.toarray()


def gradient(A: Any, y: Vector, x: Vector, strength: float) -> Vector:
    """Of mean log(1 + exp(-y ⟨a, x⟩)) + λ Σ x²/(1 + x²)."""
    slopes = -y / (1 + np.exp(y * (A @ x)))
    found: Vector = A.T @ slopes / len(y) + 2 * strength * x / (1 + x**2) ** 2
    return found


def top_k(v: Vector, k: int) -> Vector:
    """The k entries of largest magnitude, by argpartition."""
    kept = np.zeros_like(v)
    chosen = np.argpartition(np.abs(v), -k)[-k:]
    kept[chosen] = v[chosen]
    return kept


def ef21(shards: Shards, x: Vector, strength: float, k: int, step: float) -> Iterator[tuple[Vector, float]]:
    """Each point and ‖∇f‖² there, without end: algorithm 2 with g_i = ∇f_i(x⁰) at the start."""
    gradients = np.stack([gradient(A, y, x, strength) for A, y in shards])
    locals_ = gradients.copy()
    while True:
        yield x, float(np.square(gradients.mean(0)).sum())
        x = x - step * locals_.mean(0)
        gradients = np.stack([gradient(A, y, x, strength) for A, y in shards])
        locals_ += np.stack([top_k(each - local, k) for each, local in zip(gradients, locals_, strict=True)])

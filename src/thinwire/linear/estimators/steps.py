"""The first step size, where the user gives none: what the loss and the memory bear."""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.linear import Loss, Samples
from thinwire.linear.rules import RANDOM, TOP, Code

CURVATURE = {Loss.LOGISTIC: 0.25, Loss.SQUARED: 1.0, Loss.HINGE: 1.0}
"""The largest ∂²ℓ/∂z². The hinge has none; 1 makes its steps those of the squared loss."""


def waiting(code: Code, d: int) -> float:
    """d/k: how many of its worker's steps a coordinate waits, about. What is large does not wait.

    >>> waiting(Code(TOP, remembers=True, kept=5), d=100)
    20.0
    """
    return d / (code.kept * code.probability) if code.writes in (TOP, RANDOM) else 1.0


def first_step(samples: Samples, code: Code, strength: float, workers: int, intercept: float) -> float:
    """η₀ = min(1/L, 1/(λa)) for L = max_i w_i ℓ″ (‖a_i‖² + b), a = max(2, W d/k): more lets one sample overshoot.

    η_t = η₀/(1 + η₀λt) is 1/(λ(t + a)) then, with the delay a ≥ W d/k that a memory needs, and λη < 1. A memory of
    which coordinates are drawn bears η h < 2p/(2 − p), p = k/(W d), where the mean loss has curvature h: of that, half.
    """
    rows = samples.rows
    norms = np.einsum("ij,ij->i", rows, rows) if samples.dense else _sums_of_squares(rows)
    largest = float(np.max(samples.weights * (norms + intercept)))
    smooth = 1 / (CURVATURE[samples.loss] * largest) if largest > 0 else 1.0
    delay = max(2.0, workers * waiting(code, samples.d))
    bounds = [smooth, *([1 / (strength * delay)] if strength > 0 else [])]
    if code.writes == RANDOM and code.remembers and largest > 0:
        bounds.append(1 / (workers * waiting(code, samples.d) * mean_curvature(samples)))
    return min(bounds)


def mean_curvature(samples: Samples) -> float:
    """λ_max of (1/n) Σ w_i ℓ″ a_i a_iᵀ, from below: ten steps of the power method."""
    rows, weights = samples.rows, samples.weights * CURVATURE[samples.loss] / len(samples)
    v, largest = np.random.default_rng(0).normal(size=samples.d), 0.0
    for _ in range(10):
        v = rows.T @ (weights * (rows @ (v / np.linalg.norm(v))))
        largest = float(np.linalg.norm(v))
        if largest == 0:
            break
    return max(largest, np.finfo(np.float64).tiny)


def _sums_of_squares(rows: Any) -> Any:
    return np.asarray(rows.multiply(rows).sum(axis=1)).ravel()

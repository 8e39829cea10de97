"""The problem and the lock-free engine of a run: rows of norm one in float32, labels −1 and +1, the least loss f*."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from thinwire import linear
from thinwire.errors import ConfigError
from thinwire.extras import require
from thinwire.linear import LockFree, Samples
from thinwire.papers.memsgd.settings import GENERATED, SGD, MemSGDSetting
from thinwire.problems import Dataset, load_dataset
from thinwire.problems.datasets import signs

GENERATED_D = 2_000
FIRST_SHARE = 0.38
"""Of a row's square in one direction: the largest eigenvalue of 200 real rows of epsilon. Their next ones are 0.015,
0.014, 0.011, 0.010, 0.009, 0.007, …, about what 200 rows show of a spectrum that falls as 1/√j."""
LOGIT = 8.0
"""Standard deviation of the true logits; f* is then 0.37 for 20,000 rows (epsilon: 0.28)."""
DENSE = 0.25
"""The share of numbers other than zero from which on rows are stored dense."""
GAMMA = 2.0
"""γ of figure 2's step sizes; the theorem has 8."""
START = 0.01
"""Standard deviation of x₀."""


@dataclass(frozen=True, eq=False)
class UnitRowProblem:
    """f(x) = (1/n) Σ log(1 + exp(−b_i ⟨a_i, x⟩)) + (λ/2)‖x‖² with λ = 1/n and no intercept, and its minimum f*."""

    name: str
    samples: Samples
    least: float

    @property
    def entries(self) -> float:
        """Numbers other than zero in a row."""
        rows = self.samples.rows
        return float(rows.shape[1] if self.samples.dense else rows.nnz / rows.shape[0])


@lru_cache(maxsize=4)
def problem_of(name: str, data: str | None) -> UnitRowProblem:
    """The data set of a name, or the file that `data` is; every row is scaled to norm one."""
    rows, labels = generated(_size(name)) if name.startswith(GENERATED) else _loaded(name, data)
    samples = Samples.of(rows, labels)
    return UnitRowProblem(name, samples, _least(samples))


def generated(samples: int) -> tuple[Any, Any]:
    """Rows with ±√0.38 along one direction and a spectrum of 1/√j beyond it; labels of a logistic model without it."""
    rng, transform = np.random.default_rng(2018), require("scipy.fft", "tasks", "the generated data").dct
    shares = np.arange(1.0, GENERATED_D) ** -0.5
    deviations = np.sqrt((1 - FIRST_SHARE) * shares / shares.sum()).astype(np.float32)
    parts = rng.standard_normal((samples, GENERATED_D), dtype=np.float32)
    parts[:, 0] = np.copysign(np.sqrt(FIRST_SHARE), parts[:, 0])
    parts[:, 1:] *= deviations
    parts /= np.linalg.norm(parts, axis=1, keepdims=True)
    score = parts[:, 1:] @ (deviations * rng.standard_normal(GENERATED_D - 1, dtype=np.float32))
    chance = 1 / (1 + np.exp(-LOGIT * score / score.std()))
    mixed = parts[:, rng.permutation(GENERATED_D)]
    rows = transform(mixed, norm="ortho", axis=1, overwrite_x=True)  # all columns have about the same variance then
    return rows, np.where(rng.random(samples) < chance, 1.0, -1.0)


def _size(name: str) -> int:
    size = name.removeprefix(f"{GENERATED}-")
    if not size.isdigit() or int(size) < 2:
        raise ConfigError(f"{name!r} names no size: write {GENERATED}-5000 for 5,000 rows, at least 2")
    return int(size)


def _loaded(name: str, data: str | None) -> tuple[Any, Any]:
    dataset: Dataset = load_dataset(name, data)
    return unit_rows(dataset.rows), signs(dataset.labels, dataset.name)


def unit_rows(rows: Any) -> Any:
    """float32 rows of norm one (but for empty ones), dense where a quarter of the numbers or more are not zero."""
    if hasattr(rows, "tocsr"):
        norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
        scale = require("scipy.sparse", "tasks", "sparse rows").diags(1 / np.where(norms > 0, norms, 1))
        rows = (scale @ rows).tocsr().astype(np.float32)
        return rows.toarray() if rows.nnz >= DENSE * rows.shape[0] * rows.shape[1] else rows
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(norms > 0, norms, 1)).astype(np.float32)


def _least(samples: Samples) -> float:
    """f*, by scikit-learn's Newton method: n f(x) = Σ log(1 + exp(·)) + ½‖x‖², which is its C = 1."""
    model = require("sklearn.linear_model", "tasks", "the least loss").LogisticRegression
    fitted = model(C=1.0, fit_intercept=False, solver="newton-cg", tol=1e-6).fit(samples.rows, samples.targets)
    return samples.objective(fitted.coef_[0], 1 / len(samples))


def engine_of(setting: MemSGDSetting, problem: UnitRowProblem) -> LockFree:
    """λ = 1/n. SGD on several threads writes without atomics, as Hogwild does."""
    schedule, regulariser, average = _choices(setting, 1 / len(problem.samples))
    start = START * np.random.default_rng(setting.seed).standard_normal(problem.samples.d)
    return LockFree(
        problem.samples, setting.rule, schedule, regulariser=regulariser, average=average, threads=setting.threads,
        memories=setting.memories if setting.threads == 1 else None, seed=setting.seed, start=start,
        atomic=setting.rule != SGD,
    )  # fmt: skip


def _choices(setting: MemSGDSetting, strength: float) -> tuple[linear.Schedule, linear.Regulariser, linear.Average]:
    """Figure 2 is as the paper prints it; in the others the regulariser is beside the memory and is never sent."""
    if setting.figure == "theory":
        return linear.Shifted(GAMMA, strength, setting.size), linear.InMemory(strength), linear.Weighted(setting.size)
    average: linear.Average = linear.Uniform() if setting.figure == "bits" else linear.Final()
    return linear.Bottou(setting.size, strength), linear.Decoupled(strength), average

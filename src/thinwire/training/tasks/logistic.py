"""Logistic regression with L2 regularisation, on breast cancer data or any two-class LIBSVM file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.errors import DataError
from thinwire.problems.datasets import breast_cancer, read_libsvm, signs
from thinwire.training.tasks.sampling import Indices, epoch_slice, seeded, split
from thinwire.training.tasks.task import Batch, Defaults, Task, register

MIN_ROWS = 10
CHUNK = 1024
"""Rows made dense at a time: a wide sparse file never stands in memory as a whole."""


def _linear(features: int) -> nn.Module:
    """One linear layer, started at zero: the problem is convex, so a seed changes the order of samples alone."""
    layer = nn.Linear(features, 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


@register
@final
@dataclass(frozen=True, eq=False)
class Logistic(Task):
    """f(w) = mean_j log(1 + exp(-y_j ⟨a_j, w⟩)) + λ/2 ‖w‖²,  λ = 1 / rows, y = ±1.

    The bias is the weight of a constant feature and is regularised like the others.
    """

    rows: Any
    """scipy CSR or numpy matrix of samples."""
    labels: Any
    source: str
    train: Indices
    test: Indices
    name: ClassVar[str] = "logistic"
    metric: ClassVar[str] = "accuracy"
    percent: ClassVar[bool] = True
    higher_is_better: ClassVar[bool] = True
    about: ClassVar[str] = "breast cancer, or the file of --data"
    reads: ClassVar[str | None] = "a two-class LIBSVM file, plain or .bz2, .gz, .xz"
    packages: ClassVar[Mapping[str, str]] = {"sklearn": "tasks", "scipy": "tasks"}
    defaults: ClassVar[Defaults] = Defaults(steps=400, batch=16, lr=0.5)

    @classmethod
    def load(cls, data: str | None = None) -> Logistic:
        """The LIBSVM file `data`, or scikit-learn's breast cancer data with standardised features."""
        path = Path(data) if data else None
        rows, labels = read_libsvm(path) if path else _breast_cancer()
        if len(labels) < MIN_ROWS:
            raise DataError(f"data file {path} has {len(labels)} rows; training and test need at least {MIN_ROWS}")
        return cls(rows, labels, path.name if path else "scikit-learn load_breast_cancer", *split(len(labels), 0.2))

    @property
    def strength(self) -> float:
        """λ of the regulariser."""
        return 1 / len(self.train)

    def model(self, seed: int) -> nn.Module:
        return seeded(seed, lambda: _linear(int(self.rows.shape[1])))

    def batch(self, seed: int, step: int, worker: int, workers: int, size: int) -> Batch:
        return self._select(self.train[epoch_slice(len(self.train), seed, step, worker, workers, size)])

    def _select(self, chosen: Indices) -> Batch:
        rows = self.rows[chosen]
        dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
        return torch.from_numpy(dense), torch.from_numpy(self.labels[chosen])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return functional.softplus(-batch[1] * model(batch[0]).squeeze(1)).mean() + self._penalty(model)

    def _penalty(self, model: nn.Module) -> Tensor:
        squares = torch.stack([parameter.square().sum() for parameter in model.parameters()])
        return 0.5 * self.strength * squares.sum()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        right, loss = self._over(model, self.test)
        objective = self._over(model, self.train)[1] + float(self._penalty(model))
        return {"accuracy": right, "loss": loss, "train_objective": objective}

    def _over(self, model: nn.Module, chosen: Indices) -> tuple[float, float]:
        """Accuracy and mean loss over all the `chosen` samples."""
        right = loss = 0.0
        for first in range(0, len(chosen), CHUNK):
            rows, labels = self._select(chosen[first : first + CHUNK])
            margins = labels * model(rows).squeeze(1)
            right += float((margins > 0).sum())
            loss += float(functional.softplus(-margins).sum())
        return right / len(chosen), loss / len(chosen)

    def facts(self) -> dict[str, str | int]:
        values = self.rows if isinstance(self.rows, np.ndarray) else self.rows.data
        digest = hashlib.sha256(np.ascontiguousarray(values).tobytes())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        return {
            "source": self.source,
            "train_samples": len(self.train),
            "test_samples": len(self.test),
            "features": int(self.rows.shape[1]),
            "sha256": digest.hexdigest(),
        }


def _breast_cancer() -> tuple[Any, Any]:
    rows, labels = breast_cancer()
    return rows.astype(np.float32), signs(labels, "the breast cancer data").astype(np.float32)

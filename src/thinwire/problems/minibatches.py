"""A finite sum of which each worker sees a few samples in each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.layout import Layout
from thinwire.ops import Key, randk_positions
from thinwire.problems.finite_sum import FiniteSum

BATCH = 1 << 21
"""The stream of keys that samples are drawn by: compressors and coins draw from others."""


@final
@dataclass(frozen=True, eq=False)
class Minibatches:
    """Gradients over max(1, ⌊share · Nᵢ⌋) of worker i's samples, drawn without replacement anew in each round.

    A round's samples depend on (seed, step) alone, so a gradient can be taken of the same ones at two points. Worker i
    takes those with the smallest of Nᵢ random words, as rand-k takes coordinates: one call draws for all workers.
    """

    problem: FiniteSum
    share: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"the share of a mini-batch must lie in (0, 1], got {self.share}")

    @property
    def workers(self) -> int:
        return self.problem.workers

    @property
    def counts(self) -> NDArray[np.int64]:
        """τᵢ, the samples of each worker's batch."""
        return np.maximum(1, (self.share * self.problem.sizes).astype(np.int64))

    def start(self) -> dict[str, Tensor]:
        return self.problem.start()

    def loss(self, x: Mapping[str, Tensor]) -> float:
        return self.problem.loss(x)

    def gradient(self, worker: int, x: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        return self._at(step).gradient(worker, x, 0)

    def full_gradient(self, worker: int, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.problem.full_gradient(worker, x)

    def all_gradients(self, x: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        return self._at(step).all_gradients(x, 0)

    def some_gradients(self, workers: Sequence[int], x: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        return self._at(step).some_gradients(workers, x, 0)

    def gradients_at(self, places: Tensor, x: Mapping[str, Tensor], step: int) -> Tensor:
        return self._at(step).gradients_at(places, x, 0)

    def all_full_gradients(self, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.problem.all_full_gradients(x)

    def _at(self, step: int) -> FiniteSum:
        return _batch(self, step)

    def draw(self, step: int) -> Any:
        """The rows of a round's batches, in the order of workers."""
        keys = Key(self.seed, step).stream(BATCH).across(torch.arange(self.workers))
        return randk_positions(self._shards, self.counts.tolist(), keys, torch.device("cpu")).numpy()

    @cached_property
    def _shards(self) -> Layout:
        """Every worker's samples as a piece."""
        return Layout.of([("samples", worker, (int(size),)) for worker, size in enumerate(self.problem.sizes)])


@lru_cache(maxsize=2)
def _batch(batches: Minibatches, step: int) -> FiniteSum:
    """A round's samples as a problem of their own."""
    problem, chosen = batches.problem, batches.draw(step)
    offsets = np.concatenate([[0], np.cumsum(batches.counts)])
    return replace(problem, rows=problem.rows[chosen], targets=problem.targets[chosen], offsets=offsets)

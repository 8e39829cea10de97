"""A finite sum of which each worker sees a few samples in each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.problems.finite_sum import FiniteSum


@final
@dataclass(frozen=True, eq=False)
class Minibatches:
    """Gradients over max(1, ⌊share · Nᵢ⌋) of worker i's samples, drawn without replacement anew in each round.

    A round's samples depend on (seed, step) alone, so a gradient can be taken of the same ones at two points.
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
        random = np.random.default_rng((self.seed, step))
        pairs = zip(self.problem.offsets[:-1], self.problem.sizes, self.counts, strict=True)
        return np.concatenate(
            [first + np.sort(random.choice(size, count, replace=False)) for first, size, count in pairs]
        )


@lru_cache(maxsize=2)
def _batch(batches: Minibatches, step: int) -> FiniteSum:
    """A round's samples as a problem of their own."""
    problem, chosen = batches.problem, batches.draw(step)
    offsets = np.concatenate([[0], np.cumsum(batches.counts)])
    return replace(problem, rows=problem.rows[chosen], targets=problem.targets[chosen], offsets=offsets)

"""Linear models on n workers: f = (1/n) Σ fᵢ with fᵢ(x) = mean of ℓ(⟨a, x⟩, y) over worker i's rows a, plus r(x)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.problems.shards import Shards, check_offsets
from thinwire.problems.terms import Penalty, SampleLoss
from thinwire.problems.worker_sums import DenseSums, SparseSums, WorkerSums
from thinwire.theory import Smoothness, least_squares_pl, linear_model_smoothness

Vector = NDArray[np.float64]
BLOCK_BYTES = 64 * 2**20
"""Dense gradients at a time, unless told otherwise."""


@final
@dataclass(frozen=True, eq=False)
class FiniteSum:
    """All workers' values and gradients cost one pass over the data, whatever their number.

    `rows` (a CSR or dense float64 matrix) is sorted by worker: worker i has rows[offsets[i]:offsets[i+1]]. Nothing of
    size n × d is made unless `gradients` is asked for: `data_gradients` stores what the data store, `gradient_blocks`
    gives dense blocks of some workers, `mean_gradient` and `value` need one vector. See `nbytes`.

    Arrays in float64; `start`, `gradient` and `loss` are what `thinwire.simulate` asks of a problem.
    """

    rows: Any
    targets: Vector
    offsets: NDArray[np.int64]
    sample_loss: SampleLoss
    regulariser: Penalty
    x0: Vector = field(default_factory=lambda: np.empty(0))
    """Where a simulation starts; unless given, numpy's default_rng(0).normal(size=d)."""

    @classmethod
    def of(cls, rows: Any, targets: Vector, shards: Shards, sample_loss: SampleLoss, regulariser: Penalty) -> FiniteSum:
        """Rows dealt out to workers as `shards` says; those of CSR by length within a worker, short ones first."""
        _check_targets(rows, targets)
        if shards.order.max() >= len(targets):
            raise ConfigError(
                f"the shards deal out row {shards.order.max()}; the data have {len(targets)}: split those"
            )
        order = shards.order if isinstance(rows, np.ndarray) else _by_length(rows, shards)
        return cls(rows[order], targets[order], shards.offsets, sample_loss, regulariser)

    def __post_init__(self) -> None:
        _check_targets(self.rows, self.targets)
        check_offsets(self.offsets, len(self.targets))
        self.sample_loss.check(self.targets)
        if not self.x0.size:
            object.__setattr__(self, "x0", np.random.default_rng(0).normal(size=self.d))
        if self.x0.shape != (self.d,):
            raise ConfigError(f"x0 has shape {self.x0.shape}; this problem has {self.d} coordinates")

    @property
    def workers(self) -> int:
        return len(self.offsets) - 1

    @property
    def d(self) -> int:
        return int(self.rows.shape[1])

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Nᵢ, the rows of each worker."""
        return np.diff(self.offsets)

    @cached_property
    def sums(self) -> WorkerSums:
        """The product that all workers' gradients are."""
        return (DenseSums if isinstance(self.rows, np.ndarray) else SparseSums)(self.rows, self.offsets)

    @property
    def nbytes(self) -> int:
        """Bytes held, all workers together: 8 a number of dense rows, at most 16 an entry of CSR rows (36 once
        `data_gradients` was asked for), and 20 a row.

        A worker as such adds 24: its offset, its size, and the pointers to its entries and sums.
        """
        rows = self.rows if isinstance(self.rows, np.ndarray) else self.rows.data
        structure = () if isinstance(self.rows, np.ndarray) else (self.rows.indices, self.rows.indptr)
        arrays = (rows, *structure, self.targets, self.offsets, self.sizes, self._shares, self.x0)
        return sum(int(array.nbytes) for array in arrays) + self.sums.nbytes

    # ------------------------------------------------------------------------------------------- values and gradients

    def predictions(self, x: Vector) -> Vector:
        """⟨a, x⟩ of every row, in the order of workers."""
        return self.sums.products(x)

    def values(self, x: Vector) -> Vector:
        """fᵢ(x) of every worker."""
        losses = self.sample_loss.value(self.predictions(x), self.targets)
        means: Vector = np.add.reduceat(losses * self._shares, self.offsets[:-1])
        return means + self.regulariser.value(x)

    def value(self, x: Vector) -> float:
        """f(x) = (1/n) Σ fᵢ(x)."""
        return float(self.values(x).mean())

    def weights(self, x: Vector) -> Vector:
        """ℓ′(⟨a, x⟩, y)/Nᵢ of every row: the gradients without r are its sums with the rows."""
        slopes: Vector = self.sample_loss.derivative(self.predictions(x), self.targets)
        slopes *= self._shares
        return slopes

    def data_gradients(self, x: Vector) -> Any:
        """∇fᵢ(x) − ∇r(x) of every worker, an n × d matrix stored as the rows are: CSR, or dense."""
        return self.sums.all(self.weights(x))

    def gradient_blocks(self, x: Vector, at_once: int | None = None) -> Iterator[tuple[int, Vector]]:
        """∇fᵢ(x) as dense blocks of `at_once` workers (64 MiB unless told), each with its first worker's number."""
        at_once = max(1, BLOCK_BYTES // (8 * self.d)) if at_once is None else at_once
        weights, common = self.weights(x), self.regulariser.gradient(x)
        for first in range(0, self.workers, at_once):
            block = self.sums.block(weights, first, min(first + at_once, self.workers))
            yield first, np.add(block, common, out=block)

    def gradients(self, x: Vector) -> Vector:
        """∇fᵢ(x) of every worker, dense n × d."""
        found = self.sums.block(self.weights(x), 0, self.workers)
        found += self.regulariser.gradient(x)
        return found

    def mean_gradient(self, x: Vector) -> Vector:
        """∇f(x) = (1/n) Σ ∇fᵢ(x), with one vector of memory."""
        gradient: Vector = self.rows.T @ self.weights(x) / self.workers + self.regulariser.gradient(x)
        return gradient

    @cached_property
    def _shares(self) -> Vector:
        """1/Nᵢ of every row."""
        return np.repeat(1 / self.sizes, self.sizes)

    # ---------------------------------------------------------------------------------------------------------- theory

    def smoothness(self) -> Smoothness:
        """L, Lᵢ and μ; the eigenvalues are found once."""
        return self._smoothness

    @cached_property
    def _smoothness(self) -> Smoothness:
        curvature, added = self.sample_loss.curvature, self.regulariser.smoothness
        strong = bool(self.regulariser.convexity)
        return linear_model_smoothness(self.rows, self.offsets, curvature, added, self._mu(), strong)

    def _mu(self) -> float | None:
        """Strong convexity of r; else the PL constant of squares; else none."""
        convexity = self.regulariser.convexity
        if convexity is None or convexity > 0:
            return convexity
        pl = least_squares_pl(self.rows, self.offsets) if self.sample_loss.convexity else None
        return None if pl is None else self.sample_loss.convexity * pl

    # --------------------------------------------------------------------------------------------- thinwire's simulate

    def start(self) -> dict[str, Tensor]:
        return {"x": torch.from_numpy(self.x0.copy())}

    def gradient(self, worker: int, x: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """One worker's ∇fᵢ(x); `step` changes nothing, since gradients are exact."""
        own = slice(self.offsets[worker], self.offsets[worker + 1])
        rows, point = self.rows[own], x["x"].numpy()
        slopes = self.sample_loss.derivative(rows @ point, self.targets[own])
        return {"x": torch.from_numpy(rows.T @ (slopes * self._shares[own]) + self.regulariser.gradient(point))}

    def full_gradient(self, worker: int, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.gradient(worker, x, 0)

    def all_gradients(self, x: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """Every worker's ∇fᵢ(x), one in each row, by one pass over the data."""
        return {"x": torch.from_numpy(self.gradients(x["x"].numpy()))}

    def some_gradients(self, workers: Sequence[int], x: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """Some workers' rows of `all_gradients`, by a pass over their data alone; of dense rows up to rounding."""
        if not workers:
            return {"x": torch.empty(0, self.d, dtype=torch.float64)}
        return self.of_workers(workers).all_gradients(x, step)

    def gradients_at(self, places: Tensor, x: Mapping[str, Tensor], step: int) -> Tensor:
        """Some numbers of `all_gradients` laid side by side, at rising places: nothing of size n × d is made of CSR
        rows."""
        point, wanted = x["x"].numpy(), places.numpy()
        found = self.sums.at(self.weights(point), wanted)
        found += self.regulariser.gradient(point)[wanted % self.d]
        return torch.from_numpy(found)

    def of_workers(self, workers: Sequence[int]) -> FiniteSum:
        """The problem that these workers have among themselves."""
        chosen = np.asarray(workers, np.int64)
        sizes = self.sizes[chosen]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        own = np.repeat(self.offsets[chosen] - offsets[:-1], sizes) + np.arange(offsets[-1])
        return replace(self, rows=self.rows[own], targets=self.targets[own], offsets=offsets)

    def all_full_gradients(self, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.all_gradients(x, 0)

    def loss(self, x: Mapping[str, Tensor]) -> float:
        return self.value(x["x"].numpy())


def _check_targets(rows: Any, targets: Vector) -> None:
    samples = int(rows.shape[0])
    if len(targets) != samples:
        raise ConfigError(f"{samples} rows need {samples} targets, got {len(targets)}: one for each row")


def _by_length(rows: Any, shards: Shards) -> NDArray[np.int64]:
    """Each worker's rows in the order of their entries' number: one pass over them is then up to twice as fast."""
    owners = np.repeat(np.arange(len(shards)), shards.sizes)
    order: NDArray[np.int64] = shards.order[np.lexsort((np.diff(rows.indptr)[shards.order], owners))]
    return order

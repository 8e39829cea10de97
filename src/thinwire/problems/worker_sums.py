"""The map w ↦ (Σ_{j of worker i} w_j a_j)_i: all workers' sums of weighted rows, in one pass over the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.extras import require
from thinwire.ops import row_products, row_sums, row_sums_at

Offsets = NDArray[np.int64]
Vector = NDArray[np.float64]
PURPOSE = "a problem with many workers"


class WorkerSums(ABC):
    """Rows sorted by worker: worker i has rows[offsets[i]:offsets[i+1]]."""

    def __init__(self, rows: Any, offsets: Offsets) -> None:
        self.rows, self.offsets = rows, offsets

    @property
    def workers(self) -> int:
        return len(self.offsets) - 1

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """What it holds beside the rows."""

    @abstractmethod
    def products(self, x: Vector) -> Vector:
        """⟨a, x⟩ of every row a."""

    @abstractmethod
    def all(self, weights: Vector) -> Any:
        """The n sums as an n × d matrix, stored as the rows are."""

    @abstractmethod
    def block(self, weights: Vector, first: int, last: int) -> Vector:
        """The sums of the workers first..last-1, dense."""

    @abstractmethod
    def at(self, weights: Vector, places: NDArray[np.int64]) -> Vector:
        """Some numbers of the n sums laid side by side, at rising places."""


@final
class DenseSums(WorkerSums):
    """Of a dense matrix: the product W A, where row i of the CSR matrix W holds the weights of worker i's rows."""

    def __init__(self, rows: Any, offsets: Offsets) -> None:
        super().__init__(rows, offsets)
        self._columns = np.arange(rows.shape[0], dtype=np.int32)

    @property
    def nbytes(self) -> int:
        return int(self._columns.nbytes)

    def products(self, x: Vector) -> Vector:
        found: Vector = self.rows @ x
        return found

    def all(self, weights: Vector) -> Any:
        return self.block(weights, 0, self.workers)

    def block(self, weights: Vector, first: int, last: int) -> Vector:
        start, stop = self.offsets[first], self.offsets[last]
        pointers = self.offsets[first : last + 1] - start
        block = (weights[start:stop], self._columns[: stop - start], pointers)
        matrix = require("scipy.sparse", "tasks", PURPOSE).csr_matrix(block, shape=(last - first, stop - start))
        found: Vector = matrix @ self.rows[start:stop]
        return found

    def at(self, weights: Vector, places: NDArray[np.int64]) -> Vector:
        """By all of them, which are no more than the data."""
        found: Vector = self.all(weights).reshape(-1)[places]
        return found


@dataclass(frozen=True, eq=False)
class Pairs:
    """Of a CSR matrix: one product with a matrix that has a row for every (worker, coordinate) pair in the data.

    There are P ≤ min(nnz, nd) such pairs, and its nnz entries are those of the rows in another order: it takes
    12 nnz + 8 P bytes, however many workers there are. Where worker i lacks coordinate l nothing is stored or computed.
    """

    gather: Any
    columns: NDArray[np.int32]
    """The coordinate of each pair; worker i's are columns[pointers[i]:pointers[i+1]], in rising order."""
    pointers: NDArray[np.int32]
    d: int

    @classmethod
    def of(cls, rows: Any, offsets: Offsets) -> Pairs:
        (count, d), workers = rows.shape, len(offsets) - 1
        of_entry = np.repeat(np.arange(count), np.diff(rows.indptr))
        pairs = np.repeat(np.arange(workers), np.diff(offsets))[of_entry] * d + rows.indices
        order = np.argsort(pairs, kind="stable")
        distinct, starts = np.unique(pairs[order], return_index=True)
        entries = (rows.data[order], of_entry[order], np.append(starts, len(pairs)))
        gather = require("scipy.sparse", "tasks", PURPOSE).csr_matrix(entries, shape=(len(distinct), count))
        pointers = np.searchsorted(distinct, np.arange(workers + 1) * d).astype(np.int32)
        return cls(gather, (distinct % d).astype(np.int32), pointers, d)

    @property
    def nbytes(self) -> int:
        arrays = (self.gather.data, self.gather.indices, self.gather.indptr, self.columns, self.pointers)
        return sum(int(array.nbytes) for array in arrays)

    def sums(self, weights: Vector) -> Any:
        """The n sums as a CSR matrix."""
        sums = (self.gather @ weights, self.columns, self.pointers)
        return require("scipy.sparse", "tasks", PURPOSE).csr_matrix(sums, shape=(len(self.pointers) - 1, self.d))


@final
class SparseSums(WorkerSums):
    """Of a CSR matrix: its entries in their order, each added to its worker's sum."""

    def __init__(self, rows: Any, offsets: Offsets) -> None:
        super().__init__(rows, offsets)
        self._csr, self._offsets = _csr(rows), torch.from_numpy(offsets)

    @property
    def nbytes(self) -> int:
        pairs = vars(self).get("_pairs")
        return int(self._csr[1].nbytes) + (pairs.nbytes if pairs else 0)

    @cached_property
    def _pairs(self) -> Pairs:
        return Pairs.of(self.rows, self.offsets)

    def all(self, weights: Vector) -> Any:
        return self._pairs.sums(weights)

    def products(self, x: Vector) -> Vector:
        return _array(row_products(*self._csr, torch.from_numpy(x)))

    def block(self, weights: Vector, first: int, last: int) -> Vector:
        own = self._offsets[first : last + 1]
        return _array(row_sums(*self._csr, torch.from_numpy(weights), own, self.rows.shape[1]))

    def at(self, weights: Vector, places: NDArray[np.int64]) -> Vector:
        """By all of them where they are no more than the entries: 20 workers of w8a take 0.3 ms so, and 0.7 else."""
        if self.workers * self.rows.shape[1] <= self.rows.nnz:
            return self.block(weights, 0, self.workers).reshape(-1)[places]
        given, wanted = torch.from_numpy(weights), torch.from_numpy(places)
        return _array(row_sums_at(*self._csr, given, self._offsets, self.rows.shape[1], wanted))


def _csr(matrix: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Pointers, columns (in 16 bits where these will do), and values; one where all are equal."""
    columns = matrix.indices.astype(np.uint16) if matrix.shape[1] <= 1 << 16 else matrix.indices
    values = matrix.data[:1] if matrix.data.size and (matrix.data == matrix.data[0]).all() else matrix.data
    return torch.from_numpy(matrix.indptr), torch.from_numpy(columns), torch.from_numpy(values)


def _array(tensor: Tensor) -> Vector:
    found: Vector = tensor.numpy()
    return found

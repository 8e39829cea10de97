"""The map w ↦ (Σ_{j of worker i} w_j a_j)_i: all workers' sums of weighted rows, in one pass over the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.extras import require
from thinwire.ops import row_products, row_sums

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
    def blocks(self, weights: Vector, at_once: int) -> Iterator[tuple[int, Vector]]:
        """The same as dense blocks of up to `at_once` workers, each with the number of its first worker."""


@final
class DenseSums(WorkerSums):
    """Of a dense matrix: the product W A, where row i of the CSR matrix W holds the weights of worker i's rows."""

    @property
    def nbytes(self) -> int:
        return int(self._columns.nbytes)

    @cached_property
    def _columns(self) -> NDArray[np.int32]:
        return np.arange(self.rows.shape[0], dtype=np.int32)

    def products(self, x: Vector) -> Vector:
        found: Vector = self.rows @ x
        return found

    def all(self, weights: Vector) -> Any:
        return self._block(weights, 0, self.workers)

    def blocks(self, weights: Vector, at_once: int) -> Iterator[tuple[int, Vector]]:
        for first in range(0, self.workers, at_once):
            yield first, self._block(weights, first, min(first + at_once, self.workers))

    def _block(self, weights: Vector, first: int, last: int) -> Any:
        start, stop = self.offsets[first], self.offsets[last]
        pointers = self.offsets[first : last + 1] - start
        block = (weights[start:stop], self._columns[: stop - start], pointers)
        matrix = require("scipy.sparse", "tasks", PURPOSE).csr_matrix(block, shape=(last - first, stop - start))
        return matrix @ self.rows[start:stop]


@final
class SparseSums(WorkerSums):
    """Of a CSR matrix: one product with a matrix that has a row for every (worker, coordinate) pair in the data.

    There are P ≤ min(nnz, nd) such pairs, and its nnz entries are those of the rows in another order: it takes
    12 nnz + 8 P bytes, however many workers there are. Where worker i lacks coordinate l nothing is stored or computed.
    """

    @property
    def nbytes(self) -> int:
        arrays = (self._gather.data, self._gather.indices, self._gather.indptr, self._columns, self._pointers)
        return sum(int(array.nbytes) for array in arrays)

    def all(self, weights: Vector) -> Any:
        sums = (self._gather @ weights, self._columns, self._pointers)
        shape = (self.workers, self.rows.shape[1])
        return require("scipy.sparse", "tasks", PURPOSE).csr_matrix(sums, shape=shape)

    def products(self, x: Vector) -> Vector:
        found: Vector = row_products(*self._csr, torch.from_numpy(x)).numpy()
        return found

    def blocks(self, weights: Vector, at_once: int) -> Iterator[tuple[int, Vector]]:
        offsets, slopes = torch.from_numpy(self.offsets), torch.from_numpy(weights)
        for first in range(0, self.workers, at_once):
            own = offsets[first : first + at_once + 1]
            yield first, row_sums(*self._csr, slopes, own, self.rows.shape[1]).numpy()

    @cached_property
    def _csr(self) -> tuple[Tensor, Tensor, Tensor]:
        """Pointers, columns and values, as views of the rows."""
        arrays = (self.rows.indptr, self.rows.indices, self.rows.data)
        pointers, columns, values = (torch.from_numpy(array) for array in arrays)
        return pointers, columns, values

    @cached_property
    def _pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Entries of the rows in the order of their pairs; each distinct pair i·d + l; where its entries begin."""
        of_row = np.repeat(np.arange(self.workers), np.diff(self.offsets))
        pairs = np.repeat(of_row, np.diff(self.rows.indptr)) * self.rows.shape[1] + self.rows.indices
        order = np.argsort(pairs, kind="stable")
        distinct, starts = np.unique(pairs[order], return_index=True)
        return order, distinct, np.append(starts, len(pairs))

    @cached_property
    def _gather(self) -> Any:
        order, distinct, starts = self._pairs
        of_entry = np.repeat(np.arange(self.rows.shape[0]), np.diff(self.rows.indptr))
        parts = (self.rows.data[order], of_entry[order], starts)
        shape = (len(distinct), self.rows.shape[0])
        return require("scipy.sparse", "tasks", PURPOSE).csr_matrix(parts, shape=shape)

    @cached_property
    def _columns(self) -> NDArray[np.int32]:
        columns: NDArray[np.int64] = self._pairs[1] % self.rows.shape[1]
        return columns.astype(np.int32)

    @cached_property
    def _pointers(self) -> NDArray[np.int32]:
        firsts = np.arange(self.workers + 1) * self.rows.shape[1]
        pointers: NDArray[np.int64] = np.searchsorted(self._pairs[1], firsts)
        return pointers.astype(np.int32)

"""Products with the rows of a CSR matrix and sums of them, on the CPU: one pass over the entries each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.ops.cpu.threads import at_once, bounds


@njit(nogil=True, cache=True)
def _products(
    pointers: Any, columns: Any, values: Any, x: Any, begin: int, end: int, out: Any
) -> None:  # pragma: no cover
    for row in range(begin, end):
        total = x.dtype.type(0)
        for entry in range(pointers[row], pointers[row + 1]):
            total += values[entry] * x[np.uint64(columns[entry])]
        out[row] = total


@njit(nogil=True, cache=True)
def _sums(
    pointers: Any, columns: Any, values: Any, weights: Any, offsets: Any, begin: int, end: int, out: Any
) -> None:  # pragma: no cover
    for group in range(begin, end):
        total = out[group]
        total[:] = 0
        for row in range(offsets[group], offsets[group + 1]):
            weight = weights[row]
            for entry in range(pointers[row], pointers[row + 1]):
                total[np.uint64(columns[entry])] += weight * values[entry]


def row_products(pointers: Tensor, columns: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """See `reference.row_products`: every thread takes rows with as many entries."""
    out = torch.empty(pointers.numel() - 1, dtype=x.dtype)
    a, b, c, d, e = (part.numpy() for part in (pointers, columns, values, x, out))
    _shared(lambda begin, end: _products(a, b, c, d, begin, end, e), a)
    return out


def row_sums(pointers: Tensor, columns: Tensor, values: Tensor, weights: Tensor, offsets: Tensor, width: int) -> Tensor:
    """See `reference.row_sums`: every thread takes groups with as many entries and numbers to write."""
    out = torch.empty(offsets.numel() - 1, width, dtype=weights.dtype)
    a, b, c, d, e, f = (part.numpy() for part in (pointers, columns, values, weights, offsets, out))
    _shared(lambda begin, end: _sums(a, b, c, d, e, begin, end, f), a[e] + width * np.arange(len(e)))
    return out


def _shared(task: Callable[[int, int], None], work: Any) -> None:
    """task(begin, end) over parts of 0..len(work)-1 with equal shares of the work, which is given added up."""
    cuts = np.searchsorted(work, bounds(int(work[-1])))
    cuts[0], cuts[-1] = 0, len(work) - 1
    at_once(lambda i: task(int(cuts[i]), int(cuts[i + 1])), len(cuts) - 1)

"""Whether all numbers are finite, in one pass that reads 4 bytes a float32 and writes nothing, compiled by numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

CHUNK = 4096
"""Numbers between two looks at what was found: a chunk's loop has no exit, so that it becomes vector code."""


@njit(nogil=True, cache=True)
def first_bad(bits: Any, mask: Any, begin: int, end: int) -> int:  # pragma: no cover
    """The first place in [begin, end) of an infinity or NaN, or -1: there all bits of the exponent are set."""
    infinity = mask[1]
    for start in range(begin, end, CHUNK):
        stop = min(start + CHUNK, end)
        largest = bits[start] & mask[0]
        for i in range(start, stop):
            largest = max(largest, bits[i] & mask[0])
        if largest >= infinity:
            for i in range(start, stop):
                if bits[i] & mask[0] >= infinity:
                    return i
    return -1


def masks(dtype: Any) -> Any:
    """The bits of a magnitude, and those of infinity, as an integer array."""
    if dtype == np.float32:
        return np.array([0x7FFFFFFF, 0x7F800000], np.int32)
    return np.array([0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000], np.int64)

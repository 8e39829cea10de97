"""Positions to bytes and back, and sparse addition, on the CPU: one pass over k numbers each, compiled by numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def pack(positions: Any, width: int, low: Any, bitmap: Any) -> None:  # pragma: no cover
    """Low parts as consecutive `width`-bit fields, high parts as marks in the (zeroed) bitmap; lowest bit first."""
    held, bits, byte = np.uint64(0), 0, 0
    field = np.uint64((1 << width) - 1)
    for i in range(positions.size):
        position = positions[i]
        mark = (position >> width) + i
        bitmap[mark >> 3] |= np.uint8(1 << (mark & 7))
        held |= (np.uint64(position) & field) << np.uint64(bits)
        bits += width
        while bits >= 8:
            low[byte] = np.uint8(held & np.uint64(255))
            held >>= np.uint64(8)
            bits -= 8
            byte += 1
    if bits:
        low[byte] = np.uint8(held & np.uint64(255))


_ORDER = np.uint64(0x03F79D71B4CB0A89)  # a de Bruijn sequence: its six top bits differ for each of 64 shifts
_PLACE = np.zeros(64, np.int64)
for _shift in range(64):
    _PLACE[(int(_ORDER) << _shift & 0xFFFFFFFFFFFFFFFF) >> 58] = _shift


@njit(nogil=True, cache=True)
def unpack(low: Any, bitmap: Any, width: int, length: int, positions: Any) -> tuple[int, bool]:  # pragma: no cover
    """The number of marks in the bitmap, and whether the positions ascend; fills as many as there is room for.

    Words of 64 bits, and from mark to mark by the lowest set bit: 44 % of the bits are marks, so testing each one would
    mislead the branch predictor at every other.
    """
    count: Any = 0
    ascending: Any = True
    last: Any = -1
    held, bits, byte = np.uint64(0), 0, 0
    field = np.uint64((1 << width) - 1)
    for start in range(0, length, 64):
        word = np.uint64(0)
        for j in range(min(8, bitmap.size - start // 8)):
            word |= np.uint64(bitmap[start // 8 + j]) << np.uint64(8 * j)
        if length - start < 64:
            word &= (np.uint64(1) << np.uint64(length - start)) - np.uint64(1)
        while word:
            lowest = word & (~word + np.uint64(1))
            word ^= lowest
            if count < positions.size:
                while bits < width:
                    held |= np.uint64(low[byte]) << np.uint64(bits)
                    bits += 8
                    byte += 1
                mark = start + _PLACE[np.int64((lowest * _ORDER) >> np.uint64(58))]
                position = ((mark - count) << width) | np.int64(held & field)
                held >>= np.uint64(width)
                bits -= width
                ascending &= position > last
                positions[count] = last = position
            count += 1
    return count, ascending


@njit(nogil=True, cache=True)
def add(out: Any, positions: Any, values: Any, alpha: Any) -> None:  # pragma: no cover
    for i in range(positions.size):
        out[positions[i]] += alpha * values[i]

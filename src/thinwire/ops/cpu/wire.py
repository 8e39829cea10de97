"""Positions to bytes and back, sparse addition, and a look for infinities on the CPU, compiled by numba.

To decode on several threads, the marks of each thread's share of the map are counted first: the map of 25 M numbers of
which 1 % are kept takes 80 kB, and its marks are counted in 11 microseconds.

Bytes moved for each position: 16 to pack (8 read twice) and its code, w low bits and some two of the map, written; the
code read and 8 written to unpack; to add, 12 read for each entry, and the cache line of 64 about its place read and
written. 250,000 positions of 25 M on two cores of a busy EPYC: 0.7 to 1.3 ms to pack and 1.3 ms to unpack; adding such
a message takes 2.3 ms, 0.3 of an in-place add of all, adding four 1.4 of it, and unpacking and adding four 0.7 to 1.3
times a memory's step. `thinwire bench wire` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import reference
from thinwire.ops.cpu.bit_fields import WIDEST, pack_codes, word_at
from thinwire.ops.cpu.compiler import compiled
from thinwire.ops.cpu.intrinsics import lowest, ones
from thinwire.ops.cpu.threads import SMALLEST_SHARE, at_once, bounds, in_parallel

ONE = np.uint64(1)
BLOCK = 1 << 12
"""Numbers of an output that are cleared, added to and divided before the next: 16 kB of float32."""


@compiled
def _mark(positions: Any, width: int, bitmap: Any) -> None:  # pragma: no cover
    """High parts as marks in the (zeroed) words of the map, each word written once."""
    word, place = np.uint64(0), np.int64(0)
    for i in range(positions.size):
        mark = (positions[i] >> width) + i
        if mark >> 6 != place:
            bitmap[place] = word
            word, place = np.uint64(0), mark >> 6
        word |= ONE << np.uint64(mark & 63)
    if positions.size:
        bitmap[place] = word


@compiled
def _sum_gaps(positions: Any, width: int, sums: Any) -> None:  # pragma: no cover
    last, total = -1, 0
    for i in range(positions.size):
        gap = positions[i] - last - 1
        last = positions[i]
        total += gap >> width
        sums[i] = (total << width) | (gap & ((1 << width) - 1))


@compiled
def _add_up_(sums: Any, width: int) -> None:  # pragma: no cover
    last, before = -1, 0
    for i in range(sums.size):
        total = sums[i] >> width
        last += (((total - before) << width) | (sums[i] & ((1 << width) - 1))) + 1
        before = total
        sums[i] = last


@compiled(inline="always")
def _word(bitmap: Any, length: int, start: int) -> Any:  # pragma: no cover
    """The 64 bits of the map from bit `start` on, none from `length` on."""
    word = word_at(bitmap, start >> 3)
    return word if length - start >= 64 else word & ((ONE << np.uint64(length - start)) - ONE)


@compiled
def _marks(bitmap: Any, length: int, begin: int, end: int) -> int:  # pragma: no cover
    """How many marks stand in the words of the map that begin in [begin, end)."""
    count = 0
    for start in range(begin, end, 64):
        count += ones(_word(bitmap, length, start))
    return count


@compiled
def _unpack(
    low: Any, bitmap: Any, width: int, length: int, begin: int, end: int, before: int, positions: Any
) -> bool:  # pragma: no cover
    """The positions whose marks stand in [begin, end) of the map, `before` of them ahead: whether they ascend.

    There must be room for as many as `_marks` counts. From mark to mark by the lowest set bit: 44 % of the bits are
    marks, so testing each one would mislead the branch predictor at every other.
    """
    ascending = True
    last: Any = -1
    count = before
    field = (ONE << np.uint64(width)) - ONE
    for start in range(begin, end, 64):
        word = _word(bitmap, length, start)
        while word:
            place = count * width
            rest = (word_at(low, place >> 3) >> np.uint64(place & 7)) & field
            position = ((start + lowest(word) - count) << width) | np.int64(rest)
            ascending &= position > last
            positions[count] = last = position
            count += 1
            word &= word - ONE
    return ascending


@compiled
def _unpack_rows(
    low: Any, bitmap: Any, width: int, length: int, bound: int, positions: Any, marks: Any, sound: Any
) -> None:  # pragma: no cover
    """Several codes of one shape, one after the other."""
    for r in range(positions.shape[0]):
        count = positions.shape[1]
        marks[r] = _marks(bitmap[r], length, 0, length)
        if marks[r] == count:
            ascending = _unpack(low[r], bitmap[r], width, length, 0, length, 0, positions[r])
            sound[r] = ascending and (count == 0 or positions[r, count - 1] < bound)


@compiled
def _add(out: Any, positions: Any, values: Any, alpha: Any) -> None:  # pragma: no cover
    for i in range(positions.size):  # unsigned: no place counts from the end (one thread: 8 to 18 % faster)
        out[np.uint64(positions[i])] += alpha * values[i]


@compiled(error_model="numpy")
def _mean(
    out: Any, begin: int, end: int, places: Any, values: Any, cursors: Any, stops: Any, count: Any
) -> None:  # pragma: no cover
    for start in range(begin, end, BLOCK):
        stop = min(start + BLOCK, end)
        block = out[start:stop]
        block[:] = 0
        for vector in range(cursors.size):
            i = cursors[vector]
            while i < stops[vector] and places[i] < stop:
                out[np.uint64(places[i])] += values[i]
                i += 1
            cursors[vector] = i
        if count != 1:
            for i in range(block.size):
                block[i] /= count


@compiled
def _add_folded(out: Any, positions: Any, values: Any, alpha: Any) -> None:  # pragma: no cover
    start = 0
    for i in range(positions.size):
        while positions[i] - start >= out.size:
            start += out.size
        out[np.uint64(positions[i] - start)] += alpha * values[i]


def pack_positions(positions: Tensor, width: int, length: int) -> tuple[Tensor, Tensor]:
    """See `reference.pack_positions`: the fields by all threads, the marks by one."""
    low = pack_codes(positions, width) if width else torch.empty(0, dtype=torch.uint8)
    # zeros by numpy: torch's own threads would be left spinning (see `payload.message`)
    bitmap = np.zeros((length + 63) // 64, np.uint64)
    _mark(positions.numpy(), width, bitmap)
    return _whole_words(low), torch.from_numpy(bitmap.view(np.uint8)[: (length + 31) // 32 * 4])


def _whole_words(packed: Tensor) -> Tensor:
    """Bytes filled up with zeros to whole words of four."""
    missing = -packed.numel() % 4
    return torch.from_numpy(np.concatenate([packed.numpy(), np.zeros(missing, np.uint8)])) if missing else packed


def sums_of_gaps(positions: Tensor, width: int) -> Tensor:
    """See `reference.sums_of_gaps`."""
    sums = torch.empty_like(positions)
    _sum_gaps(positions.numpy(), width, sums.numpy())
    return sums


def positions_of_sums_(sums: Tensor, width: int) -> Tensor:
    """See `reference.positions_of_sums_`."""
    _add_up_(sums.numpy(), width)
    return sums


def unpack_positions(
    low: Tensor, bitmap: Tensor, width: int, length: int, count: int, bound: int
) -> tuple[Tensor, int | Tensor, bool | Tensor]:
    """See `reference.unpack_positions`."""
    if width > WIDEST:
        return reference.unpack_positions(low, bitmap, width, length, count, bound)
    if low.dim() == 1:
        positions = torch.empty(count, dtype=torch.int64)
        return positions, *_unpack_into(positions, low.numpy(), bitmap.numpy(), width, length, bound)
    rows = torch.empty(low.shape[0], count, dtype=torch.int64)
    marks, sound = np.zeros(low.shape[0], np.int64), np.zeros(low.shape[0], np.bool_)
    if len(bounds(length)) == 2:
        _unpack_rows(low.numpy(), bitmap.numpy(), width, length, bound, rows.numpy(), marks, sound)
    for r in np.flatnonzero(~sound):  # those that threads share, and those that are not as they should be
        marks[r], sound[r] = _unpack_into(rows[r], low[r].numpy(), bitmap[r].numpy(), width, length, bound)
    return rows, torch.from_numpy(marks), torch.from_numpy(sound)


def _unpack_into(positions: Tensor, fields: Any, marks: Any, width: int, length: int, bound: int) -> tuple[int, bool]:
    """Write positions where they are wanted: how many marks there are, and whether all is as it should be."""
    count, ends = positions.numel(), bounds(length)
    shares = len(ends) - 1
    before = [0] * (shares + 1)
    for i in range(shares):
        before[i + 1] = before[i] + _marks(marks, length, ends[i], ends[i + 1])
    if before[-1] != count:
        positions.zero_()
        return before[-1], False
    target = positions.numpy()
    ascending = at_once(
        lambda i: _unpack(fields, marks, width, length, ends[i], ends[i + 1], before[i], target), shares
    )
    joined = all(target[i - 1] < target[i] for i in before[1:-1] if 0 < i < count)
    sound = all(ascending) and joined and (count == 0 or int(target[-1]) < bound)
    if not sound and length << width > bound:  # else no position can reach it
        positions.clamp_(max=bound - 1)
    return count, sound


def add_at_(out: Tensor, positions: Tensor, values: Tensor, alpha: float) -> Tensor:
    """See `reference.add_at_`."""
    _add(out.numpy(), positions.numpy(), values.numpy(), out.numpy().dtype.type(alpha))
    return out


def add_each_at_(out: Tensor, positions: Sequence[Tensor], values: Sequence[Tensor], alpha: float) -> Tensor:
    """See `reference.add_each_at_`: every thread adds all of them, in their order, to its share of the output."""
    array = out.numpy()
    lists = [(places.numpy(), entries.numpy()) for places, entries in zip(positions, values, strict=True)]

    def add(_: int, begin: int, end: int) -> None:
        for places, entries in lists:
            mine = slice(*np.searchsorted(places, (begin, end)))
            _add(array, places[mine], entries[mine], array.dtype.type(alpha))

    in_parallel(add, out.numel())
    return out


def mean_at_(out: Tensor, positions: Sequence[Tensor], values: Sequence[Tensor], count: int) -> Tensor:
    """See `reference.mean_at_`: cleared, added up and divided block by block, while a block is in the cache. 10 M
    float32 and two vectors of 100,000 take 1.4 ms on one core of an EPYC in place of 2.2."""
    array, lists = out.numpy(), [places.numpy() for places in positions]
    places = np.concatenate([*lists, np.empty(0, np.int64)])
    entries = np.concatenate([*(each.numpy() for each in values), np.empty(0, array.dtype)])
    ends = np.cumsum([0, *(each.size for each in lists)])
    ahead, n = ends[:-1], array.dtype.type(count)
    if len(bounds(array.size)) == 2:  # one share: looking for where it begins takes 10 microseconds
        _mean(array, 0, array.size, places, entries, ahead.copy(), ends[1:].copy(), n)
        return out

    def mean(_: int, begin: int, end: int) -> None:
        edges = np.array([np.searchsorted(each, (begin, end)) for each in lists], np.int64).reshape(-1, 2)
        edges += ahead[:, None]
        _mean(array, begin, end, places, entries, edges[:, 0].copy(), edges[:, 1].copy(), n)

    in_parallel(mean, out.numel())
    return out


def add_folded_(out: Tensor, positions: Tensor, values: Tensor, alpha: float) -> Tensor:
    """See `reference.add_folded_`."""
    _add_folded(out.numpy(), positions.numpy(), values.numpy(), out.numpy().dtype.type(alpha))
    return out


CLEAR = torch.tensor(-1)
"""No piece, made once: a new one takes 2 microseconds."""


def first_nonfinite(x: Tensor, layout: Layout) -> Tensor:
    """See `reference.first_nonfinite`: a short vector is cleared by its product with itself, in 5 microseconds where
    torch's sum takes 20; one that is too large for it is looked at again."""
    short = x.numel() <= SMALLEST_SHARE and x.dtype in (torch.float32, torch.float64)
    if short and math.isfinite(x.dot(x).item()):
        return CLEAR
    return reference.first_nonfinite(x, layout)

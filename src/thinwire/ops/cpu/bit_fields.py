"""Numbers of a few bits side by side in bytes, lowest bit first, compiled by numba.

A group of numbers lies in lanes: bytes up to eight bits wide, two bytes up to sixteen, else words. Words of eight or of
four lanes have their gaps closed (or opened) in three or two steps, each of which moves every other field next to its
neighbour. Wider numbers go through an accumulator, byte by byte.

Bytes moved for each number: codes of w bits 8 + w/8 either way (they are integers of 8 bytes outside), bits 1 1/8; a
group in lanes stays in the cache. 25 M numbers on two cores of a busy EPYC, as multiples of an in-place add (12 bytes)
beside it, medians of 8: codes of 4 or 5 bits 2.5 to pack, 21 to unpack into new memory; bits 1.1 and 0.6. The kernels
of `quantise` join and split groups without the integers of 8 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.ops import reference
from thinwire.ops.cpu import intrinsics
from thinwire.ops.cpu.compiler import compiled
from thinwire.ops.cpu.threads import in_parallel

GROUP = 512
"""Numbers packed at a time: what lies between stays in the first cache."""
WIDEST = 56
"""Bits that fit the accumulator beside the seven that may wait in it."""


def lane(width: int) -> Any:
    """The type of a group's lanes for fields of `width` bits."""
    return np.uint8 if width <= 8 else np.uint16 if width <= 16 else np.uint64


@compiled(inline="always")
def _ones(width: int) -> Any:  # pragma: no cover
    return (np.uint64(1) << np.uint64(width)) - np.uint64(1)


@compiled(inline="always")
def _nearer(v: Any, low: Any, width: int, lane: int) -> Any:  # pragma: no cover
    """Of every two lanes, the upper one's field moved down to the lower one's, whose place the mask `low` holds."""
    return (v & low) | ((v >> np.uint64(lane - width)) & (low << np.uint64(width)))


@compiled(inline="always")
def _apart(v: Any, low: Any, width: int, lane: int) -> Any:  # pragma: no cover
    """The reverse of `_nearer`."""
    return (v & low) | ((v & (low << np.uint64(width))) << np.uint64(lane - width))


@compiled
def _close_bytes(gaps: Any, width: int) -> None:  # pragma: no cover
    """Each word's eight bytes become eight fields of `width` bits at its low end."""
    one = _ones(width) * np.uint64(0x0001000100010001)
    two, four = _ones(2 * width) * np.uint64(0x0000000100000001), _ones(4 * width)
    for i in range(gaps.size):
        v = _nearer(gaps[i], one, width, 8)
        gaps[i] = _nearer(_nearer(v, two, 2 * width, 16), four, 4 * width, 32)


@compiled
def _open_bytes(gaps: Any, width: int) -> None:  # pragma: no cover
    one = _ones(width) * np.uint64(0x0001000100010001)
    two, four = _ones(2 * width) * np.uint64(0x0000000100000001), _ones(4 * width)
    for i in range(gaps.size):
        v = _apart(_apart(gaps[i], four, 4 * width, 32), two, 2 * width, 16)
        gaps[i] = _apart(v, one, width, 8)


@compiled
def _close_pairs(gaps: Any, width: int) -> None:  # pragma: no cover
    """Each word's four lanes of two bytes become four fields of `width` bits at its low end."""
    one, two = _ones(width) * np.uint64(0x0000000100000001), _ones(2 * width)
    for i in range(gaps.size):
        gaps[i] = _nearer(_nearer(gaps[i], one, width, 16), two, 2 * width, 32)


@compiled
def _open_pairs(gaps: Any, width: int) -> None:  # pragma: no cover
    one, two = _ones(width) * np.uint64(0x0000000100000001), _ones(2 * width)
    for i in range(gaps.size):
        gaps[i] = _apart(_apart(gaps[i], two, 2 * width, 32), one, width, 16)


@compiled(inline="always")
def _put(packed: Any, place: int, end: int, word: Any) -> None:  # pragma: no cover
    """A word's bytes from packed[place] on, none from `end` on."""
    if place + 8 <= end:
        intrinsics.store_word_(packed, place, word)
    else:
        for k in range(place, end):
            packed[k] = np.uint8((word >> np.uint64(8 * (k - place))) & np.uint64(255))


@compiled(inline="always")
def word_at(packed: Any, place: int) -> Any:  # pragma: no cover
    """The eight bytes from packed[place] on as a word, zeros after the end."""
    if place + 8 <= packed.size:
        return intrinsics.load_word(packed, place)
    word = np.uint64(0)
    for k in range(place, packed.size):
        word |= np.uint64(packed[k]) << np.uint64(8 * (k - place))
    return word


@compiled
def join(codes: Any, count: int, width: int, packed: Any, base: int) -> None:  # pragma: no cover
    """Pack the first `count` lanes of a group, which is changed, from packed[base] on.

    Words of eight bytes are written in order: what one writes too much, the next writes over.
    """
    codes[count:] = 0
    gaps, end = codes.view(np.uint64), base + (count * width + 7) // 8
    if codes.itemsize == 1:
        _close_bytes(gaps, width)
        for i in range((count + 7) // 8):
            _put(packed, base + i * width, end, gaps[i])
    elif codes.itemsize == 2:
        _close_pairs(gaps, width)
        half, odd = width // 2, np.uint64(4 * (width & 1))  # four fields are so many bytes, and half a byte or none
        for i in range((count + 7) // 8):
            low, high = gaps[2 * i], gaps[2 * i + 1] << odd
            if odd:
                high |= low >> np.uint64(8 * half)
            _put(packed, base + i * width, end, low)
            _put(packed, base + i * width + half, end, high)
    else:
        _join_wide(codes, count, width, packed, base)


@compiled
def split(packed: Any, base: int, count: int, width: int, codes: Any) -> None:  # pragma: no cover
    """Fill a group's lanes from the `count` fields that begin at packed[base]; what lies behind them is arbitrary."""
    gaps = codes.view(np.uint64)
    if codes.itemsize == 1:
        for i in range((count + 7) // 8):
            gaps[i] = word_at(packed, base + i * width)
        _open_bytes(gaps, width)
    elif codes.itemsize == 2:
        half, odd = width // 2, np.uint64(4 * (width & 1))
        for i in range((count + 7) // 8):
            gaps[2 * i] = word_at(packed, base + i * width)
            gaps[2 * i + 1] = word_at(packed, base + i * width + half) >> odd
        _open_pairs(gaps, width)
    else:
        field = _ones(width)
        for i in range(count):
            place = i * width
            codes[i] = (word_at(packed, base + (place >> 3)) >> np.uint64(place & 7)) & field


@compiled
def _join_wide(codes: Any, count: int, width: int, packed: Any, base: int) -> None:  # pragma: no cover
    held, bits, field = np.uint64(0), 0, _ones(width)
    for i in range(count):
        held |= (np.uint64(codes[i]) & field) << np.uint64(bits)
        bits += width
        while bits >= 8:
            packed[base] = np.uint8(held & np.uint64(255))
            held >>= np.uint64(8)
            bits -= 8
            base += 1
    if bits:
        packed[base] = np.uint8(held & np.uint64(255))


@compiled
def _pack(codes: Any, width: int, group: Any, packed: Any, begin: int, end: int) -> None:  # pragma: no cover
    for start in range(begin, end, GROUP):
        part = codes[start : min(start + GROUP, end)]
        for j in range(part.size):
            group[j] = part[j]
        join(group, part.size, width, packed, start * width // 8)


@compiled
def _unpack(packed: Any, width: int, group: Any, codes: Any, begin: int, end: int) -> None:  # pragma: no cover
    for start in range(begin, end, GROUP):
        part = codes[start : min(start + GROUP, end)]
        split(packed, start * width // 8, part.size, width, group)
        for j in range(part.size):
            part[j] = group[j]


@compiled
def _pack_bits(flags: Any, packed: Any, begin: int, end: int) -> None:  # pragma: no cover
    whole = begin + (end - begin) // intrinsics.LANES * intrinsics.LANES
    for start in range(begin, whole, intrinsics.LANES):
        intrinsics.store_word_(packed, start >> 3, intrinsics.nonzero(flags, start))
    packed[whole >> 3 : (end + 7) >> 3] = 0
    for i in range(whole, end):
        packed[i >> 3] |= np.uint8(np.uint8(flags[i] != 0) << np.uint8(i & 7))


@compiled
def _unpack_bits(packed: Any, flags: Any, begin: int, end: int) -> None:  # pragma: no cover
    whole = begin + (end - begin) // intrinsics.LANES * intrinsics.LANES
    for start in range(begin, whole, intrinsics.LANES):
        intrinsics.spread_(flags, start, intrinsics.load_word(packed, start >> 3))
    for i in range(whole, end):
        flags[i] = (packed[i >> 3] >> np.uint8(i & 7)) & np.uint8(1)


def pack_codes(codes: Tensor, width: int) -> Tensor:
    """See `reference.pack_codes`."""
    if not 1 <= width <= WIDEST:
        return reference.pack_codes(codes, width)
    packed = torch.empty((codes.numel() * width + 7) // 8, dtype=torch.uint8)
    source, target = codes.contiguous().numpy(), packed.numpy()
    kind = lane(width)
    in_parallel(lambda _, begin, end: _pack(source, width, np.empty(GROUP, kind), target, begin, end), codes.numel())
    return packed


def unpack_codes(packed: Tensor, width: int, count: int) -> Tensor:
    """See `reference.unpack_codes`."""
    if not 1 <= width <= WIDEST:
        return reference.unpack_codes(packed, width, count)
    codes = torch.empty(count, dtype=torch.int64)
    source, target = packed.contiguous().numpy(), codes.numpy()
    kind = lane(width)
    in_parallel(lambda _, begin, end: _unpack(source, width, np.empty(GROUP, kind), target, begin, end), count)
    return codes


def pack_bits(bits: Tensor) -> Tensor:
    """See `reference.pack_bits`."""
    packed = torch.empty((bits.numel() + 7) // 8, dtype=torch.uint8)
    source, target = bits.to(torch.bool).contiguous().view(torch.uint8).numpy(), packed.numpy()
    in_parallel(lambda _, begin, end: _pack_bits(source, target, begin, end), bits.numel())
    return packed


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """See `reference.unpack_bits`."""
    bits = torch.empty(count, dtype=torch.uint8)
    source, target = packed.contiguous().numpy(), bits.numpy()
    in_parallel(lambda _, begin, end: _unpack_bits(source, target, begin, end), count)
    return bits.view(torch.bool)

"""Numbers of a few bits side by side in bytes, lowest bit first, compiled by numba.

Up to eight bits wide, eight numbers at a time: a word of eight bytes has its gaps closed (or opened) in three steps,
each of which moves every other field next to its neighbour. Wider ones go through an accumulator, bit by bit of a byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.ops import reference
from thinwire.ops.cpu import words
from thinwire.ops.cpu.threads import in_parallel

GROUP = 512
"""Numbers packed at a time: what lies between stays in the first cache."""
NARROW = 8
WIDEST = 56
"""Bits that fit the accumulator beside the seven that may wait in it."""


@njit(nogil=True, cache=True, inline="always")
def _masks(width: int) -> tuple[Any, Any, Any]:  # pragma: no cover
    """The lower of two fields in each 16, 32 and 64 bits, when fields are 1, 2 and 4 times `width` wide."""
    one = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    two = (np.uint64(1) << np.uint64(2 * width)) - np.uint64(1)
    four = (np.uint64(1) << np.uint64(4 * width)) - np.uint64(1)
    return one * np.uint64(0x0001000100010001), two * np.uint64(0x0000000100000001), four


@njit(nogil=True, cache=True)
def _close(gaps: Any, width: int) -> None:  # pragma: no cover
    """Each word's eight bytes become eight fields of `width` bits at its low end."""
    one, two, four = _masks(width)
    w = np.uint64(width)
    for i in range(gaps.size):
        v = gaps[i]
        v = (v & one) | ((v >> (np.uint64(8) - w)) & (one << w))
        v = (v & two) | ((v >> (np.uint64(16) - np.uint64(2) * w)) & (two << (np.uint64(2) * w)))
        gaps[i] = (v & four) | ((v >> (np.uint64(32) - np.uint64(4) * w)) & (four << (np.uint64(4) * w)))


@njit(nogil=True, cache=True)
def _open(gaps: Any, width: int) -> None:  # pragma: no cover
    """Each word's eight fields of `width` bits at its low end become its eight bytes."""
    one, two, four = _masks(width)
    w = np.uint64(width)
    for i in range(gaps.size):
        v = gaps[i]
        v = (v & four) | ((v & (four << (np.uint64(4) * w))) << (np.uint64(32) - np.uint64(4) * w))
        v = (v & two) | ((v & (two << (np.uint64(2) * w))) << (np.uint64(16) - np.uint64(2) * w))
        gaps[i] = (v & one) | ((v & (one << w)) << (np.uint64(8) - w))


@njit(nogil=True, cache=True)
def join_narrow(codes: Any, count: int, width: int, packed: Any, base: int) -> None:  # pragma: no cover
    """Pack the first `count` of a group of bytes, which is changed, from packed[base] on."""
    codes[count:] = 0
    gaps = codes.view(np.uint64)
    _close(gaps, width)
    end = base + (count * width + 7) // 8
    for i in range((count + 7) // 8):
        place = base + i * width
        if place + 8 <= end:
            words.store_word_(packed, place, gaps[i])  # what it writes too much is written over by the next
        else:
            for k in range(place, min(place + width, end)):
                packed[k] = np.uint8((gaps[i] >> np.uint64(8 * (k - place))) & np.uint64(255))


@njit(nogil=True, cache=True)
def split_narrow(packed: Any, base: int, count: int, width: int, codes: Any) -> None:  # pragma: no cover
    """A group of bytes from the `count` fields that begin at packed[base]."""
    gaps = codes.view(np.uint64)
    for i in range((count + 7) // 8):
        gaps[i] = word_at(packed, base + i * width)
    _open(gaps, width)


@njit(nogil=True, cache=True, inline="always")
def word_at(packed: Any, place: int) -> Any:  # pragma: no cover
    """The eight bytes from packed[place] on as a word, zeros after the end."""
    if place + 8 <= packed.size:
        return words.load_word(packed, place)
    word = np.uint64(0)
    for k in range(place, packed.size):
        word |= np.uint64(packed[k]) << np.uint64(8 * (k - place))
    return word


@njit(nogil=True, cache=True)
def join_wide(codes: Any, count: int, width: int, packed: Any, base: int) -> None:  # pragma: no cover
    """Pack the first `count` numbers from packed[base] on."""
    held, bits = np.uint64(0), 0
    field = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
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


@njit(nogil=True, cache=True)
def split_wide(packed: Any, base: int, count: int, width: int, codes: Any) -> None:  # pragma: no cover
    """Fill `codes` from the `count` fields that begin at packed[base]."""
    field = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    for i in range(count):
        place = i * width
        codes[i] = (word_at(packed, base + (place >> 3)) >> np.uint64(place & 7)) & field


@njit(nogil=True, cache=True)
def _pack(codes: Any, width: int, packed: Any, begin: int, end: int) -> None:  # pragma: no cover
    group = np.empty(GROUP, np.uint8)
    for start in range(begin, end, GROUP):
        part = codes[start : min(start + GROUP, end)]
        if width > NARROW:
            join_wide(part, part.size, width, packed, start * width // 8)
        else:
            for j in range(part.size):
                group[j] = np.uint8(part[j])
            join_narrow(group, part.size, width, packed, start * width // 8)


@njit(nogil=True, cache=True)
def _unpack(packed: Any, width: int, codes: Any, begin: int, end: int) -> None:  # pragma: no cover
    group = np.empty(GROUP, np.uint8)
    for start in range(begin, end, GROUP):
        part = codes[start : min(start + GROUP, end)]
        if width > NARROW:
            split_wide(packed, start * width // 8, part.size, width, part)
        else:
            split_narrow(packed, start * width // 8, part.size, width, group)
            for j in range(part.size):
                part[j] = group[j]


@njit(nogil=True, cache=True)
def _pack_bits(flags: Any, packed: Any, begin: int, end: int) -> None:  # pragma: no cover
    whole = begin + (end - begin) // words.LANES * words.LANES
    for start in range(begin, whole, words.LANES):
        words.store_word_(packed, start >> 3, words.nonzero(flags, start))
    for i in range(whole, end):
        packed[i >> 3] |= np.uint8(np.uint8(flags[i] != 0) << np.uint8(i & 7))


@njit(nogil=True, cache=True)
def _unpack_bits(packed: Any, flags: Any, begin: int, end: int) -> None:  # pragma: no cover
    whole = begin + (end - begin) // words.LANES * words.LANES
    for start in range(begin, whole, words.LANES):
        words.spread_(flags, start, words.load_word(packed, start >> 3))
    for i in range(whole, end):
        flags[i] = (packed[i >> 3] >> np.uint8(i & 7)) & np.uint8(1)


def pack_codes(codes: Tensor, width: int) -> Tensor:
    """See `reference.pack_codes`."""
    if not 1 <= width <= WIDEST:
        return reference.pack_codes(codes, width)
    packed = torch.zeros((codes.numel() * width + 7) // 8, dtype=torch.uint8)
    source, target = codes.contiguous().numpy(), packed.numpy()
    in_parallel(lambda _, begin, end: _pack(source, width, target, begin, end), codes.numel())
    return packed


def unpack_codes(packed: Tensor, width: int, count: int) -> Tensor:
    """See `reference.unpack_codes`."""
    if not 1 <= width <= WIDEST:
        return reference.unpack_codes(packed, width, count)
    codes = torch.empty(count, dtype=torch.int64)
    source, target = packed.contiguous().numpy(), codes.numpy()
    in_parallel(lambda _, begin, end: _unpack(source, width, target, begin, end), count)
    return codes


def pack_bits(bits: Tensor) -> Tensor:
    """See `reference.pack_bits`."""
    packed = torch.zeros((bits.numel() + 7) // 8, dtype=torch.uint8)
    source, target = bits.to(torch.bool).contiguous().view(torch.uint8).numpy(), packed.numpy()
    in_parallel(lambda _, begin, end: _pack_bits(source, target, begin, end), bits.numel())
    return packed


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """See `reference.unpack_bits`."""
    bits = torch.empty(count, dtype=torch.uint8)
    source, target = packed.contiguous().numpy(), bits.numpy()
    in_parallel(lambda _, begin, end: _unpack_bits(source, target, begin, end), count)
    return bits.view(torch.bool)

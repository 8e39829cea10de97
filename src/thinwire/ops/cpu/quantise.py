"""Signs, levels and powers of two, to and from their bytes, in one pass each on the CPU, compiled by numba.

Bytes moved for a float32: signs 4 1/8 to encode, 8 1/8 to add; levels of w bits 4 + w/8 and 8 + w/8; powers 5 1/8 and
9 1/8; w/8 to check levels or to count those above zero. A random draw takes two multiplications of 64 bits, eight
numbers at a time where the machine has AVX-512. A share of the numbers begins at a multiple of 64, so no two threads
write to the same byte.

25 M float32 on two cores of an EPYC, as multiples of an in-place add (12 bytes) beside it, in a quiet and in a busy run
of `thinwire bench kernels`: scaled sign 1.0 and 0.9 (its norms read the vector once more), decoded 0.7 and 0.5; QSGD
with 15 levels 2.5 and 2.3, decoded 1.0 and 1.6; natural 1.7 and 1.9, decoded 1.1 and 0.9. Counting the levels above
zero takes 0.4 times the add, a tenth of QSGD's step beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import reference
from thinwire.ops.cpu import intrinsics
from thinwire.ops.cpu.bit_fields import GROUP, join, lane, split, word_at
from thinwire.ops.cpu.block_norms import Pieces, find, keys_of, pieces_of
from thinwire.ops.cpu.compiler import compiled
from thinwire.ops.cpu.threads import in_parallel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


# ---------------------------------------------------------------------------------------------------------------- signs


@compiled
def _negative(x: Any, packed: Any, begin: int, end: int) -> None:  # pragma: no cover
    """The bits of the numbers below zero."""
    whole = begin + (end - begin) // intrinsics.LANES * intrinsics.LANES
    for start in range(begin, whole, intrinsics.LANES):
        intrinsics.store_word_(packed, start >> 3, intrinsics.negative(x, start))
    packed[whole >> 3 : (end + 7) >> 3] = 0
    for i in range(whole, end):
        packed[i >> 3] |= np.uint8(np.uint8(x[i] < 0) << np.uint8(i & 7))


@compiled
def _add_signs(out: Any, packed: Any, scales: Any, pieces: Pieces, begin: int, end: int) -> None:  # pragma: no cover
    edge = begin
    scale = out.dtype.type(0)
    for start in range(begin, end, intrinsics.LANES):
        stop = min(start + intrinsics.LANES, end)
        word = word_at(packed, start >> 3)
        place = start
        while place < stop:
            if place >= edge:
                _, b, edge = find(pieces, place)
                scale = scales[b]
            until = min(edge, stop)
            if until - place == intrinsics.LANES:
                intrinsics.add_signed_(out, place, word, scale)
            else:
                for i in range(place, until):
                    out[i] += -scale if (word >> np.uint64(i - start)) & np.uint64(1) else scale
            place = until


def negative_bits(x: Tensor) -> Tensor:
    """See `reference.negative_bits`."""
    if not _served(x):
        return reference.negative_bits(x)
    packed = torch.empty((x.numel() + 7) // 8, dtype=torch.uint8)
    source, target = x.numpy(), packed.numpy()
    in_parallel(lambda _, begin, end: _negative(source, target, begin, end), x.numel())
    return packed


def _scaled(scales: Tensor, alpha: float) -> Any:
    """scales * alpha, in numpy; a damaged message may hold anything."""
    array = scales.numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        return array * array.dtype.type(alpha)


def add_signs_(out: Tensor, negative: Tensor, scales: Tensor, layout: Layout, block: int, alpha: float) -> Tensor:
    """See `reference.add_signs_`."""
    if not (_served(out) and scales.dtype == out.dtype):
        return reference.add_signs_(out, negative, scales, layout, block, alpha)
    pieces, target, source = pieces_of(layout, block), out.numpy(), negative.numpy()
    scale = _scaled(scales, alpha)
    in_parallel(lambda _, begin, end: _add_signs(target, source, scale, pieces, begin, end), out.numel())
    return out


# --------------------------------------------------------------------------------------------------------------- levels


@compiled
def draw(key: Any, first: int, shift: Any, draws: Any) -> None:  # pragma: no cover
    """The top bits of the draws numbered from `first` on: SplitMix64, see `keys`."""
    start = key + np.uint64(first + 1) * _GOLDEN
    for i in range(draws.size):
        z = start + np.uint64(i) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
        draws[i] = (z ^ (z >> np.uint64(31))) >> shift


@compiled
def _levels(
    x: Any, factor: Any, levels: Any, draws: Any, grain: Any, sign: Any, codes: Any
) -> None:  # pragma: no cover
    """floor(y) or, where the draw is below y's fraction, floor(y) + 1; y = |x| factor, at most `levels`."""
    zero = x.dtype.type(0)
    for i in range(x.size):
        y = abs(x[i]) * factor
        y = y if y > zero else zero  # zero times an infinite factor too
        y = y if y < levels else levels
        level = np.int32(y)
        level += np.int32(x.dtype.type(draws[i]) * grain < y - x.dtype.type(level))
        codes[i] = level | (sign if x[i] < zero and level > 0 else np.int32(0))


@compiled
def _encode_levels(
    x: Any, factors: Any, pieces: Pieces, keys: Any, levels: Any, grain: Any, draws: Any, codes: Any, width: int,
    packed: Any, begin: int, end: int,
) -> None:  # fmt: skip  # pragma: no cover
    shift, sign = np.uint64(40 if draws.itemsize == 4 else 11), np.int32(1 << (width - 1))
    for start in range(begin, end, GROUP):
        stop = min(start + GROUP, end)
        place = start
        while place < stop:
            p, b, edge = find(pieces, place)
            until = min(edge, stop)
            mine = draws[: until - place]
            draw(keys[p], place - pieces.starts[p], shift, mine)
            _levels(x[place:until], factors[b], levels, mine, grain, sign, codes[place - start : until - start])
            place = until
        join(codes, stop - start, width, packed, start * width // 8)


@compiled
def _add_codes(out: Any, unit: Any, codes: Any, sign: Any) -> None:  # pragma: no cover
    for i in range(out.size):
        code = np.int32(codes[i])
        level = out.dtype.type(code & (sign - np.int32(1)))
        out[i] += unit * (-level if code & sign else level)


@compiled
def _add_levels(
    out: Any, packed: Any, units: Any, pieces: Pieces, codes: Any, width: int, begin: int, end: int
) -> None:  # pragma: no cover
    sign = np.int32(1 << (width - 1))
    for start in range(begin, end, GROUP):
        stop = min(start + GROUP, end)
        split(packed, start * width // 8, stop - start, width, codes)
        place = start
        while place < stop:
            _, b, edge = find(pieces, place)
            until = min(edge, stop)
            _add_codes(out[place:until], units[b], codes[place - start : until - start], sign)
            place = until


@compiled
def _largest_level(packed: Any, codes: Any, width: int, begin: int, end: int) -> int:  # pragma: no cover
    field, largest = np.int32((1 << (width - 1)) - 1), np.int32(0)
    for start in range(begin, end, GROUP):
        count = min(GROUP, end - start)
        split(packed, start * width // 8, count, width, codes)
        for j in range(count):
            largest = max(largest, np.int32(codes[j]) & field)
    return int(largest)


@compiled
def _narrow_above_zero(packed: Any, width: int, begin: int, end: int) -> int:  # pragma: no cover
    """Levels that are not zero, up to eight bits a code: eight codes are `width` bytes of one word.

    The highest level added to a level carries into its sign's place unless it is zero.
    """
    ones, above = np.uint64(0), 0
    for j in range(8):
        ones |= np.uint64(1) << np.uint64(j * width)
    signs = ones << np.uint64(width - 1)
    highest = signs - ones
    for start in range(begin, end, 8):
        word = word_at(packed, start * width >> 3) & highest
        if end - start < 8:
            word &= (np.uint64(1) << np.uint64((end - start) * width)) - np.uint64(1)
        above += intrinsics.ones((word + highest) & signs)
    return above


@compiled
def _wide_above_zero(packed: Any, codes: Any, width: int, begin: int, end: int) -> int:  # pragma: no cover
    field, above = np.int32((1 << (width - 1)) - 1), 0
    for start in range(begin, end, GROUP):
        count = min(GROUP, end - start)
        split(packed, start * width // 8, count, width, codes)
        for j in range(count):
            above += (np.int32(codes[j]) & field) != 0
    return above


def level_codes(x: Tensor, norms: Tensor, layout: Layout, block: int, levels: int, keys: Sequence[int]) -> Tensor:
    """See `reference.level_codes`."""
    if not (_served(x) and norms.dtype == x.dtype and levels < 1 << 16):
        return reference.level_codes(x, norms, layout, block, levels, keys)
    width, source = levels.bit_length() + 1, x.numpy()
    factors = _factors(norms.numpy(), levels)
    packed = torch.empty((x.numel() * width + 7) // 8, dtype=torch.uint8)
    target, pieces, words_of = packed.numpy(), pieces_of(layout, block), keys_of(layout, keys)
    number = source.dtype.type
    kind, grain = (np.uint32, 2.0**-24) if x.dtype == torch.float32 else (np.uint64, 2.0**-53)

    def encode(_: int, begin: int, end: int) -> None:
        draws, codes = np.empty(GROUP, kind), np.empty(GROUP, lane(width))
        _encode_levels(
            source, factors, pieces, words_of, number(levels), number(grain), draws, codes, width, target, begin, end
        )

    in_parallel(encode, x.numel())
    return packed


def _factors(norms: Any, levels: int) -> Any:
    """`blocks.level_factors` where the norm is positive, else zero; in numpy: torch leaves threads spinning."""
    one, some = norms.dtype.type(1), norms > 0
    with np.errstate(over="ignore"):
        return np.where(some, one / np.where(some, norms, one) * norms.dtype.type(levels), norms.dtype.type(0))


def add_levels_(
    out: Tensor, packed: Tensor, norms: Tensor, layout: Layout, block: int, levels: int, alpha: float
) -> Tensor:
    """See `reference.add_levels_`."""
    if not (_served(out) and norms.dtype == out.dtype and levels < 1 << 16):
        return reference.add_levels_(out, packed, norms, layout, block, levels, alpha)
    width, pieces = levels.bit_length() + 1, pieces_of(layout, block)
    target, source = out.numpy(), packed.numpy()
    unit = _scaled(norms, alpha / levels)

    def add(_: int, begin: int, end: int) -> None:
        _add_levels(target, source, unit, pieces, np.empty(GROUP, lane(width)), width, begin, end)

    in_parallel(add, out.numel())
    return out


def levels_within(packed: Tensor, count: int, levels: int) -> Tensor:
    """See `reference.levels_within`."""
    if levels >= 1 << 16:
        return reference.levels_within(packed, count, levels)
    width, source = levels.bit_length() + 1, packed.numpy()

    def largest(_: int, begin: int, end: int) -> int:
        return int(_largest_level(source, np.empty(GROUP, lane(width)), width, begin, end))

    return torch.tensor(max(in_parallel(largest, count)) <= levels)


def levels_above_zero(packed: Tensor, count: int, levels: int) -> Tensor:
    """See `reference.levels_above_zero`."""
    if levels >= 1 << 16:
        return reference.levels_above_zero(packed, count, levels)
    width, source = levels.bit_length() + 1, packed.numpy()

    def above(_: int, begin: int, end: int) -> int:
        if width <= 8:
            return int(_narrow_above_zero(source, width, begin, end))
        return int(_wide_above_zero(source, np.empty(GROUP, lane(width)), width, begin, end))

    return torch.tensor(sum(in_parallel(above, count)))


# --------------------------------------------------------------------------------------------------------------- powers


@compiled
def _exponents32(bits: Any, draws: Any, codes: Any) -> None:  # pragma: no cover
    """Exponent byte + (draw < fraction): 24 bits of fraction plus 2^24 - 1 - draw carry into the exponent just then.

    The same for magnitudes below 2^-126, whose exponent byte is 0 and whose unit is 2^-126 / 2^24 / 2 too.
    """
    for i in range(bits.size):
        carried = np.uint32(np.uint32(bits[i] << np.uint32(1)) + (np.uint32(0xFFFFFF) - draws[i]))
        codes[i] = min(np.uint32(carried >> np.uint32(24)), np.uint32(254))


@compiled
def _exponents64(x: Any, bits: Any, draws: Any, codes: Any) -> None:  # pragma: no cover
    """The same with 53 bits of fraction; exponents are cut to those of a float32."""
    for i in range(bits.size):
        twice = np.int64(bits[i] << np.uint64(1) & np.uint64(0x1FFFFFFFFFFFFF))
        exponent = np.int64((bits[i] >> np.uint64(52)) & np.uint64(0x7FF)) - 1023 + 127
        draw = np.int64(draws[i])
        normal = min(exponent + np.int64(draw < twice), np.int64(254))
        tiny = np.int64(np.float64(draw) * 2.0**-53 < abs(x[i]) * 2.0**126)
        codes[i] = tiny if exponent < 1 else normal


@compiled
def _encode_powers(
    x: Any, bits: Any, draws: Any, pieces: Pieces, keys: Any, codes: Any, begin: int, end: int
) -> None:  # pragma: no cover
    for start in range(begin, end, GROUP):
        stop = min(start + GROUP, end)
        place = start
        while place < stop:
            p, _, edge = find(pieces, place)
            until = min(edge, stop)
            mine = draws[: until - place]
            if draws.itemsize == 4:
                draw(keys[p], place - pieces.starts[p], np.uint64(40), mine)
                _exponents32(bits[place:until], mine, codes[place:until])
            else:
                draw(keys[p], place - pieces.starts[p], np.uint64(11), mine)
                _exponents64(x[place:until], bits[place:until], mine, codes[place:until])
            place = until


@compiled
def _add_powers(out: Any, codes: Any, packed: Any, alpha: Any, begin: int, end: int) -> None:  # pragma: no cover
    flags, bits = np.empty(intrinsics.LANES, np.uint8), np.empty(intrinsics.LANES, np.uint32)
    powers = bits.view(np.float32)
    for start in range(begin, end, intrinsics.LANES):
        count = min(intrinsics.LANES, end - start)
        intrinsics.spread_(flags, 0, word_at(packed, start >> 3))
        mine, part = codes[start : start + count], out[start : start + count]
        for j in range(count):
            bits[j] = (min(np.uint32(mine[j]), np.uint32(254)) << np.uint32(23)) | (
                np.uint32(flags[j]) << np.uint32(31)
            )
        for j in range(count):
            part[j] += out.dtype.type(powers[j]) * alpha


def power_codes(x: Tensor, layout: Layout, keys: Sequence[int]) -> tuple[Tensor, Tensor]:
    """See `reference.power_codes`."""
    if not _served(x):
        return reference.power_codes(x, layout, keys)
    kind = np.uint32 if x.dtype == torch.float32 else np.uint64
    codes, packed = torch.empty(x.numel(), dtype=torch.uint8), torch.empty((x.numel() + 7) // 8, dtype=torch.uint8)
    source, target, negative = x.numpy(), codes.numpy(), packed.numpy()
    pieces, words_of = pieces_of(layout, max(1, layout.numel)), keys_of(layout, keys)

    def encode(_: int, begin: int, end: int) -> None:
        draws = np.empty(GROUP, kind)
        _encode_powers(source, source.view(kind), draws, pieces, words_of, target, begin, end)
        _negative(source, negative, begin, end)

    in_parallel(encode, x.numel())
    return codes, packed


def add_powers_(out: Tensor, codes: Tensor, negative: Tensor, alpha: float) -> Tensor:
    """See `reference.add_powers_`."""
    if not _served(out):
        return reference.add_powers_(out, codes, negative, alpha)
    target, source, packed = out.numpy(), codes.numpy(), negative.numpy()
    factor = target.dtype.type(alpha)
    in_parallel(lambda _, begin, end: _add_powers(target, source, packed, factor, begin, end), out.numel())
    return out


def _served(x: Tensor) -> bool:
    """Whether the kernels take this tensor: float32 or float64, in one stretch."""
    return x.dtype in (torch.float32, torch.float64) and x.is_contiguous()

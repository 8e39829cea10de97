"""Norms of blocks, signs, levels and powers of two, to and from their bytes, on a GPU: one pass each, Triton.

A program takes TILE numbers of the flat buffer, eight to a row, so that a row is whole bytes in every width. Which
piece a tile begins in is looked up in a table that is kept for each layout; a tile then walks over the pieces that it
touches (one, unless pieces are small). Bytes moved for a float32: norms 4; signs 4 1/8 to encode, 8 1/8 to add; levels
of w bits 4 + w/8 and 8 + w/8; powers 5 1/8 and 9 1/8; checking levels w/8; counting those above zero w/8, and 32 by
torch. No kernel makes the host wait. Products and sums are not fused: the integers are those of the reference,
bit for bit.

On an H200, 100 M float32, by the time the GPU was busy: scaled sign (norms and signs, 8 1/8 bytes) takes 0.223 ms, 88 %
of the speed of a copy; its decoding 0.245 ms, 80 %; powers 0.259 ms, 48 %.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import reference
from thinwire.ops.blocks import level_factors
from thinwire.ops.cuda.launch import aligned, launcher

TILE = 1024
CHUNK = 4096
"""Numbers of a block that are summed by one program."""
_LONGEST = (1 << 31) - 1 - CHUNK
"""Places within a block are counted in 32 bits."""
_EXACT: dict[str, Any] = {"enable_fp_fusion": False}


class _Pieces(NamedTuple):
    """A layout's non-empty pieces on a GPU: their starts (and the end), first blocks, and each tile's first."""

    starts: Tensor
    firsts: Tensor
    tiles: Tensor
    block: int


@lru_cache(maxsize=64)
def _pieces(layout: Layout, block: int, device: torch.device) -> _Pieces:
    """Kept, because bringing tables to a GPU makes the host wait."""
    sizes = torch.tensor([piece.numel for piece in layout.pieces if piece.numel], dtype=torch.int64)
    stops, blocks = sizes.cumsum(0), (sizes + block - 1) // block
    tiles = torch.searchsorted(stops, torch.arange(0, layout.numel, TILE), right=True).to(torch.int32)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), stops])
    short = min(block, max(1, layout.numel))
    return _Pieces(starts.to(device), (blocks.cumsum(0) - blocks).to(device), tiles.to(device), short)


def _keys(layout: Layout, keys: Sequence[int], device: torch.device) -> Tensor:
    """The keys of the non-empty pieces, from pinned memory: the host does not wait."""
    filled = [k - (1 << 64) if k >= 1 << 63 else k for k, p in zip(keys, layout.pieces, strict=True) if p.numel]
    numbers = torch.tensor(filled, dtype=torch.int64)
    return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers


def _served(x: Tensor, layout: Layout) -> bool:
    """Whether the kernels take this tensor: float32 or float64, in one stretch, of less than 2^31 numbers."""
    return x.dtype in (torch.float32, torch.float64) and x.is_contiguous() and layout.numel < _LONGEST


def _bytes(count: int, like: Tensor) -> Tensor:
    return torch.empty(count, dtype=torch.uint8, device=like.device)


# ---------------------------------------------------------------------------------------------------------------- norms


class _Chunks(NamedTuple):
    """The stretches of at most CHUNK numbers that blocks are summed in; each block's first one, and the end."""

    starts: Tensor
    lengths: Tensor
    firsts: Tensor


@lru_cache(maxsize=64)
def _chunks(layout: Layout, block: int, device: torch.device) -> _Chunks:
    sizes = torch.tensor([piece.numel for piece in layout.pieces if piece.numel], dtype=torch.int64)
    blocks = _cut(sizes.cumsum(0) - sizes, sizes, block)
    counts = (blocks[1] + CHUNK - 1) // CHUNK
    starts, lengths = _cut(*blocks, CHUNK)
    firsts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return _Chunks(starts.to(device), lengths.to(device), firsts.to(device))


def _cut(starts: Tensor, lengths: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Stretches cut into parts of at most `most` numbers: where the parts start, and their lengths."""
    counts = (lengths + most - 1) // most
    owner = torch.arange(lengths.numel()).repeat_interleave(counts)
    within = torch.arange(owner.numel()) - (counts.cumsum(0) - counts)[owner]
    return starts[owner] + within * most, torch.minimum(lengths[owner] - within * most, torch.tensor(most))


@triton.jit
def _sum_chunks(x, starts, lengths, sums, ORDER: tl.constexpr, SIZE: tl.constexpr):  # pragma: no cover
    chunk = tl.program_id(0)
    at = tl.arange(0, SIZE)
    numbers = tl.load(x + tl.load(starts + chunk) + at, mask=at < tl.load(lengths + chunk), other=0.0).to(tl.float64)
    if ORDER == 1:
        total = tl.sum(tl.abs(numbers), 0)
    else:
        total = tl.sum(numbers * numbers, 0)
    tl.store(sums + chunk, total)


@triton.jit
def _add_chunks(sums, firsts, norms, ORDER: tl.constexpr, SIZE: tl.constexpr):  # pragma: no cover
    block = tl.program_id(0)
    start, stop = tl.load(firsts + block), tl.load(firsts + block + 1)
    at = tl.arange(0, SIZE)
    lanes = tl.zeros((SIZE,), tl.float64)
    while start < stop:
        lanes += tl.load(sums + start + at, mask=start + at < stop, other=0.0)
        start += SIZE
    total = tl.sum(lanes, 0)
    if ORDER == 2:
        total = tl.sqrt(total)
    tl.store(norms + block, total)


def block_norms(x: Tensor, layout: Layout, block: int, order: int) -> Tensor:
    """See `reference.block_norms`: one program for each 4,096 numbers of a block, then one for each block."""
    if x.dtype not in (torch.float32, torch.float64):
        return reference.block_norms(x, layout, block, order)
    chunks = _chunks(layout, block, x.device)
    sums = torch.empty(chunks.starts.numel(), dtype=torch.float64, device=x.device)
    norms = torch.empty(chunks.firsts.numel() - 1, dtype=x.dtype, device=x.device)
    if x.numel():
        x, size = x.contiguous(), min(CHUNK, triton.next_power_of_2(min(block, x.numel())))
        launch = launcher("norms", layout, block, order, x.dtype, x.device, aligned(x))
        launch("sum", _sum_chunks, (sums.numel(),), x, chunks.starts, chunks.lengths, sums, order, size)
        grid, at_once = (norms.numel(),), 1 if block <= CHUNK else 1024
        launch("add", _add_chunks, grid, sums, chunks.firsts, norms, order, at_once)
    return norms


# --------------------------------------------------------------------------------------------------------------- fields


@triton.jit
def _rows(start, ROWS: tl.constexpr):  # pragma: no cover
    """The places of a tile's numbers, eight to a row."""
    return start + tl.arange(0, ROWS)[:, None] * 8 + tl.arange(0, 8)[None, :]


@triton.jit
def _store_fields(codes, packed, start, numel, WIDTH: tl.constexpr, ROWS: tl.constexpr):  # pragma: no cover
    """A tile's codes (int64, zero behind the end) as `WIDTH`-bit fields: byte k of a row collects its bits."""
    field = tl.arange(0, 8)[None, :] * WIDTH
    row = tl.arange(0, ROWS) * WIDTH
    size = ((numel - start) * WIDTH + 7) // 8
    for k in tl.static_range(WIDTH):
        up, down = tl.maximum(field - 8 * k, 0), tl.maximum(8 * k - field, 0)
        near = (up < 8) & (down < WIDTH)
        bits = tl.where(near, ((codes >> tl.minimum(down, 63)) << tl.minimum(up, 63)) & 255, 0)
        tl.store(packed + start // 8 * WIDTH + row + k, tl.sum(bits, 1).to(tl.uint8), mask=row + k < size)


@triton.jit
def _load_fields(packed, places, numel, WIDTH: tl.constexpr, BYTES: tl.constexpr):  # pragma: no cover
    """The `WIDTH`-bit fields at the given places, as int64; zero behind the end."""
    bit = places.to(tl.int64) * WIDTH
    word = tl.zeros_like(bit)
    for k in tl.static_range(BYTES):
        byte = tl.load(packed + (bit >> 3) + k, mask=(places < numel) & (8 * k < (bit & 7) + WIDTH), other=0)
        word |= byte.to(tl.int64) << (8 * k)
    return (word >> (bit & 7)) & ((1 << WIDTH) - 1)


@triton.jit
def _sign(bit):  # pragma: no cover
    """-1 for a set bit, else 1: a product keeps the sign of zero, which Triton's minus (0 - x) does not."""
    return tl.where(bit == 1, -1.0, 1.0)


@triton.jit
def _pack_fields(codes, packed, numel, WIDTH: tl.constexpr, ROWS: tl.constexpr):  # pragma: no cover
    start = tl.program_id(0).to(tl.int64) * (8 * ROWS)
    places = _rows(start, ROWS)
    mine = tl.load(codes + places, mask=places < numel, other=0).to(tl.int64)
    _store_fields(mine & ((1 << WIDTH) - 1), packed, start, numel, WIDTH, ROWS)


@triton.jit
def _unpack_fields(
    packed, codes, numel, WIDTH: tl.constexpr, BYTES: tl.constexpr, SIZE: tl.constexpr
):  # pragma: no cover
    places = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mine = _load_fields(packed, places, numel, WIDTH, BYTES)
    tl.store(codes + places, mine.to(codes.dtype.element_ty), mask=places < numel)


def _span(width: int) -> int:
    """The most bytes that a field of `width` bits reaches into."""
    return (width + 14) // 8


def pack_codes(codes: Tensor, width: int) -> Tensor:
    """See `reference.pack_codes`: 8 + width/8 bytes a number."""
    if not 1 <= width <= 32:
        return reference.pack_codes(codes, width)
    packed = _bytes((codes.numel() * width + 7) // 8, codes)
    if codes.numel():
        _pack_fields[(triton.cdiv(codes.numel(), TILE),)](codes.contiguous(), packed, codes.numel(), width, TILE // 8)
    return packed


def unpack_codes(packed: Tensor, width: int, count: int) -> Tensor:
    """See `reference.unpack_codes`: 8 + width/8 bytes a number."""
    if not 1 <= width <= 32:
        return reference.unpack_codes(packed, width, count)
    codes = torch.empty(count, dtype=torch.int64, device=packed.device)
    if count:
        _unpack_fields[(triton.cdiv(count, TILE),)](packed.contiguous(), codes, count, width, _span(width), TILE)
    return codes


def pack_bits(bits: Tensor) -> Tensor:
    """See `reference.pack_bits`: 1 1/8 bytes a number."""
    packed = _bytes((bits.numel() + 7) // 8, bits)
    if bits.numel():
        flags = bits.to(torch.bool).contiguous().view(torch.uint8)
        _pack_fields[(triton.cdiv(bits.numel(), TILE),)](flags, packed, bits.numel(), 1, TILE // 8)
    return packed


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """See `reference.unpack_bits`: 1 1/8 bytes a number."""
    bits = _bytes(count, packed)
    if count:
        _unpack_fields[(triton.cdiv(count, TILE),)](packed.contiguous(), bits, count, 1, 1, TILE)
    return bits.view(torch.bool)


# ---------------------------------------------------------------------------------------------------------------- signs


@triton.jit
def _negative(x, packed, numel, ROWS: tl.constexpr):  # pragma: no cover
    start = tl.program_id(0).to(tl.int64) * (8 * ROWS)
    places = _rows(start, ROWS)
    below = tl.load(x + places, mask=places < numel, other=0.0) < 0
    _store_fields(below.to(tl.int64), packed, start, numel, 1, ROWS)


@triton.jit
def _block_of(at, start, piece, firsts, BLOCK):  # pragma: no cover
    """The block of each place in a piece that starts at `start`; 32-bit division, 64-bit places."""
    return tl.load(firsts + piece) + (at - start).to(tl.int32) // BLOCK


@triton.jit
def _of_blocks(table, at, tile, starts, firsts, tiles, BLOCK, numel, SIZE: tl.constexpr):  # pragma: no cover
    """The table's number for the block of each place of a tile, piece after piece."""
    numbers = tl.zeros((SIZE,), table.dtype.element_ty)
    piece = tl.load(tiles + tl.program_id(0))
    start, last = tl.load(starts + piece), tl.minimum(tile + SIZE, numel)
    while start < last:
        stop = tl.load(starts + piece + 1)
        inside = (at >= start) & (at < stop)
        mine = tl.load(table + _block_of(at, start, piece, firsts, BLOCK), mask=inside, other=0.0)
        numbers = tl.where(inside, mine, numbers)
        piece += 1
        start = stop
    return numbers


@triton.jit
def _add_signs(out, packed, scales, starts, firsts, tiles, BLOCK, numel, SIZE: tl.constexpr):  # pragma: no cover
    tile = tl.program_id(0).to(tl.int64) * SIZE
    at = tile + tl.arange(0, SIZE)
    negative = _load_fields(packed, at, numel, 1, 1)
    scale = _of_blocks(scales, at, tile, starts, firsts, tiles, BLOCK, numel, SIZE)
    numbers = tl.load(out + at, mask=at < numel)
    tl.store(out + at, numbers + scale * _sign(negative), mask=at < numel)


def negative_bits(x: Tensor) -> Tensor:
    """See `reference.negative_bits`: 4 1/8 bytes a float32."""
    packed = _bytes((x.numel() + 7) // 8, x)
    if x.numel():
        _negative[(triton.cdiv(x.numel(), TILE),)](x.contiguous(), packed, x.numel(), TILE // 8)
    return packed


def add_signs_(out: Tensor, negative: Tensor, scales: Tensor, layout: Layout, block: int, alpha: float) -> Tensor:
    """See `reference.add_signs_`: 8 1/8 bytes a float32."""
    if not (_served(out, layout) and scales.dtype == out.dtype):
        return reference.add_signs_(out, negative, scales, layout, block, alpha)
    if out.numel():
        pieces = _pieces(layout, block, out.device)
        _add_signs[(pieces.tiles.numel(),)](
            out, negative, scales * alpha, pieces.starts, pieces.firsts, pieces.tiles, pieces.block, out.numel(), TILE,
            **_EXACT,
        )  # fmt: skip
    return out


# --------------------------------------------------------------------------------------------------------------- levels


@triton.jit
def _draw(key, place):  # pragma: no cover
    """64 random bits for each place within a piece: SplitMix64, see `keys`."""
    z = key.to(tl.uint64) + (place + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _uniform(draw, kind: tl.constexpr):  # pragma: no cover
    """Multiples of 2^-24 (float32) or 2^-53 (float64) in [0, 1)."""
    if kind == tl.float32:
        return (draw >> 40).to(tl.int32).to(tl.float32) * (2.0**-24)
    else:
        return (draw >> 11).to(tl.int64).to(tl.float64) * (2.0**-53)


@triton.jit
def _encode_levels(
    x, factors, keys, starts, firsts, tiles, BLOCK, packed, numel, LEVELS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    tile = tl.program_id(0).to(tl.int64) * (8 * ROWS)
    at = _rows(tile, ROWS)
    numbers = tl.load(x + at, mask=at < numel, other=0.0)
    factor, uniform = tl.zeros_like(numbers), tl.zeros_like(numbers)
    piece = tl.load(tiles + tl.program_id(0))
    start, last = tl.load(starts + piece), tl.minimum(tile + 8 * ROWS, numel)
    while start < last:
        stop = tl.load(starts + piece + 1)
        inside = (at >= start) & (at < stop)
        factor += tl.load(factors + _block_of(at, start, piece, firsts, BLOCK), mask=inside, other=0.0)
        draw = _uniform(_draw(tl.load(keys + piece), at - start), x.dtype.element_ty)
        uniform = tl.where(inside, draw, uniform)
        piece += 1
        start = stop
    scaled = tl.abs(numbers) * factor
    scaled = tl.where(scaled > 0, scaled, 0.0)  # zero times an infinite factor too
    scaled = tl.where(scaled < LEVELS, scaled, LEVELS * 1.0)
    level = scaled.to(tl.int32)
    level += (uniform < scaled - level.to(scaled.dtype)).to(tl.int32)
    sign = ((numbers < 0) & (level > 0)).to(tl.int32) << (WIDTH - 1)
    _store_fields((level | sign).to(tl.int64), packed, tile, numel, WIDTH, ROWS)


@triton.jit
def _add_levels(
    out, packed, units, starts, firsts, tiles, BLOCK, numel, WIDTH: tl.constexpr, BYTES: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    tile = tl.program_id(0).to(tl.int64) * SIZE
    at = tile + tl.arange(0, SIZE)
    codes = _load_fields(packed, at, numel, WIDTH, BYTES).to(tl.int32)
    unit = _of_blocks(units, at, tile, starts, firsts, tiles, BLOCK, numel, SIZE)
    level = (codes & ((1 << (WIDTH - 1)) - 1)).to(unit.dtype)
    numbers = tl.load(out + at, mask=at < numel)
    step = unit * (level * _sign(codes >> (WIDTH - 1)))
    tl.store(out + at, numbers + step, mask=at < numel)


@triton.jit
def _find_excess(
    packed, excess, numel, LEVELS: tl.constexpr, WIDTH: tl.constexpr, BYTES: tl.constexpr, SIZE: tl.constexpr
):  # pragma: no cover
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    level = _load_fields(packed, at, numel, WIDTH, BYTES) & ((1 << (WIDTH - 1)) - 1)
    if tl.max(level, 0) > LEVELS:
        tl.store(excess, 1)  # whoever finds one writes the same


def level_codes(x: Tensor, norms: Tensor, layout: Layout, block: int, levels: int, keys: Sequence[int]) -> Tensor:
    """See `reference.level_codes`: 4 + width/8 bytes a float32."""
    if not (_served(x, layout) and norms.dtype == x.dtype and levels < 1 << 16):
        return reference.level_codes(x, norms, layout, block, levels, keys)
    width = levels.bit_length() + 1
    packed = _bytes((x.numel() * width + 7) // 8, x)
    if x.numel():
        pieces = _pieces(layout, block, x.device)
        factors = torch.where(norms > 0, level_factors(norms, levels), 0.0)
        _encode_levels[(pieces.tiles.numel(),)](
            x, factors, _keys(layout, keys, x.device), pieces.starts, pieces.firsts, pieces.tiles, pieces.block,
            packed, x.numel(), levels, width, TILE // 8, **_EXACT,
        )  # fmt: skip
    return packed


def add_levels_(
    out: Tensor, packed: Tensor, norms: Tensor, layout: Layout, block: int, levels: int, alpha: float
) -> Tensor:
    """See `reference.add_levels_`: 8 + width/8 bytes a float32."""
    if not (_served(out, layout) and norms.dtype == out.dtype and levels < 1 << 16):
        return reference.add_levels_(out, packed, norms, layout, block, levels, alpha)
    if out.numel():
        pieces, width = _pieces(layout, block, out.device), levels.bit_length() + 1
        _add_levels[(pieces.tiles.numel(),)](
            out, packed, norms * (alpha / levels), pieces.starts, pieces.firsts, pieces.tiles, pieces.block,
            out.numel(), width, _span(width), TILE, **_EXACT,
        )  # fmt: skip
    return out


def levels_within(packed: Tensor, count: int, levels: int) -> Tensor:
    """See `reference.levels_within`: width/8 bytes a number; the answer stays on the GPU."""
    if levels >= 1 << 16:
        return reference.levels_within(packed, count, levels)
    excess = torch.zeros((), dtype=torch.int32, device=packed.device)
    if count:
        width = levels.bit_length() + 1
        _find_excess[(triton.cdiv(count, TILE),)](packed, excess, count, levels, width, _span(width), TILE)
    return excess == 0


def levels_above_zero(packed: Tensor, count: int, levels: int) -> Tensor:
    """See `reference.levels_above_zero`, with this module's `unpack_codes`; the answer stays on the GPU."""
    bits = levels.bit_length()
    return (unpack_codes(packed, bits + 1, count) & ((1 << bits) - 1)).count_nonzero()


# --------------------------------------------------------------------------------------------------------------- powers


@triton.jit
def _exponents(numbers, draw, kind: tl.constexpr):  # pragma: no cover
    """Exponent byte + (draw < fraction), at most 254; below 2^-126 the exponent byte is 0, the unit 2^-126."""
    if kind == tl.float32:
        # 24 bits of fraction plus 2^24 - 1 - draw carry into the exponent where draw < fraction
        bits = numbers.to(tl.int32, bitcast=True).to(tl.int64) & 0x7FFFFFFF
        return tl.minimum((2 * bits + (0xFFFFFF - (draw >> 40).to(tl.int64))) >> 24, 254)
    else:
        bits = numbers.to(tl.int64, bitcast=True)
        exponent = ((bits >> 52) & 0x7FF) - 1023 + 127
        top = (draw >> 11).to(tl.int64)
        normal = tl.minimum(exponent + (top < 2 * (bits & 0xFFFFFFFFFFFFF)).to(tl.int64), 254)
        tiny = (top.to(tl.float64) * (2.0**-53) < tl.abs(numbers) * (2.0**126)).to(tl.int64)
        return tl.where(exponent < 1, tiny, normal)


@triton.jit
def _encode_powers(x, keys, starts, tiles, codes, packed, numel, ROWS: tl.constexpr):  # pragma: no cover
    tile = tl.program_id(0).to(tl.int64) * (8 * ROWS)
    at = _rows(tile, ROWS)
    numbers = tl.load(x + at, mask=at < numel, other=0.0)
    draw = tl.zeros((ROWS, 8), tl.uint64)
    piece = tl.load(tiles + tl.program_id(0))
    start, last = tl.load(starts + piece), tl.minimum(tile + 8 * ROWS, numel)
    while start < last:
        stop = tl.load(starts + piece + 1)
        draw = tl.where((at >= start) & (at < stop), _draw(tl.load(keys + piece), at - start), draw)
        piece += 1
        start = stop
    tl.store(codes + at, _exponents(numbers, draw, x.dtype.element_ty).to(tl.uint8), mask=at < numel)
    _store_fields((numbers < 0).to(tl.int64), packed, tile, numel, 1, ROWS)


@triton.jit
def _add_powers(out, codes, packed, alpha, numel, SIZE: tl.constexpr):  # pragma: no cover
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    code = tl.minimum(tl.load(codes + at, mask=at < numel, other=0).to(tl.int32), 254)
    power = (code << 23).to(tl.float32, bitcast=True)  # code 0 is the bits of 0.0
    kind = out.dtype.element_ty
    step = power.to(kind) * tl.load(alpha).to(kind)
    step *= _sign(_load_fields(packed, at, numel, 1, 1))
    tl.store(out + at, tl.load(out + at, mask=at < numel) + step, mask=at < numel)


def power_codes(x: Tensor, layout: Layout, keys: Sequence[int]) -> tuple[Tensor, Tensor]:
    """See `reference.power_codes`: 5 1/8 bytes a float32."""
    if not _served(x, layout):
        return reference.power_codes(x, layout, keys)
    codes, packed = _bytes(x.numel(), x), _bytes((x.numel() + 7) // 8, x)
    if x.numel():
        pieces = _pieces(layout, layout.numel, x.device)
        _encode_powers[(pieces.tiles.numel(),)](
            x, _keys(layout, keys, x.device), pieces.starts, pieces.tiles, codes, packed, x.numel(), TILE // 8, **_EXACT
        )
    return codes, packed


def add_powers_(out: Tensor, codes: Tensor, negative: Tensor, alpha: float) -> Tensor:
    """See `reference.add_powers_`: 9 1/8 bytes a float32."""
    if out.dtype not in (torch.float32, torch.float64) or not out.is_contiguous():
        return reference.add_powers_(out, codes, negative, alpha)
    if out.numel():
        factor = torch.full((1,), alpha, dtype=out.dtype, device=out.device)  # in full precision, unlike an argument
        _add_powers[(triton.cdiv(out.numel(), TILE),)](out, codes, negative, factor, out.numel(), TILE, **_EXACT)
    return out

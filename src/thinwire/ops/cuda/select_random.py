"""rand-k on a GPU: random words are drawn in the kernel, and only those below a limit of the piece looked at again.

Of n uniform words, k + x are expected below (k + x)/n of their range. With x = 40 and nine standard deviations of k
besides, that fewer than k lie there has a probability below 1e-18 (Poisson's law, which bounds it). All pieces share
the room for such candidates: M expected in all, plus 28 + 10 sqrt(M). By Bernstein's inequality, that they are more
has a probability below 1e-18 too. Where either happens, what is drawn still lies inside the vector.

A whole layout takes a fixed number of launches, and none makes the host wait. What depends on layout and counts alone
is brought to the device once; keys may lie there already, and are not read by the host. A CUDA graph can hold a draw.

Bytes moved: 1/8 written for each number and nothing read; for each of slightly more than k candidates 8 for its place,
8 for its word, and what torch's two sorts of these move. Not timed yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops.blocks import one_piece
from thinwire.ops.cuda.launch import Launcher, aligned, ceil_div
from thinwire.ops.cuda.select_above import spread
from thinwire.ops.cuda.topk_kernels import TILE, note, piece_of
from thinwire.ops.keys import GOLDEN, MULTIPLIERS, signed

BLOCK = 1024
"""Candidates of one program."""
HIGHEST = (1 << 63) - 1
"""The largest word, words being signed; as a limit: every word lies below it, this one too."""
_MIXERS = tuple(map(signed, (GOLDEN, *MULTIPLIERS)))

EVERY: tl.constexpr = tl.constexpr(HIGHEST)


@triton.jit
def _word(place, key, GOLDEN: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """SplitMix64 of a counter, as a signed number: see `keys`."""
    z = (place.to(tl.int64) + 1) * GOLDEN + key
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * FIRST
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * SECOND
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@triton.jit
def _below(i, piece, starts, keys, limits, GOLDEN: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """Whether the word of each place lies below the limit of its piece."""
    limit = tl.load(limits + piece)
    word = _word(i - tl.load(starts + piece), tl.load(keys + piece), GOLDEN, FIRST, SECOND)
    return (word < limit) | (limit == EVERY)


@triton.jit(do_not_specialize=["numel"])
def _mark(
    numel, starts, tiles, keys, limits, words, found,
    GOLDEN: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One bit for each place whose word lies below its piece's limit, and how many of them a tile has."""
    t = tl.program_id(0)
    first, last = tl.load(tiles + 2 * t), tl.load(tiles + 2 * t + 1)
    i = t.to(tl.int64) * TILE + tl.arange(0, TILE // 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    if first == last:
        below = _below(i, first, starts, keys, limits, GOLDEN, FIRST, SECOND)
        note(t, (i < numel) & below, words, found, TILE)
    else:
        below = _below(i, piece_of(i, first, last, starts), starts, keys, limits, GOLDEN, FIRST, SECOND)
        note(t, (i < numel) & below, words, found, TILE)


@triton.jit(do_not_specialize=["numel", "pieces", "tiles", "capacity"])
def _draw(
    places, capacity, reached, tiles, numel, starts, pieces, keys, words, owners,
    GOLDEN: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each candidate's word and piece; room without a candidate gets what sorts behind all."""
    c = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    filled = c < tl.load(reached + tiles - 1)
    i = tl.load(places + c, mask=c < capacity, other=0)
    i = tl.where(filled, tl.minimum(tl.maximum(i, 0), numel - 1), 0)  # nobody wrote them where there was no room
    piece = piece_of(i, 0, pieces - 1, starts)
    word = _word(i - tl.load(starts + piece), tl.load(keys + piece), GOLDEN, FIRST, SECOND)
    tl.store(places + c, i, mask=c < capacity)
    tl.store(words + c, tl.where(filled, word, EVERY), mask=c < capacity)
    tl.store(owners + c, tl.where(filled, piece, pieces).to(owners.dtype.element_ty), mask=c < capacity)


@dataclass(frozen=True)
class Drawing:
    """What a draw needs to know of a layout and its counts, on the device."""

    starts: Tensor
    limits: Tensor
    """Below which word a number of each piece is a candidate."""
    counts: Tensor
    """Of the pieces, and zero for room without a candidate."""
    owners: Tensor
    """0 to the number of pieces, in the narrowest type: those are sorted by."""
    tiles: Tensor
    """The first and the last piece of each tile."""
    numel: int
    total: int
    capacity: int
    """Room for candidates."""
    launchers: dict[object, Launcher]

    @property
    def pieces(self) -> int:
        return self.starts.numel()

    @property
    def number(self) -> int:
        return self.tiles.shape[0]


@lru_cache(maxsize=256)
def drawing(layout: Layout, counts: tuple[int, ...], device: torch.device) -> Drawing:
    """Made once for each layout and its counts: bringing tables to the device makes the host wait."""
    starts = np.array([piece.offset for piece in layout.pieces], np.int64)
    taken = [min(k, piece.numel) for k, piece in zip(counts, layout.pieces, strict=True)]
    expected = [_expected(k, piece.numel) for k, piece in zip(taken, layout.pieces, strict=True)]
    limits = [_limit(most, piece.numel) for most, piece in zip(expected, layout.pieces, strict=True)]
    return Drawing(
        torch.from_numpy(starts).to(device),
        torch.tensor(limits, dtype=torch.int64).to(device),
        torch.tensor([*taken, 0], dtype=torch.int64).to(device),
        torch.arange(len(taken) + 1).to(_narrowest(len(taken))).to(device),
        torch.from_numpy(_tiles(starts, layout.numel)).to(device),
        layout.numel,
        sum(taken),
        min(layout.numel, sum(expected) + int(28 + 10 * sum(expected) ** 0.5)),
        defaultdict(Launcher),
    )


def _tiles(starts: Any, numel: int) -> Any:
    """The first and the last piece of each tile."""
    tile = np.arange(0, numel, TILE)
    ends = [np.searchsorted(starts, place, side="right") - 1 for place in (tile, np.minimum(tile + TILE, numel) - 1)]
    return np.stack(ends, 1).astype(np.int32)


def _expected(k: int, numel: int) -> int:
    """How many candidates of a piece are expected below its limit: k and nine standard deviations, and 40.

    >>> _expected(0, 1000), _expected(10_000, 1_000_000), _expected(90, 100)
    (0, 10935, 100)
    """
    return min(numel, int(k + 9 * (k * (1 - k / numel)) ** 0.5 + 40)) if k else 0


def _limit(expected: int, numel: int) -> int:
    """The word below which so many are expected.

    >>> _limit(0, 8) == -(1 << 63), _limit(4, 8), _limit(8, 8) == HIGHEST
    (True, 0, True)
    """
    if not expected:
        return -(1 << 63)
    return HIGHEST if expected == numel else (expected << 64) // numel - (1 << 63)


def _narrowest(most: int) -> torch.dtype:
    """The narrowest type that holds so large a number: a sort by radix takes a pass for each byte."""
    return torch.uint8 if most < 1 << 8 else torch.int16 if most < 1 << 15 else torch.int32


def randk_indices(key: int, numel: int, k: int, device: torch.device) -> Tensor:
    """See `reference.randk_indices`."""
    return randk_positions(one_piece(numel), (k,), torch.tensor([signed(key)]), device)


def randk_positions(layout: Layout, counts: Sequence[int], keys: Tensor, device: torch.device) -> Tensor:
    """See `reference.randk_positions`; keys that lie on the device are not read by the host."""
    table = drawing(layout, tuple(counts), device)
    if not table.total:
        return torch.empty(0, dtype=torch.int64, device=device)
    places, words, owners = _candidates(table, _brought(keys, device), device)
    chosen = _chosen(table, words, owners)
    return places[torch.nonzero_static(chosen, size=table.total, fill_value=0).squeeze(1)]


def _brought(keys: Tensor, device: torch.device) -> Tensor:
    """The keys on the device, without making the host wait."""
    if keys.device.type == device.type:
        return keys.to(device).contiguous()
    return keys.pin_memory().to(device, non_blocking=True)


def _candidates(table: Drawing, keys: Tensor, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The places whose words lie below the limits, in order, with their words and pieces, and room without any."""
    launch = table.launchers[aligned(keys)]
    bits = torch.empty(table.number * (TILE // 32), dtype=torch.int32, device=device)
    found = torch.empty(table.number, dtype=torch.int64, device=device)
    launch(
        "mark", _mark, (table.number,),
        table.numel, table.starts, table.tiles, keys, table.limits, bits, found, *_MIXERS, TILE, num_warps=8,
    )  # fmt: skip
    reached = found.cumsum(0)
    places = spread(bits, reached, table.capacity, launch)
    words = torch.empty_like(places)
    owners = torch.empty(table.capacity, dtype=table.owners.dtype, device=device)
    launch(
        "draw", _draw, (ceil_div(table.capacity, BLOCK),),
        places, table.capacity, reached, table.number, table.numel, table.starts, table.pieces, keys, words, owners,
        *_MIXERS, BLOCK, num_warps=4,
    )  # fmt: skip
    return places, words, owners


def _chosen(table: Drawing, words: Tensor, owners: Tensor) -> Tensor:
    """Which candidates have the smallest words of their piece: sorted by word, then by piece, the first of each run."""
    order = words.argsort(stable=True)
    run, within = owners[order].sort(stable=True)
    ends = torch.searchsorted(run, table.owners) + table.counts
    rank = torch.arange(table.capacity, device=words.device)
    return torch.zeros_like(rank, dtype=torch.bool).scatter_(0, order[within], rank < ends[run.to(torch.int64)])

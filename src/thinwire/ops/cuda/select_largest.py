"""The steps of a selection on a GPU: tables of a layout, kernels in their order, nothing that makes the host wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops.blocks import of_filled, on_device
from thinwire.ops.cuda import topk_kernels as kernels
from thinwire.ops.cuda.launch import Launcher, aligned, ceil_div, float32_in_one_stretch
from thinwire.ops.cuda.topk_kernels import BINS, DIFFERENCE, MEMORY, PLAIN, SAMPLE, SCATTER, TILE, WIDEST
from thinwire.ops.live import LiveRatios

WARPS = 8
"""Of 32 threads each, for a tile of the one pass."""
WEIGHED = 1024
"""Candidates that one program weighs."""
BLOCK = 4096
"""Candidates of one program that can read tiles too: these need so many registers that a multiprocessor runs one."""
WORDS = 256
"""Words of the map of bits that one program spreads."""
SUMMED = 2048
"""Numbers that a program sums up at once."""
PROGRAMS = 264
"""Programs that walk over all tiles after a failure: two for each multiprocessor of an H200."""


@dataclass(frozen=True)
class Tables:
    """What the kernels know of a layout and its counts, on the device."""

    starts: Tensor
    """Where the pieces begin (those that are not empty), and the end of the last."""
    counts: Tensor
    tiles: Tensor
    """The first and the last piece of each tile."""
    total: int
    capacity: int
    """Room for candidates: half as many again as are expected."""
    launchers: dict[object, Launcher]

    @property
    def pieces(self) -> int:
        return self.counts.numel()

    @property
    def number(self) -> int:
        return self.tiles.shape[0]


@lru_cache(maxsize=256)
def tables(layout: Layout, counts: tuple[int, ...], device: torch.device) -> Tables:
    """Made once for each layout and its counts: bringing tables to the device makes the host wait."""
    filled = [(piece, k) for piece, k in zip(layout.pieces, counts, strict=True) if piece.numel]
    starts = np.array([piece.offset for piece, _ in filled] + [layout.numel], np.int64)
    tile = np.arange(0, layout.numel, TILE)
    last = np.minimum(tile + TILE, layout.numel) - 1
    ends = np.stack([np.searchsorted(starts, place, side="right") - 1 for place in (tile, last)], 1)
    return Tables(
        torch.from_numpy(starts).to(device),
        torch.tensor([k for _, k in filled], dtype=torch.int64, device=device),
        torch.from_numpy(ends.astype(np.int32)).to(device),
        sum(k for _, k in filled),
        min(layout.numel, 4096 + sum(_candidates(piece.numel, k) for piece, k in filled)),
        defaultdict(Launcher),
    )


def _candidates(numel: int, k: int) -> int:
    """Half as many again as should reach the floor that `sample` estimates for a piece."""
    size = min(numel, SAMPLE)
    expected = size * k / numel
    rank = k if numel <= SAMPLE else expected + 4 * expected**0.5 + 3
    return min(numel, int(1.5 * numel * rank / size) + 64)


def select(
    kind: int, a: Tensor, b: Tensor, layout: Layout, counts: Sequence[int], ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """Positions and values of each piece's top-k; `a` is stepped on as `kind` says."""
    table = tables(layout, tuple(counts), a.device)
    positions = torch.empty(table.total, dtype=torch.int64, device=a.device)
    values = torch.empty(table.total, dtype=a.dtype, device=a.device)
    if table.total:
        _Selection(kind, a, b, table, scales_of(layout, ratios, a.device)).run(positions, values)
    return positions, values


def scales_of(layout: Layout, ratios: Sequence[float] | None, device: torch.device) -> Tensor | None:
    """The ratios of the pieces that are not empty, unless all are known to be one."""
    if isinstance(ratios, LiveRatios):
        return of_filled(ratios.numbers, layout).to(torch.float32)
    if ratios is None or all(ratio == 1.0 for ratio in ratios):
        return None
    numbers = tuple(float(r) for piece, r in zip(layout.pieces, ratios, strict=True) if piece.numel)
    return on_device(numbers, torch.float32, device)


class _Selection:
    """One selection: sample, collect, narrow the histogram down, count, place."""

    def __init__(self, kind: int, a: Tensor, b: Tensor, table: Tables, scales: Tensor | None) -> None:
        self.kind, self.a, self.b, self.table, self.scales = kind, a, b, table, scales
        self.again = PLAIN if kind == MEMORY else kind
        self.launch = table.launchers[kind, scales is None, aligned(a, b)]
        self.blocks: int = ceil_div(table.capacity, BLOCK)
        pieces, device = table.pieces, a.device
        self.copies = 8 if pieces <= 16 else 1
        sizes = [self.copies * pieces * BINS, 2 * pieces, 4, *[pieces] * 5]
        self.histogram, self.around, self.flags, self.floors, self.shifts, self.spans, self.wanted, self.guesses = (
            torch.empty(sum(sizes), dtype=torch.int32, device=device).split(sizes)
        )
        self.failure, *self.open = self.flags.split(1)
        sizes = [table.capacity, table.number, *[max(self.blocks, table.number)] * 2, *[pieces] * 2]
        self.places, self.found, self.tallies, self.sums, self.ties, self.before = torch.empty(
            sum(sizes), dtype=torch.int64, device=device
        ).split(sizes)
        self.entries = torch.empty(table.capacity, dtype=a.dtype, device=device)
        self.owners = torch.empty(table.capacity, dtype=torch.int32, device=device)

    def run(self, positions: Tensor, values: Tensor) -> None:
        self._collect()
        self._narrow()
        self._place(positions, values)

    def _collect(self) -> None:
        """The one pass, and the candidates it found."""
        table, scales = self.table, self.scales if self.scales is not None else self.table.counts
        scaled = self.scales is not None
        self.launch(
            "sample", kernels.sample, (table.pieces,),
            self.a, self.b, scales, table.starts, table.counts, self.floors, self.shifts, self.guesses,
            self.histogram, self.around, self.flags, self.kind, scaled, SAMPLE, SCATTER, BINS, WIDEST, self.copies,
            num_warps=16, enable_fp_fusion=False,
        )  # fmt: skip
        words = torch.empty(table.number * (TILE // 32), dtype=torch.int32, device=self.a.device)
        self.launch(
            "collect", kernels.collect, (table.number,),
            self.a, self.b, self.a.numel(), scales, table.starts, table.tiles, self.floors, words, self.found,
            self.kind, scaled, TILE, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
        self.reached = self.found.cumsum(0)
        self.launch(
            "spread", kernels.spread, (ceil_div(words.numel(), WORDS),),
            words, words.numel(), self.reached, table.number, self.places, table.capacity, WORDS, TILE, num_warps=2,
        )  # fmt: skip
        self.launch(
            "weigh", kernels.weigh, (ceil_div(table.capacity, WEIGHED),),
            self.a, self.b, table.starts, table.pieces, self.reached, table.number, table.capacity, self.floors,
            self.shifts, self.histogram, self.places, self.entries, self.owners, self.again, WEIGHED, BINS, self.copies,
            num_warps=4,
        )  # fmt: skip

    def _narrow(self) -> None:
        """The exact k-th magnitude of each piece: 11 bits at a time, most often in two steps."""
        table = self.table
        self._pick(self.open[0], opening=True)
        self.launch(
            "recount", kernels.recount, (min(PROGRAMS, table.number),),
            self.a, self.b, self.a.numel(), table.starts, table.tiles, table.number, self.failure, self.histogram,
            self.guesses, self.around, self.again, TILE, BINS, WIDEST, num_warps=8,
        )  # fmt: skip
        self._pick(self.open[0], retry=True)
        for still_open, next_open in (self.open[:2], self.open[1:]):
            self.launch(
                f"refine {still_open.storage_offset()}", kernels.refine, (self._programs,),
                *self._found, self.floors, self.shifts, self.spans, self.failure, still_open, self.histogram,
                self.again, BLOCK, TILE, BINS, num_warps=8,
            )  # fmt: skip
            self._pick(next_open)

    @property
    def _programs(self) -> int:
        return max(self.blocks, min(PROGRAMS, self.table.number))

    @property
    def _found(self) -> tuple[Any, ...]:
        table = self.table
        return (
            self.a, self.b, self.a.numel(), table.starts, table.tiles, table.number, self.reached, self.places,
            self.entries, self.owners,
        )  # fmt: skip

    def _pick(self, still_open: Tensor, *, retry: bool = False, opening: bool = False) -> None:
        self.launch(
            f"pick {retry} {opening} {still_open.storage_offset()}", kernels.pick, (self.table.pieces,),
            self.histogram, self.table.counts, self.floors, self.shifts, self.spans, self.wanted, self.ties,
            self.guesses, self.around, self.failure, still_open, retry, opening, BINS, WIDEST, self.copies, num_warps=8,
        )  # fmt: skip

    def _place(self, positions: Tensor, values: Tensor) -> None:
        """The winners in order: what stands before each block and before each piece says where they begin."""
        table = self.table
        self.launch(
            "count", kernels.count, (self._programs,),
            *self._found, self.failure, self.floors, self.tallies, self.blocks, self.again, BLOCK, TILE, num_warps=8,
        )  # fmt: skip
        self.launch(
            "stand", kernels.stand, (2,),
            self.tallies, table.number, self.blocks, self.failure, self.sums, self.ties, table.pieces, self.before,
            SUMMED, num_warps=8,
        )  # fmt: skip
        self.launch(
            "place", kernels.place, (self._programs,),
            *self._found, self.failure, self.floors, self.ties, self.before, self.tallies, self.sums,
            self.blocks, positions, values, self.kind, self.again, BLOCK, TILE, num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip


@float32_in_one_stretch
def topk(x: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """See `reference.topk`."""
    return select(PLAIN, x, x, layout, counts, None)


@float32_in_one_stretch
def memory_topk_(
    error: Tensor, value: Tensor, layout: Layout, counts: Sequence[int], ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """See `reference.memory_topk_`."""
    return select(MEMORY, error, value, layout, counts, ratios)


@float32_in_one_stretch
def difference_topk_(local: Tensor, target: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """See `reference.difference_topk_`."""
    return select(DIFFERENCE, local, target, layout, counts, None)

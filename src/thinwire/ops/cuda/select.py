"""The steps of a selection on a GPU: tables of a layout, kernels in their order, nothing that makes the host wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops.cuda import topk_kernels as kernels
from thinwire.ops.cuda.topk_kernels import BINS, DIFFERENCE, MEMORY, PLAIN, SAMPLE, TILE, WIDEST

WARPS = 8
"""Of 32 threads each, for a tile of the one pass."""
PROGRAMS = 1056
"""Programs of a kernel that seldom has anything to do: eight for each multiprocessor of an H200."""


@dataclass(frozen=True)
class Tables:
    """What the kernels know of a layout and its counts, on the device."""

    starts: Tensor
    """Where the pieces begin (those that are not empty), and the end of the last."""
    counts: Tensor
    tiles: Tensor
    """The first and the last piece of each tile."""
    total: int
    room: int
    """Slots of a tile: about twice as many as candidates are expected."""

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
    total = sum(k for _, k in filled)
    expected = 1.5 * TILE * total / max(1, layout.numel)
    return Tables(
        torch.from_numpy(starts).to(device),
        torch.tensor([k for _, k in filled], dtype=torch.int64, device=device),
        torch.from_numpy(ends.astype(np.int32)).to(device),
        total,
        min(TILE // 4, triton.next_power_of_2(int(2 * expected + 32))),
    )


def on_device(numbers: Sequence[float], device: torch.device) -> Tensor:
    """A few numbers, without making the host wait."""
    tensor = torch.tensor(list(numbers), dtype=torch.float32)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def select(
    kind: int, a: Tensor, b: Tensor, layout: Layout, counts: Sequence[int], ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """Positions and values of each piece's top-k; `a` is stepped on as `kind` says."""
    table = tables(layout, tuple(counts), a.device)
    positions = torch.empty(table.total, dtype=torch.int64, device=a.device)
    values = torch.empty(table.total, dtype=a.dtype, device=a.device)
    if table.total:
        _Selection(kind, a, b, table, _scales(layout, ratios, a.device)).run(positions, values)
    return positions, values


def _scales(layout: Layout, ratios: Sequence[float] | None, device: torch.device) -> Tensor | None:
    if ratios is None or all(ratio == 1.0 for ratio in ratios):
        return None
    return on_device([r for piece, r in zip(layout.pieces, ratios, strict=True) if piece.numel], device)


class _Selection:
    """One selection: sample, collect, narrow the histogram down, count, place."""

    def __init__(self, kind: int, a: Tensor, b: Tensor, table: Tables, scales: Tensor | None) -> None:
        self.kind, self.a, self.b, self.table, self.scales = kind, a, b, table, scales
        self.again = PLAIN if kind == MEMORY else kind
        pieces, number, device = table.pieces, table.number, a.device
        self.zeroed = torch.zeros(pieces * (BINS + 1) + 4, dtype=torch.int32, device=device)
        self.histogram, self.failed = self.zeroed[: pieces * BINS], self.zeroed[pieces * BINS : -4]
        self.failure, *self.open = (self.zeroed[i : i + 1] for i in range(-4, -1))
        fields = torch.empty(5, pieces, dtype=torch.int32, device=device)
        self.floors, self.shifts, self.spans, self.wanted, self.ties = fields
        self.found = torch.empty(number, dtype=torch.int32, device=device)
        self.places = torch.empty(number * table.room, dtype=torch.int16, device=device)
        self.entries = torch.empty(number * table.room, dtype=a.dtype, device=device)

    def run(self, positions: Tensor, values: Tensor) -> None:
        self._collect()
        self._narrow()
        self._place(positions, values)

    def _collect(self) -> None:
        table, scales = self.table, self.scales if self.scales is not None else self.table.counts
        scaled = self.scales is not None
        kernels.sample[(table.pieces,)](
            self.a, self.b, scales, table.starts, table.counts, self.floors, self.shifts, self.wanted, self.kind,
            scaled, SAMPLE, 8, BINS, WIDEST, num_warps=16, enable_fp_fusion=False,
        )  # fmt: skip
        kernels.collect[(table.number,)](
            self.a, self.b, self.a.numel(), scales, table.starts, table.tiles, self.floors, self.shifts,
            self.histogram, self.found, self.places, self.entries, self.kind, scaled, table.room, TILE, BINS,
            num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip

    def _narrow(self) -> None:
        """The exact k-th magnitude of each piece: 11 bits at a time, most often in two steps."""
        table = self.table
        self._pick(self.open[0], opening=True)
        kernels.recount[(min(PROGRAMS, table.number),)](
            self.a, self.b, self.a.numel(), table.starts, table.tiles, table.number, self.failed, self.failure,
            self.histogram, self.found, self.again, table.room, TILE, BINS, WIDEST, num_warps=8,
        )  # fmt: skip
        self._pick(self.open[0], retry=True)
        self._refine(self.open[0], table.number)
        self._pick(self.open[1])
        self._refine(self.open[1], PROGRAMS)
        self._pick(self.open[1])

    def _pick(self, still_open: Tensor, *, retry: bool = False, opening: bool = False) -> None:
        kernels.pick[(self.table.pieces,)](
            self.histogram, self.floors, self.shifts, self.spans, self.wanted, self.ties, self.failed, self.failure,
            still_open, retry, opening, BINS, WIDEST, num_warps=8,
        )  # fmt: skip

    def _refine(self, still_open: Tensor, programs: int) -> None:
        table = self.table
        kernels.refine[(min(programs, table.number),)](
            self.a, self.b, self.a.numel(), table.starts, table.tiles, table.number, self.found, self.places,
            self.entries, self.floors, self.shifts, self.spans, still_open, self.histogram, self.again, table.room,
            TILE, BINS, num_warps=4,
        )  # fmt: skip

    def _place(self, positions: Tensor, values: Tensor) -> None:
        table = self.table
        tallies = torch.empty(table.number, dtype=torch.int64, device=self.a.device)
        shared: tuple[Any, ...] = (
            self.a, self.b, self.a.numel(), table.starts, table.tiles, self.found, self.places, self.entries,
            self.floors,
        )  # fmt: skip
        kernels.count[(table.number,)](*shared, tallies, self.again, table.room, TILE, num_warps=4)
        ties = self.wanted.to(torch.int64) + (self.ties.to(torch.int64) << 32)
        before = ties.cumsum(0) - ties
        kernels.place[(table.number,)](
            *shared, self.wanted, before, tallies.cumsum(0), positions, values, self.kind, self.again, table.room,
            TILE, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip


__all__ = ["DIFFERENCE", "MEMORY", "PLAIN", "select"]

"""VGC's step and the hybrid's on a GPU: one pass over r, v, g and q, in Triton, and one over what is sent.

The pass notes in a map of bits which entries are unambiguous, and leaves them undecayed (VGC) or already without
sign(r) tau (hybrid). How many there are is not known beforehand, so the host waits once, for that number; then their
places are written in order, and what is sent of each.

Bytes moved for each number: 24 1/8 (read g, q, r and v; write r and v; a bit). For each find some 150 more (hybrid 60),
most of them the sectors of 32 bytes around it. On an H200, 100 M numbers: the pass takes 0.56 ms (hybrid 0.61), as
long as a copy takes to move 24 bytes a number (0.57 ms); fetching what is sent takes 0.14 ms at 1 %, 0.45 ms at 5 %
(hybrid 0.03 and 0.10 ms), and writing the places 0.02 to 0.05 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops.cuda.launch import Launcher, aligned, float32_in_one_stretch
from thinwire.ops.cuda.select_above import places_of
from thinwire.ops.cuda.select_largest import tables
from thinwire.ops.cuda.topk_kernels import TILE, load, note, piece_of

WARPS = 16
"""Of 32 threads each, for a tile: with 8 of them the pass takes 0.62 ms in place of 0.56 (hybrid 0.635, 0.61)."""
BLOCK = 1024
"""Finds of one program."""


@triton.jit
def _step_tile(
    t, offset, inside, alpha, total, squares, value, moment, zeta, tau, words, found,
    hybrid: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """r <- r + g, v <- v + q, the test, and v's decay where it fails."""
    start = t.to(tl.int64) * TILE
    r = load(total + start + offset, inside) + load(value + start + offset, inside)
    v = load(squares + start + offset, inside) + load(moment + start + offset, inside)
    clear = r * r > alpha * v
    kept = v
    if hybrid:
        size = tl.abs(r)
        clear = clear & (size > tau)
        kept = tl.maximum(v - tau * (2.0 * size - tau), 0.0, propagate_nan=tl.PropagateNan.ALL)
        r = tl.where(clear, r - tl.where(r < 0, -1.0, 1.0) * tau, r)
    tl.store(total + start + offset, r, mask=inside)
    tl.store(squares + start + offset, tl.where(clear, kept, zeta * v), mask=inside)
    note(t, clear, words, found, TILE)


@triton.jit(do_not_specialize=["numel"])
def step(
    total, squares, value, moment, numel, starts, tiles, alphas, zeta, tau, words, found,
    hybrid: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The one pass. A whole tile of one piece has no masks, so that loads are 16 bytes wide."""
    t = tl.program_id(0)
    offset = tl.arange(0, TILE // 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    first, last = tl.load(tiles + 2 * t), tl.load(tiles + 2 * t + 1)
    if (first == last) & ((t + 1).to(tl.int64) * TILE <= numel):
        _step_tile(
            t, offset, None, tl.load(alphas + first), total, squares, value, moment, zeta, tau, words, found,
            hybrid, TILE,
        )  # fmt: skip
    else:
        i = t.to(tl.int64) * TILE + offset
        _step_tile(
            t, offset, i < numel, tl.load(alphas + piece_of(i, first, last, starts)),
            total, squares, value, moment, zeta, tau, words, found, hybrid, TILE,
        )  # fmt: skip


@triton.jit(do_not_specialize=["count"])
def take(total, squares, places, count, values, taken, BLOCK: tl.constexpr):
    """r and v of each find; zero is left."""
    c = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = c < count
    i = tl.load(places + c, mask=inside, other=0)
    r, v = tl.load(total + i, mask=inside, other=0.0), tl.load(squares + i, mask=inside, other=0.0)
    tl.store(values + c, r, mask=inside)
    tl.store(taken + c, v, mask=inside)
    tl.store(total + i, tl.zeros_like(r), mask=inside)
    tl.store(squares + i, tl.zeros_like(v), mask=inside)


@triton.jit(do_not_specialize=["count"])
def signs(total, places, count, tau, values, BLOCK: tl.constexpr):
    """sign(r) tau of each find: taking it out leaves the sign of r, because |r| > tau."""
    c = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    r = tl.load(total + tl.load(places + c, mask=c < count, other=0), mask=c < count, other=0.0)
    tl.store(values + c, tl.where(r < 0, -1.0, 1.0) * tau, mask=c < count)


@lru_cache(maxsize=256)
def _filled(layout: Layout, device: torch.device) -> Tensor:
    """The pieces that are not empty; kept, because bringing it to the device makes the host wait."""
    places = [i for i, piece in enumerate(layout.pieces) if piece.numel]
    return torch.tensor(places, dtype=torch.int64, device=device)


def _step(
    state: Sequence[Tensor], layout: Layout, alphas: Tensor, zeta: float, tau: float | None
) -> tuple[Tensor, Launcher]:
    """The one pass over r, v, g and q: where something is sent, and what launches the rest."""
    total, table = state[0], tables(layout, (0,) * len(layout.pieces), state[0].device)
    mine = alphas if table.pieces == len(layout.pieces) else alphas[_filled(layout, total.device)]
    launch = table.launchers["variance", tau is None, aligned(*state, mine)]
    if total.numel() == 0:
        return torch.empty(0, dtype=torch.int64, device=total.device), launch
    words = torch.empty(table.number * (TILE // 32), dtype=torch.int32, device=total.device)
    found = torch.empty(table.number, dtype=torch.int64, device=total.device)
    launch(
        "step", step, (table.number,),
        *state, total.numel(), table.starts, table.tiles, mine, zeta, tau or 0.0, words, found, tau is not None, TILE,
        num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return places_of(words, found, launch), launch


@float32_in_one_stretch
def variance_(
    total: Tensor, squares: Tensor, value: Tensor, moment: Tensor, layout: Layout, alphas: Tensor, zeta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.variance_`."""
    places, launch = _step((total, squares, value, moment), layout, alphas, zeta, None)
    values, taken = (torch.empty(places.numel(), dtype=total.dtype, device=total.device) for _ in range(2))
    if places.numel():
        grid = (triton.cdiv(places.numel(), BLOCK),)
        launch("take", take, grid, total, squares, places, places.numel(), values, taken, BLOCK, num_warps=4)
    return places, values, taken


@float32_in_one_stretch
def variance_strom_(
    total: Tensor,
    squares: Tensor,
    value: Tensor,
    moment: Tensor,
    layout: Layout,
    alphas: Tensor,
    zeta: float,
    tau: float,
) -> tuple[Tensor, Tensor]:
    """See `reference.variance_strom_`."""
    quantum = float(torch.tensor(tau, dtype=torch.float64).to(torch.float32))  # infinite, where a cast would fail
    places, launch = _step((total, squares, value, moment), layout, alphas, zeta, quantum)
    values = torch.empty(places.numel(), dtype=total.dtype, device=total.device)
    if places.numel():
        grid = (triton.cdiv(places.numel(), BLOCK),)
        launch("signs", signs, grid, total, places, places.numel(), quantum, values, BLOCK, num_warps=4)
    return places, values

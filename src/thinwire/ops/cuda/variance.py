"""VGC's step and the hybrid's on a GPU: one pass over r, v, g and q, in Triton, and one over what is sent.

The pass notes in a map of bits which entries are unambiguous. The hybrid takes sign(r) tau out of them at once. VGC
takes r and v out, and puts them aside: there is room for four of each 32 numbers, a byte for each number of the
vector; what has no room stays where it is. How many there are is not known beforehand, so the host waits once, for that
number; then places and values are written in order.

Bytes moved for each number: 24 1/8 (read g, q, r and v; write r and v; a bit). Fetching 5 % of the numbers from r and v
after the pass took 0.45 ms of 100 M on an H200, as long as 19 bytes for each number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops.cuda.above import spread
from thinwire.ops.cuda.bits import popcount
from thinwire.ops.cuda.launch import aligned
from thinwire.ops.cuda.select import WORDS, tables
from thinwire.ops.cuda.topk_kernels import TILE, first_bits, load, note, piece_of
from thinwire.ops.stretch import in_one_stretch

WARPS = 16
"""Of 32 threads each, for a tile: 100 M numbers take 0.56 ms on an H200, with 8 warps 0.62 (1 % sent)."""
ROOM = 4
"""Finds put aside of each 32 numbers: where 5 % are sent, 1.6 % of them have no room."""
BLOCK = 1024
"""Finds of one program."""


@triton.jit
def _sums(t, offset, inside, total, squares, value, moment, TILE: tl.constexpr):
    """r + g and v + q of a tile, and where they are to be stored."""
    start = t.to(tl.int64) * TILE
    r = load(total + start + offset, inside) + load(value + start + offset, inside)
    v = load(squares + start + offset, inside) + load(moment + start + offset, inside)
    return r, v, total + start + offset, squares + start + offset


@triton.jit
def _step_tile(
    t, offset, inside, alpha, total, squares, value, moment, zeta, tau, words, found, aside_r, aside_v,
    hybrid: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """r <- r + g, v <- v + q, the test, what is sent taken out, and v's decay elsewhere."""
    r, v, to_r, to_v = _sums(t, offset, inside, total, squares, value, moment, TILE)
    clear = r * r > alpha * v
    if hybrid:
        size = tl.abs(r)
        clear = clear & (size > tau)
        note(t, clear, words, found, TILE)
        kept = tl.maximum(v - tau * (2.0 * size - tau), 0.0)
        r = tl.where(clear, r - tl.where(r < 0, -1.0, 1.0) * tau, r)
    else:
        row, column = tl.arange(0, TILE // 32)[:, None], tl.arange(0, 32)[None, :]
        earlier = popcount(note(t, clear, words, found, TILE)[:, None] & ((1 << column) - 1))
        fits = clear & (earlier < ROOM)
        slot = t.to(tl.int64) * (TILE // 32 * ROOM) + row * ROOM + earlier
        tl.store(aside_r + slot, r, mask=fits)
        tl.store(aside_v + slot, v, mask=fits)
        r, kept = tl.where(fits, 0.0, r), tl.where(fits, 0.0, v)
    tl.store(to_r, r, mask=inside)
    tl.store(to_v, tl.where(clear, kept, zeta * v), mask=inside)


@triton.jit(do_not_specialize=["numel"])
def step(
    total, squares, value, moment, numel, starts, tiles, alphas, zeta, tau, words, found, aside_r, aside_v,
    hybrid: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The one pass. A whole tile of one piece has no masks, so that loads are 16 bytes wide."""
    t = tl.program_id(0)
    offset = tl.arange(0, TILE // 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    first, last = tl.load(tiles + 2 * t), tl.load(tiles + 2 * t + 1)
    if (first == last) & ((t + 1).to(tl.int64) * TILE <= numel):
        _step_tile(
            t, offset, None, tl.load(alphas + first), total, squares, value, moment, zeta, tau, words, found,
            aside_r, aside_v, hybrid, ROOM, TILE,
        )  # fmt: skip
    else:
        i = t.to(tl.int64) * TILE + offset
        _step_tile(
            t, offset, i < numel, tl.load(alphas + piece_of(i, first, last, starts)),
            total, squares, value, moment, zeta, tau, words, found, aside_r, aside_v, hybrid, ROOM, TILE,
        )  # fmt: skip


@triton.jit(do_not_specialize=["number"])
def take(
    words, number, reached, aside_r, aside_v, total, squares, places, values, taken,
    ROOM: tl.constexpr, WORDS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Places, r and v of all finds in order; where one had no room aside, zero is left now."""
    left, w, slot = first_bits(words, number, reached, WORDS, TILE)
    earlier = tl.program_id(0) * 0
    while tl.sum((left != 0).to(tl.int32)) > 0:
        some, lowest = left != 0, left & -left
        i = w * 32 + popcount(lowest - 1)
        if earlier < ROOM:
            r = tl.load(aside_r + w * ROOM + earlier, mask=some, other=0.0)
            v = tl.load(aside_v + w * ROOM + earlier, mask=some, other=0.0)
        else:
            r = tl.load(total + i, mask=some, other=0.0)
            v = tl.load(squares + i, mask=some, other=0.0)
            tl.store(total + i, tl.zeros_like(r), mask=some)
            tl.store(squares + i, tl.zeros_like(v), mask=some)
        tl.store(places + slot, i, mask=some)
        tl.store(values + slot, r, mask=some)
        tl.store(taken + slot, v, mask=some)
        slot += 1
        earlier += 1
        left ^= lowest


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


class _Step:
    """The one pass over r, v, g and q, each in one stretch: what it found, and what launches the rest."""

    def __init__(
        self, state: Sequence[Tensor], layout: Layout, alphas: Tensor, zeta: float, tau: float | None
    ) -> None:  # fmt: skip
        device, table = state[0].device, tables(layout, (0,) * len(layout.pieces), state[0].device)
        mine = alphas if table.pieces == len(layout.pieces) else alphas[_filled(layout, device)]
        self.launch = table.launchers["variance", tau is None, aligned(*state, mine)]
        self.words = torch.empty(table.number * (TILE // 32), dtype=torch.int32, device=device)
        self.aside = torch.empty(2, self.words.numel() * (ROOM if tau is None else 0), device=device)
        found = torch.empty(table.number, dtype=torch.int64, device=device)
        self.launch(
            "step", step, (table.number,),
            *state, state[0].numel(), table.starts, table.tiles, mine, zeta, tau or 0.0, self.words, found, *self.aside,
            tau is not None, ROOM, TILE, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
        self.reached = found.cumsum(0)
        self.count = int(self.reached[-1])


def variance_(
    total: Tensor, squares: Tensor, value: Tensor, moment: Tensor, layout: Layout, alphas: Tensor, zeta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.variance_`."""
    with in_one_stretch(total, squares) as state:
        done = _Step((*state, value.contiguous(), moment.contiguous()), layout, alphas, zeta, None)
        places = torch.empty(done.count, dtype=torch.int64, device=total.device)
        values, taken = (torch.empty(done.count, device=total.device) for _ in range(2))
        done.launch(
            "take", take, (triton.cdiv(done.words.numel(), WORDS),),
            done.words, done.words.numel(), done.reached, *done.aside, *state, places, values, taken, ROOM, WORDS, TILE,
            num_warps=2,
        )  # fmt: skip
    return places, values, taken


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
    with in_one_stretch(total, squares) as state:
        done = _Step((*state, value.contiguous(), moment.contiguous()), layout, alphas, zeta, quantum)
        places = spread(done.words, done.reached, done.count, done.launch)
        values = torch.empty(done.count, device=total.device)
        grid = (max(1, triton.cdiv(done.count, BLOCK)),)
        done.launch("signs", signs, grid, state[0], places, done.count, quantum, values, BLOCK, num_warps=4)
    return places, values

"""All that reaches a fixed threshold on a GPU: the one pass of the top-k, with the threshold as its floor.

Bytes moved for each number: memory step 12 1/8, difference 8 1/8, plain 4 1/8; for each find 8 (its place), and by
torch's gather and scatter the sectors of 32 bytes around it. The pass is `topk_kernels.collect`, which on an H200 and
100 M numbers takes 0.299 ms, 98 % of the speed of a copy. How many reach the threshold is not known beforehand, so the
host waits once, for that number.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops.blocks import one_piece
from thinwire.ops.cuda import topk_kernels as kernels
from thinwire.ops.cuda.launch import Launcher, aligned, float32_in_one_stretch
from thinwire.ops.cuda.select_largest import WARPS, WORDS, scales_of, tables
from thinwire.ops.cuda.topk_kernels import DIFFERENCE, MEMORY, PLAIN, TILE


def positions_above(
    kind: int, a: Tensor, b: Tensor, layout: Layout, tau: float, ratios: Sequence[float] | None
) -> Tensor:
    """Where the vector (see `topk_kernels`) reaches tau; a memory step's sum then stands in `a`."""
    if a.numel() == 0:
        return torch.empty(0, dtype=torch.int64, device=a.device)
    table = tables(layout, (0,) * len(layout.pieces), a.device)
    scales = scales_of(layout, ratios, a.device)
    launch = table.launchers["above", kind, scales is None, aligned(a, b)]
    # for floats above zero the order of the bits is the order of the numbers
    bits = torch.tensor(tau, dtype=torch.float64).to(torch.float32).view(torch.int32)
    floors = torch.full((table.pieces,), int(bits), dtype=torch.int32, device=a.device)
    words = torch.empty(table.number * (TILE // 32), dtype=torch.int32, device=a.device)
    found = torch.empty(table.number, dtype=torch.int64, device=a.device)
    launch(
        "collect", kernels.collect, (table.number,),
        a, b, a.numel(), table.counts if scales is None else scales, table.starts, table.tiles, floors, words, found,
        kind, scales is not None, TILE, num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return places_of(words, found, launch)


def places_of(words: Tensor, found: Tensor, launch: Launcher) -> Tensor:
    """The places of all set bits in order; `found` has the number of them in each tile."""
    reached = found.cumsum(0)
    return spread(words, reached, int(reached[-1]), launch)


def spread(words: Tensor, reached: Tensor, capacity: int, launch: Launcher) -> Tensor:
    """The places of the set bits in order, where there are no more than `capacity`; `reached` has the running sums."""
    places = torch.empty(capacity, dtype=torch.int64, device=words.device)
    launch(
        "spread", kernels.spread, (triton.cdiv(words.numel(), WORDS),),
        words, words.numel(), reached, reached.numel(), places, capacity, WORDS, TILE, num_warps=2,
    )  # fmt: skip
    return places


@float32_in_one_stretch
def threshold(x: Tensor, tau: float, signs: bool = False) -> tuple[Tensor, Tensor]:
    """See `reference.threshold`."""
    positions = positions_above(PLAIN, x, x, one_piece(x.numel()), tau, None)
    return positions, _sent(x[positions], tau, signs)


@float32_in_one_stretch
def memory_threshold_(
    error: Tensor, value: Tensor, layout: Layout, tau: float, ratios: Sequence[float] | None, signs: bool = False
) -> tuple[Tensor, Tensor]:
    """See `reference.memory_threshold_`."""
    positions = positions_above(MEMORY, error, value, layout, tau, ratios)
    values = _sent(error[positions], tau, signs)
    error[positions] -= values
    return positions, values


@float32_in_one_stretch
def difference_threshold_(local: Tensor, target: Tensor, tau: float, signs: bool = False) -> tuple[Tensor, Tensor]:
    """See `reference.difference_threshold_`."""
    positions = positions_above(DIFFERENCE, local, target, one_piece(local.numel()), tau, None)
    values = _sent(target[positions] - local[positions], tau, signs)
    local[positions] += values
    return positions, values


def _sent(x: Tensor, tau: float, signs: bool) -> Tensor:
    return x.sign() * float(torch.tensor(tau, dtype=torch.float64).to(x.dtype)) if signs else x

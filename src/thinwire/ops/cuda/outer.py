"""Σ_z (left_zᵀ right_z)² on a GPU: each sample's product stays in registers, where it is squared and added up.

Formed in memory, the products of a VGG-like net at batch 64 are 2 GB, written once and read once; here only the factors
are read, and the sum is written (once for each split of the samples: one tile alone would leave most of a GPU idle).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 128, 64
"""A tile of the product: 64 numbers of it and as many of the sum in each of 128 threads."""
PROGRAMS = 512
"""So many programs keep the 132 multiprocessors of an H200 busy."""


@triton.jit
def _factors(left, right, m, n, at, rows, columns, positions):
    """A tile of either factor for some positions; zero beyond their ends."""
    inside = (at < positions)[None, :]
    a = tl.load(left + m[:, None] * positions + at[None, :], mask=(m < rows)[:, None] & inside, other=0.0)
    b = tl.load(right + n[:, None] * positions + at[None, :], mask=(n < columns)[:, None] & inside, other=0.0)
    return a, b


@triton.jit
def squares(
    left, right, out, samples, each, rows, columns, positions,
    short: tl.constexpr, precision: tl.constexpr, M: tl.constexpr, N: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """left (samples, groups, rows, positions), right (samples, groups, columns, positions); out (splits, groups, rows,
    columns). `short`: one block holds all positions."""
    tile, group, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    groups = tl.num_programs(1)
    across = tl.cdiv(columns, N)
    m = (tile // across) * M + tl.arange(0, M)
    n = (tile % across) * N + tl.arange(0, N)
    total = tl.zeros((M, N), dtype=tl.float32)
    for z in tl.range(split * each, tl.minimum((split + 1) * each, samples)):
        place = (z * groups + group).to(tl.int64) * positions
        its_left, its_right = left + place * rows, right + place * columns
        if short:
            a, b = _factors(its_left, its_right, m, n, tl.arange(0, L), rows, columns, positions)
            product = tl.dot(a, tl.trans(b), input_precision=precision)
        else:
            product = tl.zeros((M, N), dtype=tl.float32)
            for first in tl.range(0, positions, L):
                a, b = _factors(its_left, its_right, m, n, first + tl.arange(0, L), rows, columns, positions)
                product = tl.dot(a, tl.trans(b), product, input_precision=precision)
        total += product * product
    place = (split * groups + group).to(tl.int64) * rows * columns
    inside = (m < rows)[:, None] & (n < columns)[None, :]
    tl.store(out + place + m[:, None] * columns + n[None, :], total, mask=inside)


def outer_squares(left: Tensor, right: Tensor) -> Tensor:
    """See `reference.outer_squares`. Products are in TF32 where torch's own may be."""
    left, right = left.transpose(2, 3).contiguous(), right.transpose(2, 3).contiguous()
    samples, groups, rows, positions = left.shape
    columns = right.shape[2]
    high = ROWS if rows > 64 else 64
    tiles = triton.cdiv(rows, high) * triton.cdiv(columns, COLUMNS)
    each = triton.cdiv(samples, min(samples, triton.cdiv(PROGRAMS, tiles * groups)))
    splits = triton.cdiv(samples, each)
    out = torch.empty(splits, groups, rows, columns, dtype=left.dtype, device=left.device)
    block = max(16, min(64, triton.next_power_of_2(positions)))
    short = positions <= block
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    squares[tiles, groups, splits](
        left, right, out, samples, each, rows, columns, positions,
        short, precision, high, COLUMNS, block if short else 32, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out.sum(0) if splits > 1 else out[0]

"""The blocks that a layout's pieces are cut into, as arrays for the kernels, and their norms, compiled by numba.

Each block is summed in chunks of 4,096 numbers, each chunk in float64, and the chunks' sums are added in order: who
sums which chunk makes no difference, so neither does the number of threads.

4 bytes are read for a float32. 25 M of them on two cores of a busy EPYC, as multiples of an in-place add beside it,
whose 12 bytes make 1/3 the floor: 1.0 for one block, 1.4 for blocks of 512, in L1 and L2 alike (medians of 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import reference
from thinwire.ops.cpu.compiler import compiled
from thinwire.ops.cpu.threads import in_parallel

CHUNK = 4096
_REORDER = {"reassoc", "contract"}  # the vector unit's own order of addition: fixed for a machine, not for all


class Pieces(NamedTuple):
    """Where each non-empty piece starts and stops, and the number of its first block."""

    starts: Any
    stops: Any
    firsts: Any
    block: int


def pieces_of(layout: Layout, block: int) -> Pieces:
    sizes = np.array([piece.numel for piece in layout.pieces if piece.numel], np.int64)
    stops, blocks = np.cumsum(sizes), -(-sizes // block)
    return Pieces(stops - sizes, stops, np.cumsum(blocks) - blocks, block)


def keys_of(layout: Layout, keys: Sequence[int]) -> Any:
    """The keys of the non-empty pieces, as 64-bit words."""
    return np.array([key for key, piece in zip(keys, layout.pieces, strict=True) if piece.numel], np.uint64)


@compiled
def find(pieces: Pieces, place: int) -> tuple[Any, Any, Any]:  # pragma: no cover
    """The piece of a place in the buffer, its block, and where that block ends."""
    p = np.searchsorted(pieces.stops, place, side="right")
    b = (place - pieces.starts[p]) // pieces.block
    edge = min(pieces.stops[p], pieces.starts[p] + (b + 1) * pieces.block)
    return p, pieces.firsts[p] + b, edge


@compiled(fastmath=_REORDER)
def _absolute_sum(x: Any) -> float:  # pragma: no cover
    total = 0.0
    for i in range(x.size):
        total += np.float64(abs(x[i]))
    return total


@compiled(fastmath=_REORDER)
def _square_sum(x: Any) -> float:  # pragma: no cover
    total = 0.0
    for i in range(x.size):
        wide = np.float64(x[i])
        total += wide * wide
    return total


@compiled
def _sum_chunks(
    x: Any, pieces: Pieces, ends: Any, chunks: Any, order: int, sums: Any, begin: int, end: int
) -> None:  # pragma: no cover
    """The sums of the chunks numbered begin to end; a piece's last chunk is ends[p], a block of it has chunks[p]."""
    p = np.searchsorted(ends, begin, side="right")
    for i in range(begin, end):
        while ends[p] <= i:
            p += 1
        within = i - (ends[p - 1] if p else 0)
        block = pieces.starts[p] + within // chunks[p] * pieces.block
        start = block + within % chunks[p] * CHUNK
        part = x[start : min(start + CHUNK, block + pieces.block, pieces.stops[p])]
        sums[i] = _absolute_sum(part) if order == 1 else _square_sum(part)


@compiled
def _add_chunks(pieces: Pieces, order: int, sums: Any, norms: Any) -> None:  # pragma: no cover
    i, b = 0, 0
    for p in range(pieces.starts.size):
        for start in range(pieces.starts[p], pieces.stops[p], pieces.block):
            total = 0.0
            for _ in range(start, min(start + pieces.block, pieces.stops[p]), CHUNK):
                total += sums[i]
                i += 1
            norms[b] = total if order == 1 else np.sqrt(total)
            b += 1


def block_norms(x: Tensor, layout: Layout, block: int, order: int) -> Tensor:
    """See `reference.block_norms`."""
    if x.dtype not in (torch.float32, torch.float64):
        return reference.block_norms(x, layout, block, order)
    pieces = pieces_of(layout, block)
    sizes = pieces.stops - pieces.starts
    full, rest = sizes // block, sizes % block
    chunks = -(-np.minimum(sizes, block) // CHUNK)
    ends = np.cumsum(full * -(-block // CHUNK) + -(-rest // CHUNK))
    count, array, numel = int(ends[-1]) if ends.size else 0, x.contiguous().numpy(), max(1, x.numel())
    sums = np.empty(count, np.float64)
    in_parallel(
        lambda _, begin, end: _sum_chunks(
            array, pieces, ends, chunks, order, sums, count * begin // numel, count * end // numel
        ),
        x.numel(),
    )
    norms = torch.empty(int((-(-sizes // block)).sum()), dtype=x.dtype)
    _add_chunks(pieces, order, sums, norms.numpy())
    return norms

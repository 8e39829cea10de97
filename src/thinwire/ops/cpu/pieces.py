"""A layout's non-empty pieces, and the blocks that they are cut into, as arrays for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from thinwire.layout import Layout
from thinwire.ops.cpu.compiled import compiled


class Pieces(NamedTuple):
    """Where each piece starts and stops, and the number of its first block."""

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

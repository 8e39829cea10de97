"""Ascending positions in close to their entropy: Elias-Fano coding.

k positions below n take a low part of l = floor(log2(n / k)) bits each, and a bitmap of k + ceil(n / 2^l) bits whose
i-th set bit stands at (position_i >> l) + i. That is within 0.6 bits a position of log2 C(n, k) / k, and the size
depends on (n, k) alone.
"""

from __future__ import annotations

from torch import Tensor

from thinwire import ops
from thinwire.errors import WireError
from thinwire.payload.reader import Reader


def low_width(numel: int, count: int) -> int:
    """Bits of a position's low part."""
    return max(0, (numel // count).bit_length() - 1) if count else 0


def bitmap_length(numel: int, count: int) -> int:
    """Bits of the map of high parts."""
    return count + ((numel - 1) >> low_width(numel, count)) + 1 if count else 0


def pack_positions(positions: Tensor, numel: int) -> Tensor:
    """Strictly ascending positions below `numel`, as bytes."""
    count = positions.numel()
    return ops.pack_positions(positions, low_width(numel, count), bitmap_length(numel, count))


def unpack_positions(reader: Reader, numel: int, count: int) -> Tensor:
    """`count` strictly ascending positions below `numel`; anything else in the message is a `WireError`."""
    if count > numel:
        raise WireError(f"message claims {count} positions in a vector of {numel}")
    width, length = low_width(numel, count), bitmap_length(numel, count)
    low = reader.take((width * count + 7) // 8)
    bitmap = reader.take((length + 7) // 8)
    positions, marks, ascending = ops.unpack_positions(low, bitmap, width, length, count)
    if marks != count:
        raise WireError(f"position map holds {marks} marks where {count} were announced")
    if count and not (ascending and int(positions[-1]) < numel):
        raise WireError(f"positions are not strictly ascending below {numel}")
    return positions

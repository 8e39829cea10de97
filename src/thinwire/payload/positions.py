"""Ascending positions in close to their entropy: Elias-Fano coding.

k positions below n take a low part of l = floor(log2(n / k)) bits each, and a bitmap of k + ceil(n / 2^l) bits whose
i-th set bit stands at (position_i >> l) + i. That is within 0.6 bits a position of log2 C(n, k) / k, and the size
depends on (n, k) alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.errors import WireError
from thinwire.ops import pack_bits, pack_codes, unpack_bits, unpack_codes
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
    width = low_width(numel, count)
    bitmap = torch.zeros(bitmap_length(numel, count), dtype=torch.bool, device=positions.device)
    bitmap[(positions >> width) + torch.arange(count, device=positions.device)] = True
    low = pack_codes(positions & ((1 << width) - 1), width) if width else bitmap.new_empty(0, dtype=torch.uint8)
    return torch.cat([low, pack_bits(bitmap)])


def unpack_positions(reader: Reader, numel: int, count: int) -> Tensor:
    """`count` strictly ascending positions below `numel`; anything else in the message is a `WireError`."""
    if count > numel:
        raise WireError(f"message claims {count} positions in a vector of {numel}")
    width, length = low_width(numel, count), bitmap_length(numel, count)
    low_bytes = reader.take((width * count + 7) // 8)
    bitmap = unpack_bits(reader.take((length + 7) // 8), length)
    ones = bitmap.nonzero().squeeze(1)
    if ones.numel() != count:
        raise WireError(f"position map holds {ones.numel()} marks where {count} were announced")
    high = ones - torch.arange(count, device=ones.device)
    low = unpack_codes(low_bytes, width, count) if width else torch.zeros_like(high)
    positions = (high << width) | low
    if count and (bool((positions.diff() <= 0).any()) or int(positions[-1]) >= numel):
        raise WireError(f"positions are not strictly ascending below {numel}")
    return positions

"""Ascending positions in close to their entropy: the cheapest of three codes, chosen by (n, k) alone.

Elias-Fano (k/n up to 1/18). A low part of l = floor(log2(n / k)) bits each, and a bitmap of k + ceil(n / 2^l) bits
whose i-th mark stands at (position_i >> l) + i. Within 0.6 bits a position of log2 C(n, k) / k, which is 10 % at k/n
= 1/18; the size is known beforehand.

Rice (up to 1/2.5). The same code over the gaps in place of the positions: 2 % above the entropy, but its size varies.

Bitmap (above). One bit for each number; the size is known beforehand.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire import ops
from thinwire.errors import WireError
from thinwire.payload.reader import Reader, head


def is_bitmap(numel: int, count: int) -> bool:
    """Whether a plain bitmap is the cheapest code."""
    return 5 * count >= 2 * numel


def size_varies(numel: int, count: int) -> bool:
    """Whether gaps are the cheapest code, whose size depends on the positions."""
    return 18 * count > numel and not is_bitmap(numel, count)


def low_width(numel: int, count: int) -> int:
    """Bits of a low part."""
    return max(0, (numel // count).bit_length() - 1) if count else 0


def bitmap_length(numel: int, count: int) -> int:
    """Bits of Elias-Fano's map of high parts."""
    return count + ((numel - 1) >> low_width(numel, count)) + 1 if count else 0


def pack_positions(positions: Tensor, numel: int) -> Tensor:
    """Strictly ascending positions below `numel`, as bytes."""
    count = positions.numel()
    if is_bitmap(numel, count):
        marks = torch.zeros(numel, dtype=torch.bool, device=positions.device)
        marks[positions] = True
        return ops.pack_bits(marks)
    width = low_width(numel, count)
    if not size_varies(numel, count):
        return ops.pack_positions(positions, width, bitmap_length(numel, count))
    gaps = torch.diff(positions, prepend=positions.new_tensor([-1])) - 1
    quotients = (gaps >> width).cumsum(0)
    length = int(quotients[-1]) + count
    code = ops.pack_positions((quotients << width) | (gaps & ((1 << width) - 1)), width, length)
    return torch.cat([head(_length_field(numel), length, device=code.device), code])


def unpack_positions(reader: Reader, numel: int, count: int) -> Tensor:
    """`count` strictly ascending positions below `numel`; anything else in the message is a `WireError`."""
    if count > numel:
        raise WireError(f"message claims {count} positions in a vector of {numel}")
    if is_bitmap(numel, count):
        positions = ops.unpack_bits(reader.take((numel + 7) // 8), numel).nonzero().squeeze(1)
        _check_marks(positions.numel(), count)
        return positions
    width = low_width(numel, count)
    varies = size_varies(numel, count)
    length = _gaps_length(reader, numel, count) if varies else bitmap_length(numel, count)
    low = reader.take((width * count + 7) // 8)
    positions, marks, ascending = ops.unpack_positions(low, reader.take((length + 7) // 8), width, length, count)
    _check_marks(marks, count)
    if varies:
        quotients = torch.diff(positions >> width, prepend=positions.new_zeros(1))
        positions = (((quotients << width) | (positions & ((1 << width) - 1))) + 1).cumsum(0) - 1
    if count and not ((ascending or varies) and int(positions[-1]) < numel):
        raise WireError(f"positions are not strictly ascending below {numel}")
    return positions


def _length_field(numel: int) -> str:
    """How the length of the map of gaps is written: it is below 2 n."""
    return "I" if numel < 1 << 31 else "Q"


def _gaps_length(reader: Reader, numel: int, count: int) -> int:
    length = int(reader.fields(_length_field(numel))[0])
    if length > numel + count:
        raise WireError(f"message announces a map of {length} bits for {count} positions in a vector of {numel}")
    return length


def _check_marks(marks: int, count: int) -> None:
    if marks != count:
        raise WireError(f"position map holds {marks} marks where {count} were announced")

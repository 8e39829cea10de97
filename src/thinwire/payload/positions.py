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
from thinwire.payload.message import Chunk, LateReader, Reader, fields


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


def pack_positions(positions: Tensor, numel: int) -> list[Chunk]:
    """Strictly ascending positions below `numel`, chunk by chunk."""
    count = positions.numel()
    if is_bitmap(numel, count):
        marks = torch.zeros(numel, dtype=torch.bool, device=positions.device)
        marks[positions] = True
        return [ops.pack_bits(marks)]
    width = low_width(numel, count)
    if not size_varies(numel, count):
        return [*ops.pack_positions(positions, width, bitmap_length(numel, count))]
    sums = ops.sums_of_gaps(positions, width)
    length = (int(sums[-1]) >> width) + count
    return [fields(_length_field(numel), length), *ops.pack_positions(sums, width, length)]


def unpack_positions(reader: Reader, numel: int, count: int) -> Tensor:
    """`count` strictly ascending positions below `numel`; anything else in the message is a `WireError`."""
    reader.require(count <= numel, "message claims {} positions in a vector of {}", count, numel)
    if is_bitmap(numel, count):
        return _from_bitmap(reader, numel, count)
    width = low_width(numel, count)
    if size_varies(numel, count):
        return _from_gaps(reader, numel, count, width)
    positions, marks, ascending = _from_map(reader, bitmap_length(numel, count), count, width, numel)
    reader.require(marks == count, _MARKS, marks, count)
    reader.require(ascending, _ORDER, numel)
    return positions


def unpack_all_positions(reader: LateReader, numel: int, count: int) -> Tensor:
    """Every rank's positions, of a code whose size is known, one rank in each row."""
    if is_bitmap(numel, count):
        return torch.stack(reader.each(lambda row: unpack_positions(row, numel, count)))
    return unpack_positions(reader, numel, count)


_MARKS = "position map holds {} marks where {} were announced"
_ORDER = "positions are not strictly ascending below {}"


def _from_bitmap(reader: Reader, numel: int, count: int) -> Tensor:
    marks = ops.unpack_bits(reader.bits(numel), numel)
    reader.require(marks.sum() == count, _MARKS, marks.sum(), count)
    return torch.nonzero_static(marks, size=count, fill_value=0).squeeze(1)  # the size is known: no waiting for it


def _from_map(
    reader: Reader, length: int, count: int, width: int, bound: int
) -> tuple[Tensor, int | Tensor, bool | Tensor]:
    low = reader.bits(width * count)
    return ops.unpack_positions(low, reader.bits(length), width, length, count, bound)


def _from_gaps(reader: Reader, numel: int, count: int, width: int) -> Tensor:
    (length,) = reader.fields(_length_field(numel))
    too_long = "message announces a map of {} bits for {} positions in a vector of {}"
    reader.require(length <= numel + count, too_long, length, count, numel)
    sums, marks, _ = _from_map(reader, length, count, width, 1 << 62)
    reader.require(marks == count, _MARKS, marks, count)
    reader.require(((sums[-1:] >> width) + count == length).all(), "position map goes on after its last mark")
    positions = ops.positions_of_sums_(sums, width)
    reader.require((positions[-1:] < numel).all(), _ORDER, numel)
    return positions


def _length_field(numel: int) -> str:
    """How the length of the map of gaps is written: it is below 2 n."""
    return "I" if numel < 1 << 31 else "Q"

"""Formats with one scale for each block of a piece: signs and quantised levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import Key, pack_bits, pack_codes, unpack_bits, unpack_codes
from thinwire.payload.base import Payload
from thinwire.payload.message import Chunk, fields, raw
from thinwire.payload.reader import Reader


def block_lengths(layout: Layout, block: int, device: torch.device) -> Tensor:
    """Lengths of the consecutive blocks of at most `block` entries that each piece is cut into."""
    lengths = [min(block, p.numel - start) for p in layout.pieces for start in range(0, p.numel, block)]
    return torch.tensor(lengths, dtype=torch.int64, device=device)


def block_count(layout: Layout, block: int) -> int:
    """How many blocks there are."""
    return sum(-(-piece.numel // block) for piece in layout.pieces)


def spread(scales: Tensor, layout: Layout, block: int) -> Tensor:
    """Each block's scale, repeated for each of its entries."""
    return scales.repeat_interleave(block_lengths(layout, block, scales.device), output_size=layout.numel)


@dataclass(frozen=True, eq=False)
class Signs(Payload):
    """One bit an entry, one scale a block: +-scale."""

    negative: Tensor
    scales: Tensor
    layout: Layout
    block: int
    tag: ClassVar[int] = 4

    @property
    def fixed(self) -> bool:
        return True

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        scales = spread(self.scales, self.layout, self.block)
        return out.add_(torch.where(self.negative, -scales, scales), alpha=alpha)

    def pack(self) -> list[Chunk]:
        return [fields("I", self.block), raw(self.scales), pack_bits(self.negative)]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        (block,) = reader.fields("I")
        reader.require(block > 0, _NO_BLOCK)
        scales = reader.numbers(block_count(layout, block), dtype)
        return cls(unpack_bits(reader.bits(layout.numel), layout.numel), scales, layout, block)


@dataclass(frozen=True, eq=False)
class Levels(Payload):
    """A sign and a level 0..levels an entry, one norm a block: +-norm * level / levels."""

    signed_levels: Tensor
    norms: Tensor
    layout: Layout
    levels: int
    block: int
    tag: ClassVar[int] = 5

    @property
    def fixed(self) -> bool:
        return True

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        norms = spread(self.norms, self.layout, self.block)
        return out.add_(norms * (self.signed_levels.to(norms.dtype) / self.levels), alpha=alpha)

    def pack(self) -> list[Chunk]:
        magnitude_bits = self.levels.bit_length()
        codes = self.signed_levels.abs() | ((self.signed_levels < 0).to(torch.int64) << magnitude_bits)
        start = fields("II", self.block, self.levels)
        return [start, raw(self.norms), pack_codes(codes, magnitude_bits + 1)]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        block, levels = reader.fields("II")
        reader.require(block > 0, _NO_BLOCK)
        reader.require(levels > 0, "message announces no levels")
        bits = levels.bit_length()
        norms = reader.numbers(block_count(layout, block), dtype)
        codes = unpack_codes(reader.bits(layout.numel * (bits + 1)), bits + 1, layout.numel)
        magnitude = codes & ((1 << bits) - 1)
        reader.require((codes != 1 << bits).all(), "a level in the message is zero with a sign")
        reader.require((magnitude <= levels).all(), "a level in the message exceeds the {} levels it announces", levels)
        return cls(torch.where(codes >> bits == 1, -magnitude, magnitude), norms, layout, levels, block)


_NO_BLOCK = "message announces blocks of length 0"

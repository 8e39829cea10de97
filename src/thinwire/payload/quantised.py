"""Formats with a few bits for every entry: signs, quantised levels and powers of two."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import Key, add_levels_, add_powers_, add_signs_, block_count, levels_above_zero, levels_within
from thinwire.payload.base import Payload
from thinwire.payload.message import Chunk, Reader, fields, raw

_NO_BLOCK = "message announces blocks of length 0"


@dataclass(frozen=True, eq=False)
class Signs(Payload):
    """One bit an entry, one scale a block: +-scale. `negative` holds the bits as they travel."""

    negative: Tensor
    scales: Tensor
    layout: Layout
    block: int
    tag: ClassVar[int] = 4
    fixed: ClassVar[bool] = True

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        return add_signs_(out, self.negative, self.scales.to(out.dtype), self.layout, self.block, alpha)

    def pack(self) -> list[Chunk]:
        return [fields("I", self.block), raw(self.scales), self.negative]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        (block,) = reader.fields("I")
        reader.require(block > 0, _NO_BLOCK)
        scales = reader.numbers(block_count(layout, block), dtype)
        return cls(reader.bits(layout.numel), scales, layout, block)


@dataclass(frozen=True, eq=False)
class Levels(Payload):
    """A sign and a level 0..levels an entry, one norm a block: +-(norm / levels) * level.

    `codes` holds them as they travel: a level, and its sign bit above it, in 1 + bits(levels) bits.
    """

    codes: Tensor
    norms: Tensor
    layout: Layout
    levels: int
    block: int
    tag: ClassVar[int] = 5
    fixed: ClassVar[bool] = True

    @cached_property
    def elements(self) -> Tensor:
        """The entries whose level is not zero: QSGD's sparse code sends these alone (Alistarh et al. 2017)."""
        return levels_above_zero(self.codes, self.layout.numel, self.levels)

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        norms = self.norms.to(out.dtype)
        return add_levels_(out, self.codes, norms, self.layout, self.block, self.levels, alpha)

    def pack(self) -> list[Chunk]:
        return [fields("II", self.block, self.levels), raw(self.norms), self.codes]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        block, levels = reader.fields("II")
        reader.require(block > 0, _NO_BLOCK)
        reader.require(0 < levels < 1 << 16, "message announces {} levels; there are 1 to 65535", levels)
        norms = reader.numbers(block_count(layout, block), dtype)
        codes = reader.bits(layout.numel * (levels.bit_length() + 1))
        if levels & (levels + 1):  # else every code of so many bits is a level
            within = levels_within(codes, layout.numel, levels)
            reader.require(within, "a level in the message exceeds the {} levels it announces", levels)
        return cls(codes, norms, layout, levels, block)


@dataclass(frozen=True, eq=False)
class Powers(Payload):
    """+-2^(code - 127), or zero for code 0: nine bits an entry (natural compression). Held as it travels."""

    codes: Tensor
    negative: Tensor
    tag: ClassVar[int] = 6
    fixed: ClassVar[bool] = True

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        return add_powers_(out, self.codes, self.negative, alpha)

    def pack(self) -> list[Chunk]:
        return [self.codes, self.negative]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        codes = reader.take(layout.numel)
        if codes.numel():
            reader.require(codes.amax() < 255, "message holds an exponent beyond 127")
        return cls(codes, reader.bits(layout.numel))

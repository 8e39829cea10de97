"""Powers of two: a sign bit and an exponent byte an entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import Key, pack_bits, unpack_bits
from thinwire.payload.base import Payload
from thinwire.payload.message import Chunk
from thinwire.payload.reader import Reader


@dataclass(frozen=True, eq=False)
class Powers(Payload):
    """+-2^(code - 127), or zero for code 0: nine bits an entry (natural compression)."""

    negative: Tensor
    codes: Tensor
    dtype: torch.dtype
    tag: ClassVar[int] = 6

    @property
    def fixed(self) -> bool:
        return True

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        magnitude = (self.codes.to(torch.int32) << 23).view(torch.float32)  # code 0 is the bits of 0.0
        return out.add_(torch.where(self.negative, -magnitude, magnitude).to(self.dtype), alpha=alpha)

    def pack(self) -> list[Chunk]:
        return [self.codes.to(torch.uint8), pack_bits(self.negative)]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        codes = reader.take(layout.numel).clone()
        if codes.numel():
            reader.require(codes.amax() < 255, "message holds an exponent beyond 127")
        return cls(unpack_bits(reader.bits(layout.numel), layout.numel), codes, dtype)

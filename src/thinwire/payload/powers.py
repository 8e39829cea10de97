"""Powers of two: a sign bit and an exponent byte an entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import Key, add_powers_
from thinwire.payload.base import Payload
from thinwire.payload.message import Chunk
from thinwire.payload.reader import Reader


@dataclass(frozen=True, eq=False)
class Powers(Payload):
    """+-2^(code - 127), or zero for code 0: nine bits an entry (natural compression). Held as it travels."""

    codes: Tensor
    negative: Tensor
    tag: ClassVar[int] = 6

    @property
    def fixed(self) -> bool:
        return True

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

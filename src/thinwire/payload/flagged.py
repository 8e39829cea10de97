"""A payload with one more bit for each piece: whether it replaces what the receiver holds, or adds to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import Key, pack_bits, unpack_bits
from thinwire.payload.base import Count, Payload
from thinwire.payload.inner import inner_format
from thinwire.payload.message import Chunk, fields
from thinwire.payload.reader import Reader


@dataclass(frozen=True, eq=False)
class Flagged(Payload):
    """EF21+'s message: for each piece a flag, and the payload that goes with it."""

    replaces: Tensor
    inner: Payload
    tag: ClassVar[int] = 7
    holds: ClassVar[bool] = True

    @property
    def fixed(self) -> bool:
        return self.inner.fixed

    @property
    def elements(self) -> Count:
        return self.inner.elements

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        return self.inner.add_to(out, alpha)

    def pack(self) -> list[Chunk]:
        return [pack_bits(self.replaces), fields("B", self.inner.tag), *self.inner.pack()]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        count = len(layout.pieces)
        replaces = unpack_bits(reader.bits(count), count)
        inner = inner_format(reader, *reader.fields("B"))
        return cls(replaces, inner.unpack(reader, layout, key, dtype))

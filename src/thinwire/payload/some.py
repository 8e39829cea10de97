"""A payload for some pieces of the layout, and one bit for each piece that says which."""

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
class Some(Payload):
    """The inner payload belongs to the packed layout of the chosen pieces; the others are zero.

    Ranks choose for themselves, so its size is never fixed.
    """

    chosen: Tensor
    inner: Payload
    layout: Layout
    tag: ClassVar[int] = 10
    holds: ClassVar[bool] = True

    @property
    def fixed(self) -> bool:
        return False

    @property
    def elements(self) -> Count:
        return self.inner.elements

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        chosen = self.chosen.tolist()
        if all(chosen):
            return self.inner.add_to(out, alpha)
        views = [view for pick, (_, view) in zip(chosen, self.layout.views(out), strict=True) if pick]
        if views:
            changed = self.inner.add_to(torch.cat(views), alpha)
            for view, part in zip(views, torch.split(changed, [view.numel() for view in views]), strict=True):
                view.copy_(part)
        return out

    def pack(self) -> list[Chunk]:
        return [pack_bits(self.chosen), fields("B", self.inner.tag), *self.inner.pack()]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        count = len(layout.pieces)
        chosen = unpack_bits(reader.bits(count), count)
        inner = inner_format(reader, *reader.fields("B"))
        return cls(chosen, inner.unpack(reader, layout.select(chosen.tolist()), key, dtype), layout)

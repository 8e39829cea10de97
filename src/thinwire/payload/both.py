"""Two payloads whose sum is meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload.base import Count, Payload, both_counts
from thinwire.payload.inner import inner_format
from thinwire.payload.message import Chunk, fields
from thinwire.payload.reader import Reader

SECOND = 2
"""The stream of the key by which the second payload is drawn, so that its draws are not those of the first."""


@dataclass(frozen=True, eq=False)
class Both(Payload):
    """The sum of two messages, the second made with `key.stream(SECOND)`."""

    one: Payload
    two: Payload
    tag: ClassVar[int] = 9
    holds: ClassVar[bool] = True

    @property
    def fixed(self) -> bool:
        return self.one.fixed and self.two.fixed

    @property
    def elements(self) -> Count:
        return both_counts(self.one.elements, self.two.elements)

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        return self.two.add_to(self.one.add_to(out, alpha), alpha)

    def pack(self) -> list[Chunk]:
        return [fields("BB", self.one.tag, self.two.tag), *self.one.pack(), *self.two.pack()]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        one, two = (inner_format(reader, tag) for tag in reader.fields("BB"))
        first = one.unpack(reader, layout, key, dtype)
        return cls(first, two.unpack(reader, layout, key.stream(SECOND), dtype))

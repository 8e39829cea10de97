"""Every number in full precision, or none at all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.owners import Cut
from thinwire.payload.base import Payload
from thinwire.payload.message import Chunk, Reader, raw


@dataclass(frozen=True, eq=False)
class Dense(Payload):
    """The whole vector: `numel` numbers of the state's type."""

    values: Tensor
    tag: ClassVar[int] = 1
    fixed: ClassVar[bool] = True

    @property
    def elements(self) -> int:
        return self.values.numel()

    @property
    def summand(self) -> Tensor:
        return self.values

    def with_summand(self, numbers: Tensor) -> Dense:
        return replace(self, values=numbers)

    def split(self, cut: Cut) -> list[Payload]:
        return [Dense(own) for own in cut.take(self.values)]

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        return out.add_(self.values, alpha=alpha)

    def pack(self) -> list[Chunk]:
        return [raw(self.values)]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        return cls(reader.numbers(layout.numel, dtype))


@dataclass(frozen=True, eq=False)
class Empty(Payload):
    """Nothing: a zero vector in no bytes."""

    tag: ClassVar[int] = 0
    fixed: ClassVar[bool] = True
    elements: ClassVar[int] = 0

    def split(self, cut: Cut) -> list[Payload]:
        return [self] * len(cut.parts)

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        return out

    def pack(self) -> list[Chunk]:
        return []

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        return cls()

"""Formats that hold other payloads: a sum of two, one for some pieces only, one beside flags or numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import Key, pack_bits, unpack_bits
from thinwire.owners import Cut
from thinwire.payload.base import Count, Payload, both_counts, payload_format
from thinwire.payload.message import Chunk, LateReader, Reader, fields, raw

SECOND = 2
"""The stream of the key by which the second payload of a sum is drawn, so that its draws are not those of the first."""


@dataclass(frozen=True, eq=False)
class Sum(Payload):
    """The sum of two messages, the second made with `key.stream(SECOND)`."""

    one: Payload
    two: Payload
    tag: ClassVar[int] = 9
    nests: ClassVar[bool] = True

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
        one, two = (_nested_format(reader, tag) for tag in reader.fields("BB"))
        first = one.unpack(reader, layout, key, dtype)
        return cls(first, two.unpack(reader, layout, key.stream(SECOND), dtype))


@dataclass(frozen=True, eq=False)
class Flagged(Payload):
    """EF21+'s message: a payload, and one bit for each piece that says whether it replaces what the receiver holds or
    adds to it."""

    replaces: Tensor
    inner: Payload
    tag: ClassVar[int] = 7
    nests: ClassVar[bool] = True

    @property
    def fixed(self) -> bool:
        return self.inner.fixed

    @property
    def elements(self) -> Count:
        return self.inner.elements

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        return self.inner.add_to(out, alpha)

    def pack(self) -> list[Chunk]:
        return _behind_bits(self.replaces, self.inner)

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        replaces, nested = _read_bits(reader, layout)
        return cls(replaces, nested.unpack(reader, layout, key, dtype))


@dataclass(frozen=True, eq=False)
class Beside(Payload):
    """MemAdam's message: a payload, and beside it one number of 16 bits for each row and column of every piece."""

    beside: Tensor
    """bfloat16, at least 0 and finite."""
    inner: Payload
    tag: ClassVar[int] = 11
    nests: ClassVar[bool] = True

    @property
    def clears(self) -> bool:
        return self.inner.clears

    def unless(self, doubtful: bool) -> Beside:
        return replace(self, inner=self.inner.unless(doubtful))

    @property
    def fixed(self) -> bool:
        return self.inner.fixed

    @property
    def elements(self) -> Count:
        return self.inner.elements

    def split(self, cut: Cut) -> list[Payload]:
        return self.inner.split(cut)

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        return self.inner.add_to(out, alpha)

    def pack(self) -> list[Chunk]:
        return [fields("B", self.inner.tag), raw(self.beside), *self.inner.pack()]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        nested = _nested_format(reader, *reader.fields("B"))
        beside = reader.numbers(sum(piece.factors for piece in layout.pieces), torch.bfloat16)
        reader.require(are_moments(beside), _NO_MOMENTS)
        return cls(beside, nested.unpack(reader, layout, key, dtype))

    @classmethod
    def unpack_all(cls, reader: LateReader, layout: Layout, key: Key, dtype: torch.dtype) -> list[Self]:
        nested = _nested_format(reader, *reader.fields("B"))
        beside = reader.numbers(sum(piece.factors for piece in layout.pieces), torch.bfloat16)
        reader.require(are_moments(beside), _NO_MOMENTS)
        return [cls(*pair) for pair in zip(beside, nested.unpack_all(reader, layout, key, dtype), strict=True)]


_NO_MOMENTS = "a message holds second moments that are none"


def are_moments(beside: Tensor) -> Tensor:
    """Whether numbers can be second moments; of each row where there are several."""
    return ((beside >= 0) & (beside < torch.inf)).all(-1)


@dataclass(frozen=True, eq=False)
class Partial(Payload):
    """A payload of the packed layout of some pieces, and one bit for each piece that says which; the others are zero.

    Ranks choose for themselves, so its size is never fixed.
    """

    chosen: Tensor
    inner: Payload
    layout: Layout
    tag: ClassVar[int] = 10
    fixed: ClassVar[bool] = False
    nests: ClassVar[bool] = True

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
        return _behind_bits(self.chosen, self.inner)

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        chosen, nested = _read_bits(reader, layout)
        return cls(chosen, nested.unpack(reader, layout.select(chosen.tolist()), key, dtype), layout)


def _behind_bits(bits: Tensor, payload: Payload) -> list[Chunk]:
    """A payload behind its tag and one bit for each piece."""
    return [pack_bits(bits), fields("B", payload.tag), *payload.pack()]


def _read_bits(reader: Reader, layout: Layout) -> tuple[Tensor, type[Payload]]:
    """The bit of each piece, and the format of the payload that follows."""
    count = len(layout.pieces)
    bits = unpack_bits(reader.bits(count), count)
    return bits, _nested_format(reader, *reader.fields("B"))


def _nested_format(reader: Reader, tag: int) -> type[Payload]:
    """The format of a payload within another; one that holds payloads itself may not stand there."""
    nested = payload_format(tag)
    reader.require(not nested.nests, "a message holds format {} within another", tag)
    return nested

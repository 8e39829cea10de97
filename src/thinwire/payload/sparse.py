"""Some numbers and where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from thinwire.errors import WireError
from thinwire.layout import Layout
from thinwire.ops import Key, add_at_, piece_indices, randk_positions, without_zeros
from thinwire.payload.base import Payload
from thinwire.payload.message import Chunk, fields
from thinwire.payload.positions import pack_positions, size_varies, unpack_all_positions, unpack_positions
from thinwire.payload.reader import LateReader, Reader
from thinwire.payload.values import ValueFormat, format_of_tag


@dataclass(frozen=True, eq=False)
class Sparse(Payload):
    """Values at strictly ascending positions of the flat buffer; `values` are already what the receiver will see."""

    positions: Tensor
    values: Tensor
    layout: Layout
    written: ValueFormat
    counted: bool
    """Whether the number of positions is known to every rank beforehand."""
    tag: ClassVar[int] = 2

    @staticmethod
    def of(x: Tensor, positions: Tensor, layout: Layout, written: ValueFormat, *, counted: bool) -> Sparse:
        """The entries of x at `positions`, rounded to a value format."""
        return Sparse.rounded(positions, x[positions], layout, written, counted=counted)

    @staticmethod
    def rounded(
        positions: Tensor, values: Tensor, layout: Layout, written: ValueFormat, *, counted: bool = True
    ) -> Sparse:
        """Values rounded to a format; what cannot be written is left out."""
        if written.lossless:
            return Sparse(positions, values, layout, written, counted)
        values = written.round(values, positions, layout)
        if written.drops:
            positions, values = without_zeros(positions, values)
        return Sparse(positions, values, layout, written, counted and not written.drops)

    def put_back_(self, error: Tensor, positions: Tensor, values: Tensor) -> Sparse:
        """Leave in a memory, out of which `values` were taken, what this payload does not say of them."""
        if not self.written.lossless:
            error[positions] = values
            self.add_to(error, alpha=-1.0)
        return self

    @property
    def fixed(self) -> bool:
        return self.counted and not size_varies(self.layout.numel, self.positions.numel())

    @property
    def elements(self) -> int:
        return self.positions.numel()

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        return add_at_(out, self.positions, self.values.to(out.dtype), alpha)

    def pack(self) -> list[Chunk]:
        start = fields("BI", self.written.tag, self.positions.numel())
        positions = pack_positions(self.positions, self.layout.numel)
        return [start, *positions, *self.written.pack(self.values, self.positions, self.layout)]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        tag, count = reader.fields("BI")
        written = format_of_tag(tag)
        positions = unpack_positions(reader, layout.numel, count)
        values = written.unpack(reader, positions, layout, dtype)
        return cls(positions, values, layout, written, counted=True)

    @classmethod
    def unpack_all(cls, reader: LateReader, layout: Layout, key: Key, dtype: torch.dtype) -> list[Self]:
        tag, count = reader.fields("BI")
        written = format_of_tag(tag)
        positions = unpack_all_positions(reader, layout.numel, count)
        values = _unpack_all_values(reader, written, positions, layout, dtype)
        return [cls(p, v, layout, written, counted=True) for p, v in zip(positions, values, strict=True)]


def _unpack_all_values(
    reader: LateReader, written: ValueFormat, positions: Sequence[Tensor], layout: Layout, dtype: torch.dtype
) -> Sequence[Tensor]:
    """Every rank's values, together where they stand as they are."""
    if written.lossless:
        return list(reader.numbers(positions[0].numel(), dtype))
    rank = iter(positions)
    return reader.each(lambda row: written.unpack(row, next(rank), layout, dtype))


@dataclass(frozen=True, eq=False)
class Masked(Payload):
    """Values at positions that every worker draws from the step's shared key: no positions travel."""

    positions: Tensor
    values: Tensor
    layout: Layout
    counts: tuple[int, ...]
    written: ValueFormat
    tag: ClassVar[int] = 3

    @staticmethod
    def draw(layout: Layout, counts: Sequence[int], key: Key, device: torch.device) -> Tensor:
        """The shared positions: counts[i] of piece i, drawn without replacement."""
        return randk_positions(layout, counts, key.shared().words(piece_indices(layout)), device)

    @property
    def fixed(self) -> bool:
        return True

    @property
    def elements(self) -> int:
        return self.positions.numel()

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        return add_at_(out, self.positions, self.values.to(out.dtype), alpha)

    def pack(self) -> list[Chunk]:
        start = fields(f"B{len(self.counts)}I", self.written.tag, *self.counts)
        return [start, *self.written.pack(self.values, self.positions, self.layout)]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        tag, *counts = reader.fields(f"B{len(layout.pieces)}I")
        written = format_of_tag(tag)
        for count, piece in zip(counts, layout.pieces, strict=True):
            if count > piece.numel:
                raise WireError(f"message claims {count} numbers of {piece.name!r}, which has {piece.numel}")
        positions = cls.draw(layout, counts, key, reader.message.device)
        values = written.unpack(reader, positions, layout, dtype)
        return cls(positions, values, layout, tuple(counts), written)

    @classmethod
    def unpack_all(cls, reader: LateReader, layout: Layout, key: Key, dtype: torch.dtype) -> list[Self]:
        tag, *counts = reader.fields(f"B{len(layout.pieces)}I")
        written = format_of_tag(tag)
        positions = [cls.draw(layout, counts, key, reader.message.device)] * len(reader.messages)
        values = _unpack_all_values(reader, written, positions, layout, dtype)
        return [cls(p, v, layout, tuple(counts), written) for p, v in zip(positions, values, strict=True)]

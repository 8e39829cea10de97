"""Formats that send some numbers, and where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Self

import torch
from torch import Tensor

from thinwire import ops
from thinwire.errors import ConfigError, WireError
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.ops.blocks import one_piece
from thinwire.owners import Cut
from thinwire.payload.base import Payload
from thinwire.payload.message import Chunk, LateReader, Reader, fields, raw
from thinwire.payload.positions import pack_positions, size_varies, unpack_all_positions, unpack_positions
from thinwire.payload.values import EXPONENT4, ValueFormat, value_format_of_tag

WORD_LIMIT = 1 << 28
"""Numbers that the position of a `SparseWords` word can tell apart."""


@dataclass(frozen=True, eq=False)
class Positioned(Payload):
    """Values at strictly ascending positions of the flat buffer; `values` are already what the receiver will see."""

    positions: Tensor
    values: Tensor
    layout: Layout

    @property
    def elements(self) -> int:
        return self.positions.numel()

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        return ops.add_at_(out, self.positions, self.values.to(out.dtype), alpha)


@dataclass(frozen=True, eq=False)
class Sparse(Positioned):
    """Positions in close to their entropy, then values in a format of their own."""

    written: ValueFormat
    counted: bool
    """Whether the number of positions is known to every rank beforehand."""
    clears: bool = False
    """See `Payload.clears`."""
    tag: ClassVar[int] = 2

    @staticmethod
    def rounded(
        positions: Tensor,
        values: Tensor,
        layout: Layout,
        written: ValueFormat,
        *,
        counted: bool = True,
        key: Key | None = None,
        largest: bool = False,
    ) -> Sparse:
        """Values rounded to a format, by draws of the key where it draws; what cannot be written is left out.
        `largest`: they hold the largest magnitude of every piece."""
        clears = largest and not values.is_cuda and int(ops.first_nonfinite(values, one_piece(values.numel()))) < 0
        if written.lossless:
            return Sparse(positions, values, layout, written, counted, clears)
        values = written.round(values, positions, layout, key)
        if written.drops:
            positions, values = ops.without_zeros(positions, values)
        return Sparse(positions, values, layout, written, counted and not written.drops, clears)

    def unless(self, doubtful: bool) -> Sparse:
        return replace(self, clears=False) if doubtful and self.clears else self

    def put_back_(self, error: Tensor, positions: Tensor, values: Tensor) -> Sparse:
        """Leave in a memory, out of which `values` were taken, what this payload does not say of them."""
        if not self.written.lossless:
            error[positions] = values
            self.add_to(error, alpha=-1.0)
        return self

    def split(self, cut: Cut) -> list[Payload]:
        return [
            replace(self, positions=positions, values=self.values[own], layout=part)
            for part, (own, positions) in zip(cut.parts, cut.split(self.positions), strict=True)
        ]

    @property
    def fixed(self) -> bool:
        return self.counted and not size_varies(self.layout.numel, self.positions.numel())

    def pack(self) -> list[Chunk]:
        start = fields("BI", self.written.tag, self.positions.numel())
        positions = pack_positions(self.positions, self.layout.numel)
        return [start, *positions, *self.written.pack(self.values, self.positions, self.layout)]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        tag, count = reader.fields("BI")
        written = value_format_of_tag(tag)
        positions = unpack_positions(reader, layout.numel, count)
        values = written.unpack(reader, positions, layout, dtype)
        return cls(positions, values, layout, written, counted=True)

    @classmethod
    def unpack_all(cls, reader: LateReader, layout: Layout, key: Key, dtype: torch.dtype) -> list[Self]:
        tag, count = reader.fields("BI")
        written = value_format_of_tag(tag)
        positions = unpack_all_positions(reader, layout.numel, count)
        values = written.unpack_all(reader, positions, layout, dtype)
        return [cls(p, v, layout, written, counted=True) for p, v in zip(positions, values, strict=True)]


@dataclass(frozen=True, eq=False)
class Masked(Positioned):
    """Values at positions that every worker draws from the step's shared key: no positions travel."""

    counts: tuple[int, ...]
    written: ValueFormat
    tag: ClassVar[int] = 3
    fixed: ClassVar[bool] = True

    @staticmethod
    def draw(layout: Layout, counts: Sequence[int], key: Key, device: torch.device) -> Tensor:
        """The shared positions: counts[i] of piece i, drawn without replacement."""
        return ops.randk_positions(layout, counts, key.shared().words(ops.piece_indices(layout)), device)

    @property
    def summand(self) -> Tensor | None:
        return self.values if self.written.lossless else None

    def with_summand(self, numbers: Tensor) -> Masked:
        return replace(self, values=numbers)

    def split(self, cut: Cut) -> list[Payload]:
        counts = [tuple(self.counts[place] for place in own) for own in cut.places]
        return [
            replace(self, positions=positions, values=self.values[own], layout=part, counts=count)
            for part, count, (own, positions) in zip(cut.parts, counts, cut.split(self.positions), strict=True)
        ]

    def pack(self) -> list[Chunk]:
        start = fields(f"B{len(self.counts)}I", self.written.tag, *self.counts)
        return [start, *self.written.pack(self.values, self.positions, self.layout)]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        tag, *counts = reader.fields(f"B{len(layout.pieces)}I")
        written = value_format_of_tag(tag)
        for count, piece in zip(counts, layout.pieces, strict=True):
            if count > piece.numel:
                raise WireError(f"message claims {count} numbers of {piece.name!r}, which has {piece.numel}")
        positions = cls.draw(layout, counts, key, reader.message.device)
        values = written.unpack(reader, positions, layout, dtype)
        return cls(positions, values, layout, tuple(counts), written)

    @classmethod
    def unpack_all(cls, reader: LateReader, layout: Layout, key: Key, dtype: torch.dtype) -> list[Self]:
        tag, *counts = reader.fields(f"B{len(layout.pieces)}I")
        written = value_format_of_tag(tag)
        positions = cls.draw(layout, counts, key, reader.message.device)
        rows = positions.expand(len(reader.messages), -1)
        values = written.unpack_all(reader, rows, layout, dtype)
        return [cls(positions, own, layout, tuple(counts), written) for own in values]


@dataclass(frozen=True, eq=False)
class SparseWords(Positioned):
    """VGC's own message: a word of 32 bits a number, position << 4 | sign << 3 | d, for +-2^(E - d).

    E of each piece stands before the words, as in `Exponent4`. `Sparse` takes a third to a half of these bytes: this
    format is here to compare with what the paper counts (Tsuzuku, Imachi and Akiba 2018, section 4.2).
    """

    tag: ClassVar[int] = 8
    fixed: ClassVar[bool] = False

    @staticmethod
    def of(sparse: Sparse) -> SparseWords:
        """The same numbers, which were rounded to `Exponent4`."""
        if sparse.layout.numel >= WORD_LIMIT:
            raise ConfigError(
                f"words of 28 + 4 bits reach {WORD_LIMIT} numbers, and a bucket has {sparse.layout.numel}: use "
                "positions=entropy, or smaller buckets (DDP's bucket_cap_mb)"
            )
        return SparseWords(sparse.positions, sparse.values, sparse.layout)

    def pack(self) -> list[Chunk]:
        exponent, codes = ops.exponent_codes(self.values, self.positions, self.layout)
        words = (self.positions << 4 | ops.unpack_codes(codes, 4, self.elements)).to(torch.uint32)
        return [fields("I", self.positions.numel()), raw(exponent), raw(words)]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        (count,) = reader.fields("I")
        reader.require(count <= layout.numel, "message claims {} words for a vector of {}", count, layout.numel)
        exponent = reader.numbers(len(layout.pieces), torch.int16)
        words = reader.numbers(count, torch.uint32).to(torch.int64)
        positions, codes = words >> 4, ops.pack_codes(words & 15, 4)
        ascending = (positions.diff() > 0).all() & (positions[-1:] < layout.numel).all()
        reader.require(ascending, "positions are not strictly ascending below {}", layout.numel)
        positions.clamp_(max=layout.numel - 1)
        return cls(positions, EXPONENT4.decode(reader, exponent, codes, positions, layout, dtype), layout)


@lru_cache(maxsize=256)
def rows_of(layout: Layout, columns: int) -> Layout:
    """How numbers lie of which each row has one, where a row is `columns` consecutive numbers of a piece, or what is
    left of it."""
    return Layout.of([(piece.name, piece.index, (-(-piece.numel // columns),)) for piece in layout.pieces])


@dataclass(frozen=True, eq=False)
class WholeRows(Positioned):
    """Some rows of consecutive numbers: which ones, at less than a bit a number, then their values.

    A row that its piece leaves short is filled up with zeros, at the end: how many numbers travel does not depend on
    which rows of a piece are chosen. Where all workers have chosen the same, the values may be added up on their way.
    """

    rows: Tensor
    """Strictly ascending numbers of rows, counted over all pieces."""
    counts: tuple[int, ...]
    """How many rows of each piece there are among them."""
    columns: int
    agreed: bool = False
    """Whether all workers' messages of this step are of these rows."""
    tag: ClassVar[int] = 12

    @staticmethod
    def of(x: Tensor, rows: Tensor, counts: Sequence[int], columns: int, layout: Layout, *, agreed: bool) -> WholeRows:
        """These rows of a vector."""
        positions, _ = _places_of(rows, columns, layout)
        return WholeRows(positions, x[positions], layout, rows, tuple(counts), columns, agreed)

    @property
    def fixed(self) -> bool:
        table = rows_of(self.layout, self.columns)
        return not (self.rows.is_cuda or size_varies(table.numel, self.rows.numel()))

    @property
    def summand(self) -> Tensor | None:
        return self._filled_up() if self.agreed else None

    def with_summand(self, numbers: Tensor) -> WholeRows:
        return replace(self, values=numbers[: self.positions.numel()])

    def _filled_up(self) -> Tensor:
        return _as_long(self.values, _space(self.counts, self.columns, self.layout))

    def pack(self) -> list[Chunk]:
        start = fields(f"I{len(self.counts)}I", self.columns, *self.counts)
        rows = pack_positions(self.rows, rows_of(self.layout, self.columns).numel)
        return [start, *rows, raw(self._filled_up())]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        columns, *counts = reader.fields(f"I{len(layout.pieces)}I")
        reader.require(columns > 0, "message claims rows of no numbers")
        table = rows_of(layout, columns)
        for count, own in zip(counts, table.pieces, strict=True):
            reader.require(
                count <= own.numel, "message claims {} rows of {!r}, which has {}", count, own.name, own.numel
            )
        rows = unpack_positions(reader, table.numel, sum(counts))
        values = reader.numbers(_space(counts, columns, layout), dtype)
        positions, owners = _places_of(rows, columns, layout)
        found = torch.bincount(owners, minlength=len(counts))
        reader.require(
            (found == torch.tensor(counts, device=rows.device)).all(), "rows are of other pieces than counted"
        )
        reader.require((values[positions.numel() :] == 0).all(), "numbers beyond the end of a row are not zero")
        return cls(positions, _as_long(values, positions.numel()), layout, rows, tuple(counts), columns)


def _space(counts: Sequence[int], columns: int, layout: Layout) -> int:
    """How many numbers so many rows of each piece are, if none is short."""
    return sum(count * min(columns, piece.numel) for count, piece in zip(counts, layout.pieces, strict=True))


def _as_long(values: Tensor, length: int) -> Tensor:
    """Cut off, or filled up with zeros."""
    return torch.nn.functional.pad(values, (0, length - values.numel())) if values.numel() != length else values


def _places_of(rows: Tensor, columns: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """The positions of all numbers in some rows, and the place of the piece that each row is of."""
    pairs = zip(rows_of(layout, columns).pieces, layout.pieces, strict=True)
    described = [(row.part.stop, row.offset, piece.offset, piece.numel) for row, piece in pairs]
    table = torch.tensor(described, dtype=torch.int64, device=rows.device).view(-1, 4).t().contiguous()
    ends, firsts, starts, lengths = table.unbind()
    owners = torch.bucketize(rows, ends, right=True)
    within = (rows - firsts[owners]) * columns
    numbers = (lengths[owners] - within).clamp(max=columns)
    before = numbers.cumsum(0) - numbers
    shift = (starts[owners] + within - before).repeat_interleave(numbers)
    return torch.arange(shift.numel(), device=rows.device) + shift, owners

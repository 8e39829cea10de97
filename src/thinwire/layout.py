"""Which parameter owns which part of a flat buffer."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """One parameter's contiguous part of a flat buffer.

    `index` is the parameter's place in the model, the same on every rank and in every layout: random keys use it.
    """

    name: str
    index: int
    offset: int
    shape: tuple[int, ...]

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def factors(self) -> int:
        """How many numbers a factored slot holds of it: one for each row and column of a matrix, one for a vector."""
        return factors_of(self.shape)

    @property
    def part(self) -> slice:
        return slice(self.offset, self.offset + self.numel)


def matrix_of(shape: Sequence[int]) -> tuple[int, int] | None:
    """Rows and columns, with all dimensions after the first taken together; None of a vector or of nothing."""
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 and 0 not in shape else None


def factors_of(shape: Sequence[int]) -> int:
    """Rows and columns of a matrix, counted; 1 for anything else."""
    return sum(matrix_of(shape) or (1,))


@dataclass(frozen=True)
class Layout:
    """Named, contiguous pieces of a flat buffer, in order.

    >>> layout = Layout.of([("weight", 0, (2, 3)), ("bias", 1, (2,))])
    >>> layout.numel, layout.pieces[1].part
    (8, slice(6, 8, None))
    """

    pieces: tuple[Piece, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.pieces)  # once: tables are looked up by layout at every step, and there may be 300 pieces

    @staticmethod
    def of(parameters: Sequence[tuple[str, int, Sequence[int]]]) -> Layout:
        """A layout of (name, index, shape) triples, packed without gaps."""
        pieces: list[Piece] = []
        offset = 0
        for name, index, shape in parameters:
            pieces.append(Piece(name, index, offset, tuple(shape)))
            offset += pieces[-1].numel
        return Layout(tuple(pieces))

    @cached_property
    def numel(self) -> int:
        return sum(piece.numel for piece in self.pieces)

    @cached_property
    def digest(self) -> int:
        """A 32-bit number that ranks compare before they trust each other's messages."""
        text = ";".join(f"{p.name}:{p.index}:{'x'.join(map(str, p.shape))}" for p in self.pieces)
        return zlib.crc32(text.encode())

    def whole(self) -> Layout:
        """The same buffer as one piece: what the papers call the vector x."""
        first = self.pieces[0].index if self.pieces else 0
        return Layout((Piece("*", first, 0, (self.numel,)),))

    def views(self, flat: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        """Each piece with its one-dimensional view of `flat`."""
        for piece in self.pieces:
            yield piece, flat[..., piece.part]

    def select(self, chosen: Sequence[bool]) -> Layout:
        """The packed layout of the chosen pieces alone."""
        kept = (p for p, keep in zip(self.pieces, chosen, strict=True) if keep)
        return Layout.of([(p.name, p.index, p.shape) for p in kept])

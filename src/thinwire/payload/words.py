"""VGC's own message: one word of 32 bits a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.layout import Layout
from thinwire.ops import Key, add_at_, exponent_codes, pack_codes, unpack_codes
from thinwire.payload.base import Payload
from thinwire.payload.message import Chunk, fields, raw
from thinwire.payload.reader import Reader
from thinwire.payload.sparse import Sparse
from thinwire.payload.values import EXPONENT4

LIMIT = 1 << 28
"""Numbers that the position of a word can tell apart."""


@dataclass(frozen=True, eq=False)
class Words(Payload):
    """A position of 28 bits and a value of 4 in each word: position << 4 | sign << 3 | d, for +-2^(E - d).

    E of each piece stands before the words, as in `Exponent4`. `Sparse` takes a third to a half of these bytes: this
    format is here to compare with what the paper counts (Tsuzuku, Imachi and Akiba 2018, section 4.2).
    """

    positions: Tensor
    values: Tensor
    layout: Layout
    tag: ClassVar[int] = 8

    @staticmethod
    def of(sparse: Sparse) -> Words:
        """The same numbers, which were rounded to `Exponent4`."""
        if sparse.layout.numel >= LIMIT:
            raise ConfigError(
                f"words of 28 + 4 bits reach {LIMIT} numbers, and a bucket has {sparse.layout.numel}: use "
                "positions=entropy, or smaller buckets (DDP's bucket_cap_mb)"
            )
        return Words(sparse.positions, sparse.values, sparse.layout)

    @property
    def fixed(self) -> bool:
        return False

    @property
    def elements(self) -> int:
        return self.positions.numel()

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        return add_at_(out, self.positions, self.values.to(out.dtype), alpha)

    def pack(self) -> list[Chunk]:
        exponent, codes = exponent_codes(self.values, self.positions, self.layout)
        words = (self.positions << 4 | unpack_codes(codes, 4, self.elements)).to(torch.uint32)
        return [fields("I", self.positions.numel()), raw(exponent), raw(words)]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        (count,) = reader.fields("I")
        reader.require(count <= layout.numel, "message claims {} words for a vector of {}", count, layout.numel)
        exponent = reader.numbers(len(layout.pieces), torch.int16)
        words = reader.numbers(count, torch.uint32).to(torch.int64)
        positions, codes = words >> 4, pack_codes(words & 15, 4)
        ascending = (positions.diff() > 0).all() & (positions[-1:] < layout.numel).all()
        reader.require(ascending, "positions are not strictly ascending below {}", layout.numel)
        positions.clamp_(max=layout.numel - 1)
        return cls(positions, EXPONENT4.decode(reader, exponent, codes, positions, layout, dtype), layout)

"""How the numbers of a sparse message are written: full, 16-bit, 4-bit or sign only.

A format rounds first and packs afterwards, so that the sender keeps, in its memory, exactly what the receiver will
not see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.errors import ConfigError, WireError
from thinwire.layout import Layout
from thinwire.ops import exponent_codes, exponent_values, nearest_powers, pack_bits, unpack_bits
from thinwire.ops.blocks import exponents, piece_of, power
from thinwire.payload.message import Chunk, Reader, raw

_EXPONENTS = "the exponents in a message are not those of its numbers"


class ValueFormat(ABC):
    """A way to write numbers: `round` says which values arrive, `pack` and `unpack` carry them unchanged."""

    name: ClassVar[str]
    tag: ClassVar[int]
    lossless: ClassVar[bool] = False
    """Whether every value arrives as it is."""
    drops: ClassVar[bool] = False
    """Whether some chosen values are too small to be written at all, so that the count varies from rank to rank."""

    @abstractmethod
    def round(self, values: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """The values that the receiver will see; zero where one cannot be written."""

    @abstractmethod
    def pack(self, rounded: Tensor, positions: Tensor, layout: Layout) -> list[Chunk]: ...

    @abstractmethod
    def unpack(self, reader: Reader, positions: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor: ...

    def keeps(self, share: float, numel: int) -> float:
        """The contraction that is left of `share` = k/d when the k values are rounded."""
        return share


class Full(ValueFormat):
    """The state's own precision: nothing is lost."""

    name, tag, lossless = "full", 0, True

    def round(self, values: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        return values

    def pack(self, rounded: Tensor, positions: Tensor, layout: Layout) -> list[Chunk]:
        return [raw(rounded)]

    def unpack(self, reader: Reader, positions: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
        return reader.numbers(positions.numel(), dtype)


class _Cast(ValueFormat):
    """A narrower float type of the same exponent range, saturating; relative error at most 2^-(bits)."""

    dtype: ClassVar[torch.dtype]

    def round(self, values: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        most = torch.finfo(self.dtype).max
        return values.clamp(-most, most).to(self.dtype).to(values.dtype)

    def pack(self, rounded: Tensor, positions: Tensor, layout: Layout) -> list[Chunk]:
        return [raw(rounded.to(self.dtype))]

    def unpack(self, reader: Reader, positions: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
        return reader.numbers(positions.numel(), self.dtype).to(dtype)

    def keeps(self, share: float, numel: int) -> float:
        return share * (1 - 2.0**-16)  # squared relative error of a normal bfloat16, at most (2^-8)^2


class Float32(_Cast):
    """32-bit floats, for states kept in float64."""

    name, tag, dtype = "float32", 1, torch.float32


class BFloat16(_Cast):
    """16-bit floats with the exponent range of float32."""

    name, tag, dtype = "bfloat16", 2, torch.bfloat16


_BELOW_2 = 2 - 2.0**-10
"""The largest float16 below 2: rounding up to 2 would change the piece's exponent."""


class Float16(ValueFormat):
    """16-bit floats relative to each piece's largest power of two, so that small gradients do not underflow.

    v is written as float16(v / 2^E), E = floor(log2 max|v|) of its piece: relative error at most 2^-11 down to 2^-14
    of the largest.
    """

    name, tag = "float16", 3

    def round(self, values: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        groups = piece_of(positions, layout)
        unit = power(exponents(values, groups, len(layout.pieces)), torch.float64)[groups]
        halves = (values / unit).to(torch.float16).clamp_(-_BELOW_2, _BELOW_2)
        return (halves.to(torch.float64) * unit).to(values.dtype)

    def pack(self, rounded: Tensor, positions: Tensor, layout: Layout) -> list[Chunk]:
        groups = piece_of(positions, layout)
        exponent = exponents(rounded, groups, len(layout.pieces))
        unit = power(exponent, torch.float64)[groups]
        return [raw(exponent), raw((rounded / unit).to(torch.float16))]

    def unpack(self, reader: Reader, positions: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
        exponent = reader.numbers(len(layout.pieces), torch.int16)
        halves = reader.numbers(positions.numel(), torch.float16).to(torch.float64)
        groups = piece_of(positions, layout)
        exact = halves * power(exponent, torch.float64)[groups]
        values = exact.to(dtype)
        fits = (halves.abs() < 2).all() & (values == exact).all()
        reader.require(fits & (exponents(values, groups, len(layout.pieces)) == exponent).all(), _EXPONENTS)
        return values

    def keeps(self, share: float, numel: int) -> float:
        return share * (1 - 2.0**-16)


class Exponent4(ValueFormat):
    """One sign bit and three exponent bits: +-2^(E - d), d in 0..7, E = floor(log2 max|v|) of the piece (VGC, section
    4.2).

    |v| goes to the nearer power of two (1.5 * 2^e goes up), at most 2^E; what would need d > 7 is not sent.
    """

    name, tag, drops = "exponent4", 4, True

    def round(self, values: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        return nearest_powers(values, positions, layout)

    def pack(self, rounded: Tensor, positions: Tensor, layout: Layout) -> list[Chunk]:
        exponent, codes = exponent_codes(rounded, positions, layout)
        return [raw(exponent), codes]

    def unpack(self, reader: Reader, positions: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
        exponent = reader.numbers(len(layout.pieces), torch.int16)
        return self.decode(reader, exponent, reader.bits(4 * positions.numel()), positions, layout, dtype)

    def decode(
        self, reader: Reader, exponent: Tensor, codes: Tensor, positions: Tensor, layout: Layout, dtype: torch.dtype
    ) -> Tensor:
        """The numbers of each piece's E and of packed codes; the reader refuses what no sender writes."""
        values, declared, right = exponent_values(exponent, codes, positions, layout, dtype)
        reader.require(declared, "message sends values in a piece that it declares empty")
        reader.require(right, _EXPONENTS)
        return values

    def keeps(self, share: float, numel: int) -> float:
        return 0.75 / numel  # only the largest value is sure to be sent, and it may shrink by half


class SignOnly(ValueFormat):
    """One bit a value: +-t, the same t for the whole message (Strom 2015)."""

    name, tag = "sign", 5

    def round(self, values: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        return values

    def pack(self, rounded: Tensor, positions: Tensor, layout: Layout) -> list[Chunk]:
        magnitude = rounded[:1].abs() if rounded.numel() else rounded.new_zeros(1)
        return [raw(magnitude), pack_bits(rounded < 0)]

    def unpack(self, reader: Reader, positions: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
        magnitude = reader.numbers(1, dtype)
        negative = unpack_bits(reader.bits(positions.numel()), positions.numel())
        values = torch.where(negative, -magnitude, magnitude)
        fits = ~torch.signbit(magnitude).any() & ((values < 0) == negative).all()
        reader.require(fits, "message holds a magnitude below zero, or signs of zero")
        if not positions.numel():
            reader.require((magnitude == 0).all(), "message holds a magnitude but no numbers")
        return values


EXPONENT4, SIGN_ONLY = Exponent4(), SignOnly()
_ALL: tuple[ValueFormat, ...] = (Full(), Float32(), BFloat16(), Float16(), EXPONENT4, SIGN_ONLY)
FORMATS: dict[str, ValueFormat] = {f.name: f for f in _ALL if f is not SIGN_ONLY}
"""The formats a user can name."""


def value_format(name: str) -> ValueFormat:
    """The format of that name; an unknown name is a `ConfigError`."""
    if not isinstance(name, str) or name not in FORMATS:
        raise ConfigError(f"unknown value format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def value_format_of_tag(tag: int) -> ValueFormat:
    """The format that a message names; an unknown tag is a `WireError`."""
    found = next((f for f in _ALL if f.tag == tag), None)
    if found is None:
        raise WireError(f"unknown value format {tag} in a message")
    return found

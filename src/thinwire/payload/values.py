"""How the numbers of a sparse message are written: full, 16-bit, 4-bit, 2-bit or sign only.

A format rounds first and packs afterwards, so that the sender keeps, in its memory, exactly what the receiver will
not see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.errors import ConfigError, WireError
from thinwire.layout import Layout
from thinwire.ops import (
    Key,
    exponent_codes,
    exponent_values,
    nearest_powers,
    pack_bits,
    pack_codes,
    unpack_bits,
    unpack_codes,
)
from thinwire.ops.blocks import exponents, floor_log2, piece_ends, piece_indices, piece_of, power
from thinwire.ops.keys import uniforms
from thinwire.payload.message import Chunk, LateReader, Reader, raw

_EXPONENTS = "the exponents in a message are not those of its numbers"


class ValueFormat(ABC):
    """A way to write numbers: `round` says which values arrive, `pack` and `unpack` carry them unchanged."""

    name: ClassVar[str]
    tag: ClassVar[int]
    lossless: ClassVar[bool] = False
    """Whether every value arrives as it is."""
    drops: ClassVar[bool] = False
    """Whether some chosen values are too small to be written at all, so that the count varies from rank to rank."""
    unbiased: ClassVar[bool] = False
    """Whether it rounds by draws whose mean is the value, so that one which is not written was sent, as a zero."""

    @abstractmethod
    def round(self, values: Tensor, positions: Tensor, layout: Layout, key: Key | None = None) -> Tensor:
        """The values that the receiver will see; zero where one cannot be written. `key` is for those that draw."""

    @abstractmethod
    def pack(self, rounded: Tensor, positions: Tensor, layout: Layout) -> list[Chunk]: ...

    @abstractmethod
    def unpack(self, reader: Reader, positions: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor: ...

    def unpack_all(
        self, reader: LateReader, positions: Tensor, layout: Layout, dtype: torch.dtype
    ) -> Sequence[Tensor] | Tensor:
        """Every rank's values, at positions that have a row for each: one after the other, unless a format reads them
        together."""
        rank = iter(positions)
        return reader.each(lambda row: self.unpack(row, next(rank), layout, dtype))

    def keeps(self, share: float, numel: int) -> float:
        """The contraction that is left of `share` = k/d when the k values are rounded."""
        return share


class Full(ValueFormat):
    """The state's own precision: nothing is lost."""

    name, tag, lossless = "full", 0, True

    def round(self, values: Tensor, positions: Tensor, layout: Layout, key: Key | None = None) -> Tensor:
        return values

    def pack(self, rounded: Tensor, positions: Tensor, layout: Layout) -> list[Chunk]:
        return [raw(rounded)]

    def unpack(self, reader: Reader, positions: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
        return reader.numbers(positions.numel(), dtype)

    def unpack_all(self, reader: LateReader, positions: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
        return reader.numbers(positions.shape[1], dtype)


class _Cast(ValueFormat):
    """A narrower float type of the same exponent range, saturating; relative error at most 2^-(bits)."""

    dtype: ClassVar[torch.dtype]

    def round(self, values: Tensor, positions: Tensor, layout: Layout, key: Key | None = None) -> Tensor:
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

    def round(self, values: Tensor, positions: Tensor, layout: Layout, key: Key | None = None) -> Tensor:
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


class _Powers(ValueFormat):
    """One sign bit and three exponent bits: +-2^(E - d), E = floor(log2 max|v|) of the piece, d at most `deepest`.

    |v| goes to the nearer power of two (1.5 * 2^e goes up), at most 2^E; what would need a larger d goes to zero.
    """

    deepest: ClassVar[int]

    def round(self, values: Tensor, positions: Tensor, layout: Layout, key: Key | None = None) -> Tensor:
        return nearest_powers(values, positions, layout, self.deepest)

    def pack(self, rounded: Tensor, positions: Tensor, layout: Layout) -> list[Chunk]:
        exponent, codes = exponent_codes(rounded, positions, layout, self.deepest)
        return [raw(exponent), codes]

    def unpack(self, reader: Reader, positions: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
        exponent = reader.numbers(len(layout.pieces), torch.int16)
        return self.decode(reader, exponent, reader.bits(4 * positions.numel()), positions, layout, dtype)

    def unpack_all(
        self, reader: LateReader, positions: Tensor, layout: Layout, dtype: torch.dtype
    ) -> Sequence[Tensor] | Tensor:
        if positions.is_cuda:
            return super().unpack_all(reader, positions, layout, dtype)
        exponent = reader.numbers(len(layout.pieces), torch.int16)
        return self.decode(reader, exponent, reader.bits(4 * positions.shape[1]), positions, layout, dtype)

    def decode(
        self, reader: Reader, exponent: Tensor, codes: Tensor, positions: Tensor, layout: Layout, dtype: torch.dtype
    ) -> Tensor:
        """The numbers of each piece's E and of packed codes; the reader refuses what no sender writes.

        On a CPU they may have a row for each rank."""
        values, declared, right = exponent_values(exponent, codes, positions, layout, dtype, self.deepest)
        reader.require(declared, "message sends values in a piece that it declares empty")
        reader.require(right, _EXPONENTS)
        return values

    def keeps(self, share: float, numel: int) -> float:
        return 0.75 / numel  # only the largest value is sure to be sent, and it may shrink by half


class Exponent4(_Powers):
    """+-2^(E - d), d in 0..7 (VGC, section 4.2); what would need d > 7 is not sent."""

    name, tag, drops, deepest = "exponent4", 4, True, 7


class Power4(_Powers):
    """+-2^(E - d), d in 0..6, or zero, which is written as d = 7 without a sign; what would need d > 6 is sent as zero.

    Every chosen value has a code: a message's size does not depend on its numbers, and no rank waits to hear of it.
    """

    name, tag, deepest = "power4", 9, 6


class Bins2(ValueFormat):
    """A sign and one of two magnitudes: +-lo or +-hi, two means of each piece (SparseLoCo, Sarfi et al. 2025).

    The magnitudes of a piece are split at their mean, then twice at the midpoint of the two means (Lloyd 1982), which
    come to rest near the split of least error; lo and hi are the float32 means of what lies below and above it. What is
    smaller than half its mean is not sent: it would be further from what arrives than from zero.
    """

    name, tag, drops = "bins2", 6, True

    def round(self, values: Tensor, positions: Tensor, layout: Layout, key: Key | None = None) -> Tensor:
        pieces, count = piece_of(positions, layout), len(layout.pieces)
        magnitudes = values.abs().to(torch.float64)
        split = _means(magnitudes, pieces, count)
        for _ in range(3):
            bins = 2 * pieces + (magnitudes > split[pieces])
            means = _means(magnitudes, bins, 2 * count)
            low, high = means.view(count, 2).unbind(1)
            split = torch.where(high > 0, (low + high) / 2, low)
        narrow = means.clamp(max=torch.finfo(torch.float32).max).to(torch.float32).to(torch.float64)[bins]
        return torch.where(2 * magnitudes >= narrow, narrow, 0).copysign(values).to(values.dtype)

    def pack(self, rounded: Tensor, positions: Tensor, layout: Layout) -> list[Chunk]:
        pieces = piece_of(positions, layout)
        bins = _two_magnitudes(rounded, pieces, len(layout.pieces))
        upper = rounded.abs() > bins[:, 0].to(rounded.dtype)[pieces]
        return [raw(bins.view(-1)), pack_codes((rounded < 0) + 2 * upper.to(torch.int64), 2)]

    def unpack(self, reader: Reader, positions: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
        bins = reader.numbers(2 * len(layout.pieces), torch.float32).view(-1, 2)
        codes = unpack_codes(reader.bits(2 * positions.numel()), 2, positions.numel())
        pieces = piece_of(positions, layout)
        magnitudes = bins[pieces, codes >> 1].to(dtype)
        reader.require((torch.isfinite(bins) & ~torch.signbit(bins)).all() & (magnitudes > 0).all(), _MAGNITUDES)
        values = torch.where((codes & 1) == 1, -magnitudes, magnitudes)
        reader.require((_two_magnitudes(values, pieces, len(layout.pieces)) == bins).all(), _MAGNITUDES)
        return values

    def keeps(self, share: float, numel: int) -> float:
        return 0.5 / numel  # of one number far above all others, which is alone in its bin, it keeps all


_MAGNITUDES = "the magnitudes in a message are not those of its numbers"


def _means(magnitudes: Tensor, groups: Tensor, count: int) -> Tensor:
    """The mean of each group's magnitudes that are not zero; zero of none.

    In whole multiples of 2^-30 of the group's largest power of two: their sums are the same in any order, on any
    device, and a group of equal float32 numbers has exactly their mean.
    """
    unit = power(floor_log2(_largest(magnitudes, groups, count)).to(torch.int64) - 30, torch.float64)
    steps = (magnitudes / unit[groups]).to(torch.int64)
    sums, counts = (
        torch.zeros(count, dtype=torch.int64, device=magnitudes.device).scatter_add_(0, groups, terms)
        for terms in (steps, (magnitudes > 0).to(torch.int64))
    )
    return sums.to(torch.float64) * unit / counts.clamp(min=1)


def _two_magnitudes(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Each group's smaller and larger magnitude as float32; zero in place of one that it does not have."""
    magnitudes = values.abs().to(torch.float32)
    highest = _largest(magnitudes, groups, count)
    lowest = torch.full_like(highest, torch.inf).scatter_reduce_(0, groups, magnitudes, "amin")
    return torch.stack([lowest.where(highest > 0, 0), highest.where(highest > lowest, 0)], 1)


class _Drawn(ValueFormat):
    """A sign and one of s levels k m / s, m being the largest magnitude of a piece as float32, rounded down; drawn so
    that the mean is the value (QSGD's levels, Alistarh et al. 2017, with the maximum in place of the norm).

        k = floor(t) + [u < t - floor(t)],    t = s |v| / m,    u uniform in [0, 1):    E k m / s = |v|

    Level 0 is not sent, hence s = 2^(bits - 1) levels in so many bits with the sign.
    """

    bits: ClassVar[int]
    drops, unbiased = True, True

    def round(self, values: Tensor, positions: Tensor, layout: Layout, key: Key | None = None) -> Tensor:
        assert key is not None  # who names such a format hands over its key
        pieces, magnitudes = piece_of(positions, layout), values.abs().to(torch.float64)
        most = _down_to_float32(_largest(magnitudes, pieces, len(layout.pieces)))[pieces].to(torch.float64)
        t = torch.where(most > 0, magnitudes * self.levels / most, 0)
        draws = _draws(positions, pieces, layout, key)
        level = (t.floor() + (draws < t - t.floor())).clamp_(max=self.levels)
        return (level * most / self.levels).copysign(values).to(values.dtype)

    @property
    def levels(self) -> int:
        return 1 << (self.bits - 1)

    def pack(self, rounded: Tensor, positions: Tensor, layout: Layout) -> list[Chunk]:
        pieces = piece_of(positions, layout)
        most = _largest(rounded.abs().to(torch.float32), pieces, len(layout.pieces))
        codes = 2 * (self._level_of(rounded, most[pieces]) - 1) + (rounded < 0)
        return [raw(most), pack_codes(codes, self.bits)]

    def unpack(self, reader: Reader, positions: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
        most = reader.numbers(len(layout.pieces), torch.float32)
        codes = unpack_codes(reader.bits(self.bits * positions.numel()), self.bits, positions.numel())
        pieces, level = piece_of(positions, layout), (codes >> 1) + 1
        magnitudes = (level * most[pieces].to(torch.float64) / self.levels).to(dtype)
        reader.require((torch.isfinite(most) & ~torch.signbit(most)).all() & (magnitudes > 0).all(), _MAGNITUDES)
        largest = _largest(magnitudes.to(torch.float32), pieces, len(layout.pieces))
        written = self._level_of(magnitudes, most[pieces].where(magnitudes > 0, 1))
        reader.require((largest == most).all() & (written == level).all(), _MAGNITUDES)
        return torch.where((codes & 1) == 1, -magnitudes, magnitudes)

    def _level_of(self, rounded: Tensor, most: Tensor) -> Tensor:
        return (rounded.abs().to(torch.float64) * self.levels / most).round().to(torch.int64)


class Drawn4(_Drawn):
    """Four bits a value: a sign and one of 8 levels."""

    name, tag, bits = "qsgd4", 7, 4


class Drawn2(_Drawn):
    """Two bits a value: a sign, and the largest magnitude or half of it."""

    name, tag, bits = "qsgd2", 8, 2


def _largest(magnitudes: Tensor, groups: Tensor, count: int) -> Tensor:
    """The largest magnitude of each group; zero of none."""
    largest = torch.zeros(count, dtype=magnitudes.dtype, device=magnitudes.device)
    return largest.scatter_reduce_(0, groups, magnitudes, "amax")


def _draws(positions: Tensor, pieces: Tensor, layout: Layout, key: Key) -> Tensor:
    """A number in [0, 1) for each position, by its place in its piece: buckets may be cut anyhow."""
    ends = piece_ends(layout, positions.device)
    places = positions - torch.cat([ends.new_zeros(1), ends])[pieces]
    return uniforms(key.words(piece_indices(layout)).to(positions.device)[pieces], places)


def _down_to_float32(magnitudes: Tensor) -> Tensor:
    """The largest float32 that is not above: the largest of all is then of the highest level for sure."""
    near = magnitudes.clamp(max=torch.finfo(torch.float32).max).to(torch.float32)
    return torch.where(near > magnitudes, near.nextafter(torch.zeros_like(near)), near)


class SignOnly(ValueFormat):
    """One bit a value: +-t, the same t for the whole message (Strom 2015)."""

    name, tag = "sign", 5

    def round(self, values: Tensor, positions: Tensor, layout: Layout, key: Key | None = None) -> Tensor:
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
_ALL: tuple[ValueFormat, ...] = (
    *(Full(), Float32(), BFloat16(), Float16(), EXPONENT4, Power4(), SIGN_ONLY, Bins2()),
    *(Drawn4(), Drawn2()),
)
FORMATS: dict[str, ValueFormat] = {f.name: f for f in _ALL if f is not SIGN_ONLY and not f.unbiased}
"""The formats a user can name, whatever is compressed."""
DRAWN: dict[str, ValueFormat] = {f.name: f for f in _ALL if f.unbiased}
"""Those for rules that forget what rounding loses: where it is remembered, rounding to the nearest loses less."""


def value_format(name: str, known: Mapping[str, ValueFormat] = FORMATS) -> ValueFormat:
    """The known format of that name; an unknown name is a `ConfigError`."""
    if not isinstance(name, str) or name not in known:
        raise ConfigError(f"unknown value format {name!r}; known: {', '.join(known)}")
    return known[name]


def value_format_of_tag(tag: int) -> ValueFormat:
    """The format that a message names; an unknown tag is a `WireError`."""
    found = next((f for f in _ALL if f.tag == tag), None)
    if found is None:
        raise WireError(f"unknown value format {tag} in a message")
    return found

"""One message: it decodes itself, knowing neither the compressor that made it nor who sent it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from thinwire.errors import ConfigError, WireError
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.owners import Cut
from thinwire.payload.message import Chunk, LateReader, Reader

Count = int | Tensor | None
"""How many numbers are sent. Where they have to be counted it is a tensor without dimensions, so that nobody waits for
a GPU to know it; None where a format sends all, each in a few bits."""


def both_counts(one: Count, two: Count) -> Count:
    """The sum of two counts, where both are known."""
    return None if one is None or two is None else one + two


def mean_count(total: Count, workers: int) -> float | Tensor | None:
    """The mean over workers of what they sent in all, in double precision wherever it was counted."""
    return total.double() / workers if isinstance(total, Tensor) else None if total is None else total / workers


class Payload(ABC):
    """A compressed vector: `add_to` decodes it, `pack` gives exactly the bytes that travel.

    A class with a `tag` is a format: a message names it by this byte, and so a reader finds it.
    """

    tag: ClassVar[int]
    nests: ClassVar[bool] = False
    """Whether it holds other payloads."""

    def __init_subclass__(cls) -> None:
        if "tag" in vars(cls):
            _enter(cls)

    @property
    def clears(self) -> bool:
        """Whether all that it was made of is known to be finite, by a look at what was chosen.

        NaN and infinity are larger than any number: where the largest of each piece are finite, all are. False where
        nobody has looked.
        """
        return False

    def unless(self, doubtful: bool) -> Self:
        """The same, which clears nothing where there is a doubt about what else it was made of."""
        if doubtful and self.clears:
            raise TypeError(f"{type(self).__name__} clears what it was made of, and cannot take that back")
        return self

    @property
    @abstractmethod
    def fixed(self) -> bool:
        """Whether the packed size is the same on every rank at a given step, so that no sizes need exchanging."""

    @property
    def elements(self) -> Count:
        """How many numbers of the vector are sent: what VGC's paper counts."""
        return None

    @property
    def summand(self) -> Tensor | None:
        """All its numbers, where they travel as they are and every rank's stand for the same coordinates, so that they
        may be added up on their way; else None."""
        return None

    def with_summand(self, numbers: Tensor) -> Payload:
        """The same message with these numbers in the summand's place."""
        raise TypeError(f"{type(self).__name__} has no summand")

    def split(self, cut: Cut) -> list[Payload]:
        """For each owner what the message says of its numbers, where it was made of each share by itself."""
        raise TypeError(f"{type(self).__name__} cannot be split")

    @abstractmethod
    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        """out += alpha * decoded, in place."""

    @abstractmethod
    def pack(self) -> list[Chunk]:
        """The message, chunk by chunk."""

    @classmethod
    @abstractmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        """The payload that was packed for this layout, by a sender whose shared key is `key.shared()`."""

    @classmethod
    def unpack_all(cls, reader: LateReader, layout: Layout, key: Key, dtype: torch.dtype) -> list[Self]:
        """The payloads of all ranks: one after the other, unless a format reads them together."""
        return reader.each(lambda row: cls.unpack(row, layout, key, dtype))

    def decode(self, layout: Layout, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """The decoded vector."""
        return self.add_to(torch.zeros(layout.numel, dtype=dtype, device=device))


class Payloads(Sequence[Payload], ABC):
    """All workers' payloads in rank order, held by an engine that adds them up in its own way."""

    @abstractmethod
    def add_to(self, out: Tensor, alpha: float | Sequence[float] = 1.0) -> Tensor:
        """What `add_all_to` does, bit for bit."""


FORMATS: dict[int, type[Payload]] = {}
"""Every format by its tag."""


def payload_format(tag: int) -> type[Payload]:
    """The format that a message names; an unknown tag is a `WireError`."""
    if tag not in FORMATS:
        raise WireError(f"unknown payload format {tag} in a message; known: {sorted(FORMATS)}")
    return FORMATS[tag]


def _enter(format: type[Payload]) -> None:
    """Make a format known by its tag; a class that is defined anew under its name takes its own old place."""
    other = FORMATS.get(format.tag, format)
    if not 0 <= format.tag < 256:
        raise ConfigError(f"a format's tag is one byte, {format.__name__} has {format.tag}: take one of 0 to 255")
    if (other.__module__, other.__qualname__) != (format.__module__, format.__qualname__):
        raise ConfigError(
            f"{format.__name__} has the tag {format.tag}, which is {other.__name__}'s: take another of 0 to 255"
        )
    FORMATS[format.tag] = format

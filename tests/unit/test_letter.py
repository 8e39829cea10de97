"""What is read of a letter that may not count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import pytest
import torch

from thinwire import Compressor, Key, Layout, RandK, ScaledSign, TopK
from thinwire.errors import WireError
from thinwire.payload import Beside, Payload, Reader
from thinwire.payload.letter import FINITE, Contents, Expected, Letter, read, read_alike, refuse, sign_, write
from thinwire.payload.message import Chunk, fields, raw

LAYOUT = Layout.of([("a", 3, (2, 3)), ("b", 5, (4,))])
EXPECTED = Expected(7, "step 1", len(LAYOUT.pieces), ((LAYOUT, torch.float32),), Key())


def letter_with(flag: int) -> torch.Tensor:
    """A letter whose second moments are those of a gradient that has NaN."""
    x = torch.arange(float(LAYOUT.numel))
    moments = torch.full((sum(piece.factors for piece in LAYOUT.pieces),), torch.nan, dtype=torch.bfloat16)
    payload = Beside(moments, TopK(count=1)(x, LAYOUT, Key()))
    return write([payload], EXPECTED.digest, torch.tensor(flag), 1).message


def test_what_stands_in_a_letter_whose_flag_is_raised_is_no_damage() -> None:
    """It was made of numbers that are not finite; the flag says so, and the step is refused for that."""
    refuse(letter_with(1), EXPECTED, 1)


def test_the_same_in_a_letter_without_a_flag_is_named() -> None:
    with pytest.raises(WireError, match=r"rank 1: .*second moments that are none"):
        refuse(letter_with(FINITE), EXPECTED, 1)


# -------------------------------------------------------------------------------------------------- letters of one size

RANKS = 3
ALIKE = [TopK(0.5), TopK(0.5, values="power4"), TopK(0.5, values="bfloat16"), RandK(0.5, shared=True), ScaledSign()]
each_alike = pytest.mark.parametrize("compressor", ALIKE, ids=str)


def letters(compressor: Compressor, flags: Sequence[int] = (FINITE,) * RANKS) -> list[Letter]:
    """Every rank's letter about numbers of its own."""
    made = []
    for rank, flag in enumerate(flags):
        x = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(rank))
        made.append(write([compressor(x, LAYOUT, Key(0, 0, rank))], EXPECTED.digest, torch.tensor(flag), rank))
    return made


def outcome(read_them: Callable[[], Contents]) -> object:
    """What is read, or why not."""
    try:
        contents = read_them()
    except WireError as error:
        return str(error)
    decoded = [[one.decode(LAYOUT, torch.float32).tolist() for one in part] for part in contents.payloads]
    return list(contents.flags), decoded


@each_alike
@pytest.mark.parametrize("together", [True, False], ids=["rows", "apart"])
def test_letters_of_one_size_are_read_at_once_as_one_by_one(compressor: Compressor, together: bool) -> None:
    made = letters(compressor)
    messages = [letter.message for letter in made]
    given = torch.stack(messages) if together else messages
    expected = outcome(lambda: read(messages, EXPECTED))
    assert not isinstance(expected, str)
    for own in made:
        assert outcome(lambda own=own: read_alike(given, own, EXPECTED)) == expected


@each_alike
@pytest.mark.parametrize("signed", [True, False], ids=["signed anew", "as it came"])
def test_a_changed_byte_is_found_at_once_as_one_by_one(compressor: Compressor, signed: bool) -> None:
    """Each byte of one rank's letter, its checksum left wrong or made to fit again."""
    own = letters(compressor)[0]
    seen = set()
    for place in range(own.message.numel()):
        for change in (1, 128):
            messages = [letter.message.clone() for letter in letters(compressor)]
            messages[1][place] ^= change
            if signed:
                sign_(messages[1], 1)
            expected = outcome(lambda messages=messages: read(messages, EXPECTED))
            assert outcome(lambda messages=messages: read_alike(messages, own, EXPECTED)) == expected
            seen.add(isinstance(expected, str))
    assert seen == ({True, False} if signed else {True})


@each_alike
def test_flags_and_lengths_are_seen_at_once_as_one_by_one(compressor: Compressor) -> None:
    messages = [letter.message for letter in letters(compressor, (FINITE, 1, 0))]
    own = letters(compressor)[0]
    assert outcome(lambda: read_alike(messages, own, EXPECTED)) == ([FINITE, 1, 0], [])
    messages = [letter.message for letter in letters(compressor)]
    shorter = [*messages[:2], messages[2][:-4]]
    assert outcome(lambda: read_alike(shorter, own, EXPECTED)) == outcome(lambda: read(shorter, EXPECTED))
    all_shorter = torch.stack(messages)[:, :-4]
    assert outcome(lambda: read_alike(all_shorter, own, EXPECTED)) == outcome(lambda: read(all_shorter, EXPECTED))


# What a class outside the package may do: write two fields that it reads one by one, read numbers as a field, and look
# something up by a number that it has checked.


@dataclass(frozen=True, eq=False)
class Outside(Payload):
    values: torch.Tensor
    fixed: ClassVar[bool] = True

    def add_to(self, out: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        return out.add_(self.values, alpha=alpha)


class FieldsApart(Outside):
    tag = 240

    def pack(self) -> list[Chunk]:
        return [fields("II", self.values.numel(), 3), raw(self.values)]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        (count,), _ = reader.fields("I"), reader.fields("I")
        return cls(reader.numbers(count, dtype))


class NumberAsField(Outside):
    tag = 241

    def pack(self) -> list[Chunk]:
        return [raw(torch.tensor([2.0])), raw(self.values / 2)]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        (scale,) = reader.fields("f")
        return cls(scale * reader.numbers(layout.numel, dtype))


class LookedUp(Outside):
    tag = 242
    scales = (0.5, 1.0, 2.0)

    def pack(self) -> list[Chunk]:
        return [raw(torch.tensor([1 if float(self.values[0]) < 9 else 9], dtype=torch.int32)), raw(self.values)]

    @classmethod
    def unpack(cls, reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Self:
        place = int(reader.numbers(1, torch.int32))
        reader.require(0 <= place < 3, "no such scale: {}", place)
        return cls(cls.scales[place] * reader.numbers(layout.numel, dtype))


@pytest.mark.parametrize("kind", [FieldsApart, NumberAsField, LookedUp])
@pytest.mark.parametrize("first", [0.0, 9.0])
def test_a_format_that_cannot_be_read_at_once_is_read_one_by_one(kind: type[Outside], first: float) -> None:
    made = []
    for rank in range(RANKS):
        values = torch.arange(float(LAYOUT.numel))
        values[0] = first if rank == 1 else 0.0
        made.append(write([kind(values)], EXPECTED.digest, torch.tensor(FINITE), rank))
    messages = [letter.message for letter in made]
    expected = outcome(lambda: read(messages, EXPECTED))
    assert isinstance(expected, str) == (kind is LookedUp and first == 9.0)
    assert outcome(lambda: read_alike(messages, made[0], EXPECTED)) == expected

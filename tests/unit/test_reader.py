"""A cursor that never reads past the end of a message."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from thinwire.errors import WireError
from thinwire.payload.message import LateReader, Reader, fields, join, raw, size

CPU = torch.device("cpu")


def message(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def test_fields_and_numbers_come_back_in_order() -> None:
    numbers = torch.tensor([1.5, -2.5])
    reader = Reader(join([fields("BiQ", 7, -1, 2**63), raw(numbers)], CPU))
    assert reader.fields("BiQ") == (7, -1, 2**63)
    assert torch.equal(reader.numbers(2, torch.float32), numbers)
    reader.finish()


def test_fields_are_little_endian_and_unpadded() -> None:
    assert fields("BI", 1, 2) == bytes([1, 2, 0, 0, 0])


def test_chunks_are_joined_in_order_each_at_a_whole_word() -> None:
    chunks = [b"", fields("B", 1), message(2, 3), message(), message(4, 5, 6, 7), fields("H", 8)]
    assert join(chunks, CPU).tolist() == [1, 0, 0, 0, 2, 3, 0, 0, 4, 5, 6, 7, 8, 0, 0, 0]
    assert size(chunks) == 16
    assert join([], CPU).numel() == size([]) == 0


@given(st.lists(st.one_of(st.binary(max_size=9), st.binary(max_size=9).map(lambda b: message(*b))), max_size=6))
def test_chunks_come_back_one_by_one(chunks: list[bytes | Tensor]) -> None:
    joined = join(chunks, CPU)
    assert joined.numel() == size(chunks)
    reader = Reader(joined)
    for chunk in chunks:
        assert reader.place % 4 == 0
        if isinstance(chunk, bytes):
            assert reader.fields(f"{len(chunk)}s") == (chunk,)
        else:
            assert torch.equal(reader.take(chunk.numel()), chunk)
    reader.finish()


@given(st.integers(0, 10), st.integers(0, 30))
def test_taking_too_much_names_the_place_and_what_is_left(length: int, wanted: int) -> None:
    """Whole words are taken: what fills up the last one must be there too."""
    reader = Reader(torch.zeros(length, dtype=torch.uint8))
    if 4 * math.ceil(wanted / 4) <= length:
        assert reader.take(wanted).numel() == wanted
        assert reader.place == 4 * math.ceil(wanted / 4)
    else:
        with pytest.raises(WireError, match=f"{wanted} more bytes expected at byte 0, {length} are left"):
            reader.take(wanted)
        assert reader.place == 0


@pytest.mark.parametrize("wanted", [-1, 2**63, 2**64 - 1])
def test_absurd_lengths_are_refused(wanted: int) -> None:
    with pytest.raises(WireError, match="ends too early"):
        Reader(message(1, 2, 3)).take(wanted)


def test_numbers_off_their_natural_alignment_are_read() -> None:
    joined = join([fields("B", 9), raw(torch.tensor([1.25], dtype=torch.float64))], CPU)
    for start in (0, 1, 4):
        reader = Reader(torch.cat([message(*[7] * start), joined])[start:])
        reader.take(1)
        assert reader.numbers(1, torch.float64).item() == 1.25


def test_what_is_left_over_is_an_error() -> None:
    reader = Reader(message(1, 0, 0, 0, 2, 3))
    reader.take(1)
    with pytest.raises(WireError, match="too long: 2 bytes after its end"):
        reader.finish()


def test_an_empty_message_holds_nothing() -> None:
    reader = Reader(message())
    reader.finish()
    assert reader.numbers(0, torch.float64).numel() == 0
    with pytest.raises(WireError):
        reader.fields("B")


def test_what_was_read_does_not_change_with_the_message() -> None:
    source = raw(torch.tensor([1.0])).clone()
    numbers = Reader(source).numbers(1, torch.float32)
    source.zero_()
    assert numbers.item() == 1.0


@pytest.mark.parametrize("count", range(41))
def test_bits_beyond_the_last_one_must_be_zero(count: int) -> None:
    """Padding that is not zero was once read as if it were: two messages meant the same."""
    nbytes, words = math.ceil(count / 8), math.ceil(count / 32)
    reader = Reader(message(*[0] * 4 * words))
    assert reader.bits(count).numel() == reader.place == 4 * words
    for spare in range(count, 32 * words):
        packed = message(*[0] * 4 * words)
        packed[spare // 8] = 1 << spare % 8
        with pytest.raises(WireError, match="beyond the last number" if spare < 8 * nbytes else "fill up a word"):
            Reader(packed).bits(count)


def test_bits_are_those_that_were_packed() -> None:
    packed = join([message(0b10110101, 0b101), fields("B", 9)], CPU)
    reader = Reader(packed)
    assert reader.bits(11).tolist() == [0b10110101, 0b101, 0, 0]
    assert reader.fields("B") == (9,)
    reader.finish()
    with pytest.raises(WireError, match="beyond the last number"):
        Reader(packed).bits(10)


@pytest.mark.parametrize("length", range(1, 10))
def test_bytes_that_fill_up_a_word_must_be_zero(length: int) -> None:
    content = [255] * length
    for spare in range(length, 4 * math.ceil(length / 4)):
        packed = join([message(*content)], CPU)
        assert Reader(packed).take(length).tolist() == content
        assert Reader(packed).fields(f"{length}s") == (bytes(content),)
        packed[spare] = 1
        with pytest.raises(WireError, match="fill up a word"):
            Reader(packed).take(length)
        with pytest.raises(WireError, match="fill up a word"):
            Reader(packed).fields(f"{length}s")


# --------------------------------------------------------------------------------------- messages of all ranks at once

TAG, COUNT = fields("B", 7), fields("HI", 3, 500)
NUMBERS = torch.tensor([[1, -2, 3], [4, 5, -6], [-7, 8, 9]], dtype=torch.int16)
MARKS = [0b01010, 0b10001, 0b11111]


def ranks(count: int = 3) -> Tensor:
    """One message a rank: tag (4 bytes), three numbers (8), fields (8), five bits (4)."""
    return torch.stack([join([TAG, raw(NUMBERS[r]), COUNT, message(MARKS[r])], CPU) for r in range(count)])


def together(reader: Reader) -> tuple[list[list[int]], list[list[int]]]:
    """What stands in the messages, read of all ranks at once."""
    assert reader.fields("B") == (7,)
    numbers = reader.numbers(3, torch.int16).tolist()
    assert reader.fields("HI") == (3, 500)
    return numbers, reader.bits(5)[..., 0].tolist()


def one_by_one(reader: LateReader) -> tuple[list[list[int]], list[list[int]]]:
    """The same, read by `each`; the tag stands before it."""
    assert reader.fields("B") == (7,)
    found = reader.each(lambda row: (row.numbers(3, torch.int16).tolist(), row.fields("HI"), row.bits(5)[0].item()))
    assert {fields for _, fields, _ in found} == {(3, 500)}
    return [numbers for numbers, _, _ in found], [int(bits) for _, _, bits in found]


each_way = pytest.mark.parametrize("read", [together, one_by_one, lambda reader: reader.each(together)])


@each_way
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("own", [0, 1, 2])
def test_messages_of_all_ranks_are_read_at_once(read: Callable[[LateReader], object], count: int, own: int) -> None:
    rows = ranks(count)
    reader = LateReader(rows, rows[own % count], [TAG, COUNT])
    found = read(reader)
    reader.finish()
    expected = [(NUMBERS[r].tolist(), MARKS[r]) for r in range(count)]
    assert found in ([*map(list, zip(*expected, strict=True))], tuple(map(list, zip(*expected, strict=True))), expected)
    assert reader.sound().tolist() == [True] * count


@each_way
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize(
    ("place", "byte"),
    [
        (0, 8),
        (1, 1),
        (3, 128),
        (10, 1),
        (11, 255),
        (12, 2),
        (14, 0),
        (18, 1),
        (19, 64),
        (20, 0b101010),
        (21, 1),
        (23, 9),
    ],
    ids=lambda value: str(value),
)
def test_only_the_damaged_message_is_unsound(
    read: Callable[[LateReader], object], rank: int, place: int, byte: int
) -> None:
    """In a field, in what fills up a field, numbers or bits, and in bits beyond the last one; nothing is raised."""
    rows = ranks()
    own = rows[(rank + 1) % 3].clone()
    rows[rank, place] = byte
    reader = LateReader(rows, own, [TAG, COUNT])
    read(reader)
    reader.finish()
    assert reader.sound().tolist() == [r != rank for r in range(3)]


def test_a_damaged_message_of_ones_own_is_found_by_what_was_sent() -> None:
    """Fields are known from what was sent, not from what came back."""
    rows = ranks()
    own = rows[0].clone()
    rows[0, 12] = 9
    reader = LateReader(rows, own, [TAG, COUNT])
    together(reader)
    assert reader.sound().tolist() == [False, True, True]


def test_what_must_hold_is_noted_for_each_rank() -> None:
    rows = ranks()
    reader = LateReader(rows, rows[0], [TAG, COUNT])
    reader.fields("B")
    reader.require(torch.tensor([True, True, False]), "not the last")
    numbers = reader.each(lambda row: _bounded(row, 6))
    assert len(numbers) == 3
    assert reader.sound().tolist() == [True, True, False]
    reader.require(torch.tensor(False), "of all alike")
    assert reader.sound().tolist() == [False] * 3


def _bounded(row: Reader, bound: int) -> Tensor:
    numbers = row.numbers(3, torch.int16)
    row.require((numbers < bound).all(), "too large")
    return numbers


def test_what_only_one_row_breaks_is_not_held_against_the_others() -> None:
    rows = ranks()
    reader = LateReader(rows, rows[0], [TAG, COUNT])
    reader.fields("B")
    reader.each(lambda row: _bounded(row, 5))
    assert reader.sound().tolist() == [True, False, False]


def test_reading_goes_on_behind_what_each_row_took() -> None:
    rows = ranks()
    reader = LateReader(rows, rows[0], [TAG, COUNT])
    reader.each(lambda row: row.fields("B"))
    assert reader.place == 4
    reader.numbers(3, torch.int16)
    assert reader.fields("HI") == (3, 500)
    assert reader.bits(5).shape == (3, 4)
    reader.finish()


@pytest.mark.parametrize("start", [0, 1, 4, 8])
@pytest.mark.parametrize("dtype", [torch.int16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_numbers_of_all_ranks_wherever_they_stand(start: int, dtype: torch.dtype, count: int) -> None:
    numbers = torch.arange(2 * count).view(2, count).to(dtype)
    rows = torch.stack([join([TAG, raw(row)], CPU) for row in numbers])
    buffer = torch.zeros(start + rows.numel(), dtype=torch.uint8)
    buffer[start:] = rows.flatten()
    reader = LateReader(buffer[start:].view(rows.shape), rows[0], [TAG])
    reader.fields("B")
    assert torch.equal(reader.numbers(count, dtype), numbers)
    assert reader.sound().tolist() == [True, True]


def test_messages_of_another_length_than_ones_own_are_refused() -> None:
    rows = ranks()
    with pytest.raises(WireError, match="messages have 24 bytes where this rank's own has 20"):
        LateReader(rows, rows[0, :20], [TAG, COUNT])


def test_reading_beyond_the_end_is_refused_at_once() -> None:
    """Lengths are one's own: nothing has to be waited for."""
    rows = ranks()
    for read in (lambda reader: reader.take(25), lambda reader: reader.each(lambda row: row.take(25))):
        with pytest.raises(WireError, match="25 more bytes expected at byte 0, 24 are left"):
            read(LateReader(rows, rows[0], [TAG, COUNT]))
    with pytest.raises(WireError, match="too long: 24 bytes"):
        LateReader(rows, rows[0], [TAG, COUNT]).finish()

"""A cursor that never reads past the end of a message."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.errors import WireError
from thinwire.payload.message import fields, join, raw, size
from thinwire.payload.reader import Reader

CPU = torch.device("cpu")


def message(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def test_fields_and_numbers_come_back_in_order() -> None:
    numbers = torch.tensor([1.5, -2.5])
    reader = Reader(join([fields("BiQ", 7, -1, 2**63), raw(numbers)], CPU))
    assert reader.fields("BiQ") == (7, -1, 2**63)
    assert torch.equal(reader.numbers(2, torch.float32), numbers)
    reader.finish()


def test_fields_are_little_endian_and_unpadded() -> None:
    assert fields("BI", 1, 2) == bytes([1, 2, 0, 0, 0])


def test_chunks_are_joined_in_order() -> None:
    chunks = [b"", fields("B", 1), message(2, 3), fields("H", 4)]
    assert join(chunks, CPU).tolist() == [1, 2, 3, 4, 0]
    assert size(chunks) == 5
    assert join([], CPU).numel() == 0


@given(st.integers(0, 10), st.integers(0, 30))
def test_taking_too_much_names_the_place_and_what_is_left(length: int, wanted: int) -> None:
    reader = Reader(torch.zeros(length, dtype=torch.uint8))
    if wanted <= length:
        assert reader.take(wanted).numel() == wanted
    else:
        with pytest.raises(WireError, match=f"{wanted} more bytes expected at byte 0, {length} are left"):
            reader.take(wanted)
        assert reader.place == 0


@pytest.mark.parametrize("wanted", [-1, 2**63, 2**64 - 1])
def test_absurd_lengths_are_refused(wanted: int) -> None:
    with pytest.raises(WireError, match="ends too early"):
        Reader(message(1, 2, 3)).take(wanted)


def test_numbers_off_their_natural_alignment_are_read() -> None:
    reader = Reader(torch.cat([message(9), raw(torch.tensor([1.25], dtype=torch.float64))]))
    reader.take(1)
    assert reader.numbers(1, torch.float64).item() == 1.25


def test_what_is_left_over_is_an_error() -> None:
    reader = Reader(message(1, 2, 3))
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


@pytest.mark.parametrize("count", range(17))
def test_bits_left_over_in_the_last_byte_must_be_zero(count: int) -> None:
    """Padding that is not zero was once read as if it were: two messages meant the same."""
    nbytes = (count + 7) // 8
    assert Reader(message(*[0] * nbytes)).bits(count).numel() == nbytes
    for spare in range(count, 8 * nbytes):
        packed = message(*[0] * nbytes)
        packed[-1] = 1 << spare % 8
        with pytest.raises(WireError, match="beyond the last number"):
            Reader(packed).bits(count)

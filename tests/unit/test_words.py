"""VGC's words of 28 + 4 bits."""

from __future__ import annotations

import struct

import pytest
import torch
from torch import Tensor

from thinwire import VGC, Key, Layout, TopK
from thinwire.errors import AttachError, ConfigError, WireError
from thinwire.payload import Reader, Sparse, SparseWords, pack_payload, unpack_payload
from thinwire.payload.values import EXPONENT4

NIBBLES = [sign * 2.0**-d for d in range(8) for sign in (1.0, -1.0)]


def travelled(words: SparseWords) -> tuple[SparseWords, list[int]]:
    """What arrives, and the words themselves."""
    message = pack_payload(words)
    reader = Reader(message)
    arrived = unpack_payload(reader, words.layout, Key(), words.values.dtype)
    reader.finish()
    assert isinstance(arrived, SparseWords)
    start = 8 + -(-2 * len(words.layout.pieces) // 4) * 4
    return arrived, list(struct.unpack(f"<{len(words.positions)}I", bytes(message[start:].tolist())))


@pytest.mark.parametrize("first", [0, (1 << 28) - len(NIBBLES)])
def test_every_nibble_at_either_end(first: int) -> None:
    """word = position << 4 | sign << 3 | d, up to position 2^28 - 1."""
    layout = Layout.of([("x", 0, (1 << 28,))])
    positions, values = torch.arange(first, first + len(NIBBLES)), torch.tensor(NIBBLES)
    arrived, words = travelled(SparseWords(positions, values, layout))
    assert torch.equal(arrived.positions, positions)
    assert torch.equal(arrived.values, values)
    assert sorted(word & 15 for word in words) == list(range(16))
    assert words[3] == (first + 3) << 4 | 1 << 3 | 1
    assert words[-1] >> 4 == first + len(NIBBLES) - 1


def test_pieces_have_exponents_of_their_own() -> None:
    layout = Layout.of([("a", 0, (2,)), ("empty", 1, (0,)), ("b", 2, (3,)), ("unsent", 3, (2,))])
    positions, values = torch.tensor([1, 2, 4]), torch.tensor([2.0**40, -(2.0**-60), 2.0**-63], dtype=torch.float64)
    arrived, words = travelled(SparseWords(positions, values, layout))
    assert torch.equal(arrived.decode(layout, torch.float64)[positions], values)
    assert words == [1 << 4, 2 << 4 | 8, 4 << 4 | 3]


def test_nothing_is_a_message_too() -> None:
    layout = Layout.of([("a", 0, (2,))])
    arrived, words = travelled(SparseWords(torch.empty(0, dtype=torch.int64), torch.empty(0), layout))
    assert arrived.elements == 0
    assert words == []


def sparse(numel: int) -> Sparse:
    layout = Layout.of([("x", 0, (numel,))])
    return Sparse(torch.tensor([0]), torch.tensor([1.0]), layout, EXPONENT4, counted=False)


def test_too_many_numbers_are_refused_when_attached_and_when_sent() -> None:
    assert SparseWords.of(sparse((1 << 28) - 1)).elements == 1
    with pytest.raises(ConfigError, match="reach 268435456 numbers, and a bucket has 268435456: use positions=entropy"):
        SparseWords.of(sparse(1 << 28))
    rule = VGC(positions="word")
    rule.admit("x", (1 << 28) - 1)
    with pytest.raises(AttachError, match="parameter 'x' has 268435456 numbers"):
        rule.admit("x", 1 << 28)
    VGC().admit("x", 1 << 28)


def message(layout: Layout, exponents: list[int], *words: int) -> Tensor:
    count = len(layout.pieces)
    head = struct.pack(f"<II{count}h", SparseWords.tag, len(words), *exponents)
    body = head + bytes(-len(head) % 4) + struct.pack(f"<{len(words)}I", *words)
    return torch.tensor(list(body), dtype=torch.uint8)


LAYOUT = Layout.of([("a", 0, (4,)), ("b", 1, (4,))])
EMPTY = -(1 << 15)


@pytest.mark.parametrize(
    ("exponents", "words", "problem"),
    [
        ([0, EMPTY], [8 << 4], "ascending below 8"),
        ([0, EMPTY], [0xFFFFFFF0], "ascending below 8"),
        ([0, EMPTY], [1 << 4, 1 << 4], "ascending below 8"),
        ([0, EMPTY], [2 << 4, 1 << 4], "ascending below 8"),
        ([0, EMPTY], [0] * 9, "9 words for a vector of 8"),
        ([0, EMPTY], [0, 4 << 4], "in a piece that it declares empty"),
        ([0, 0], [0], "exponents in a message are not those"),
        ([1, EMPTY], [1], "exponents in a message are not those"),
        ([300, EMPTY], [0], "exponents in a message are not those"),
        ([-300, EMPTY], [0], "exponents in a message are not those"),
    ],
)
def test_what_no_sender_writes_is_refused(exponents: list[int], words: list[int], problem: str) -> None:
    reader = Reader(message(LAYOUT, exponents, *words))
    with pytest.raises(WireError, match=problem):
        unpack_payload(reader, LAYOUT, Key(), torch.float32)


def test_the_near_entropy_code_is_shorter() -> None:
    """The same numbers, one in a hundred of 100,000: what words cost."""
    layout = Layout.of([("x", 0, (100_000,))])
    x = torch.randn(layout.numel, generator=torch.Generator().manual_seed(0))
    sent = TopK(0.01, values="exponent4")(x, layout, Key())
    assert pack_payload(SparseWords.of(sent)).numel() > 2 * pack_payload(sent).numel()

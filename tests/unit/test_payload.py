"""Every message format: packing and unpacking is the identity, and a damaged message is a typed error or a vector."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods import WIRE_COMPRESSORS as COMPRESSORS
from torch import Tensor

from thinwire import (
    QSGD,
    Compressor,
    Identity,
    Key,
    Layout,
    Natural,
    RandK,
    ScaledSign,
    Strom,
    TopK,
)
from thinwire.errors import ConfigError, WireError
from thinwire.ops import backend
from thinwire.payload import (
    FORMATS,
    Beside,
    Dense,
    Empty,
    Flagged,
    LateReader,
    Masked,
    Payload,
    Reader,
    Sparse,
    add_all_to,
    chunks_of,
    pack_payload,
    unpack_payload,
    unpack_payloads,
)
from thinwire.payload.nested import Sum
from thinwire.payload.values import value_format

LAYOUTS = [
    Layout(()),
    Layout.of([("a", 0, (0,))]),
    Layout.of([("a", 0, ())]),
    Layout.of([("a", 0, (1,))]),
    Layout.of([("a", 0, (17,))]),
    Layout.of([("a", 0, (3, 5)), ("b", 1, (0, 4)), ("c", 2, (1,)), ("d", 3, ()), ("e", 4, (0,)), ("f", 7, (33,))]),
]
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{len(layout.pieces)}p{layout.numel}")
each_compressor = pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
KEY = Key(seed=1, step=2, worker=3)


def gaussian(layout: Layout, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(layout.numel, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def read(message: Tensor, layout: Layout, dtype: torch.dtype, key: Key = KEY) -> Payload:
    reader = Reader(message)
    payload = unpack_payload(reader, layout, key, dtype)
    reader.finish()
    return payload


@each_layout
@each_compressor
@each_dtype
def test_what_is_unpacked_decodes_to_what_was_packed(
    compressor: Compressor, layout: Layout, dtype: torch.dtype
) -> None:
    payload = compressor(gaussian(layout, dtype), layout, KEY)
    message = pack_payload(payload)
    copy = read(message, layout, dtype, Key(seed=1, step=2, worker=9))  # another worker reads it
    assert message.dtype == torch.uint8
    assert type(copy) is type(payload)
    assert torch.equal(copy.decode(layout, dtype), payload.decode(layout, dtype))
    assert torch.equal(pack_payload(copy), message)


@each_layout
@each_compressor
def test_a_fixed_size_is_the_same_for_every_worker_and_input(compressor: Compressor, layout: Layout) -> None:
    made = [compressor(gaussian(layout, torch.float32, w), layout, Key(step=3, worker=w)) for w in range(4)]
    if all(payload.fixed for payload in made):
        assert len({pack_payload(payload).numel() for payload in made}) == 1
    assert len({payload.fixed for payload in made}) == 1


@each_compressor
def test_add_to_adds_alpha_times_the_decoded_vector(compressor: Compressor) -> None:
    layout = LAYOUTS[-1]
    x = gaussian(layout, torch.float64)
    payload = compressor(x, layout, KEY)
    out = gaussian(layout, torch.float64, 1)
    expected = out - 0.5 * payload.decode(layout, torch.float64)
    assert payload.add_to(out, alpha=-0.5) is out
    assert torch.equal(out, expected)  # a power of two: no rounding of the product


@each_compressor
def test_compressing_leaves_the_input_and_the_message_alone(compressor: Compressor) -> None:
    layout = LAYOUTS[-1]
    x = gaussian(layout, torch.float32)
    before = x.clone()
    payload = compressor(x, layout, KEY)
    message = pack_payload(payload)
    assert torch.equal(x, before)
    x.zero_()
    assert torch.equal(pack_payload(payload), message)


@each_layout
@pytest.mark.parametrize("inner", [Empty(), "dense", "sparse"])
def test_flags_travel_with_the_payload_they_belong_to(layout: Layout, inner: Payload | str) -> None:
    x = gaussian(layout, torch.float32)
    replaces = torch.arange(len(layout.pieces)) % 2 == 0
    made = {"dense": Dense(x), "sparse": TopK(0.5)(x, layout, KEY)}
    payload = Flagged(replaces, made[inner] if isinstance(inner, str) else inner)
    copy = read(pack_payload(payload), layout, torch.float32)
    assert isinstance(copy, Flagged)
    assert torch.equal(copy.replaces, replaces)
    assert torch.equal(copy.decode(layout, torch.float32), payload.decode(layout, torch.float32))


def test_sizes_are_what_the_formats_say() -> None:
    """1,000 numbers of one piece, in chunks of bytes behind the tag, each filled up to whole words of four."""
    layout = Layout.of([("x", 0, (1000,))])
    x = gaussian(layout, torch.float32)
    sizes: dict[Compressor, list[float]] = {
        Identity(): [4000],
        ScaledSign(): [4, 4, 125],
        ScaledSign(100): [4, 40, 125],
        QSGD(15, 100): [8, 40, 1000 * 5 / 8],
        Natural(): [1000, 125],
        RandK(count=50, shared=True): [1 + 4, 200],
        RandK(count=50, shared=True, values="bfloat16"): [1 + 4, 100],
        TopK(count=50): [1 + 4, 50 * 4 / 8, (50 + 63) / 8, 200],
        Strom(1e9): [1 + 4, 4],
    }
    for compressor, chunks in sizes.items():
        size = sum(4 * math.ceil(chunk / 4) for chunk in chunks)
        assert pack_payload(compressor(x, layout, KEY)).numel() == 4 + size, str(compressor)
    assert pack_payload(Empty()).numel() == 4


def test_a_small_piece_between_others_gets_its_own_share() -> None:
    layout = LAYOUTS[-1]
    x = gaussian(layout, torch.float32)
    payload = TopK(0.01)(x, layout, KEY)
    owners = {
        next(p.name for p in layout.pieces if p.part.start <= i < p.part.stop) for i in payload.positions.tolist()
    }
    assert owners == {"a", "c", "d", "f"}


def test_shared_masks_are_drawn_from_the_step_not_from_the_worker() -> None:
    layout = LAYOUTS[-1]
    masks = {
        tuple(Masked.draw(layout, [3, 0, 1, 1, 0, 5], Key(0, 4, worker), torch.device("cpu")).tolist())
        for worker in range(5)
    }
    steps = {
        tuple(Masked.draw(layout, [3, 0, 1, 1, 0, 5], Key(0, step), torch.device("cpu")).tolist()) for step in range(5)
    }
    assert len(masks) == 1
    assert len(steps) == 5


def test_tags_are_unique_and_an_unknown_one_is_an_error() -> None:
    assert len({kind.tag for kind in FORMATS.values()}) == len(FORMATS)
    with pytest.raises(WireError, match=r"unknown payload format 99 in a message; known: \[0, 1"):
        read(torch.tensor([99, 0, 0, 0], dtype=torch.uint8), LAYOUTS[-1], torch.float32)


@each_compressor
def test_a_message_cut_anywhere_is_an_error(compressor: Compressor) -> None:
    layout = LAYOUTS[-1]
    message = pack_payload(compressor(gaussian(layout, torch.float32), layout, KEY))
    for length in range(message.numel()):
        with pytest.raises(WireError):
            read(message[:length], layout, torch.float32)


@each_compressor
def test_a_message_with_bytes_after_its_end_is_an_error(compressor: Compressor) -> None:
    layout = LAYOUTS[-1]
    message = pack_payload(compressor(gaussian(layout, torch.float32), layout, KEY))
    for more in (1, 4, 8):
        with pytest.raises(WireError):
            read(torch.cat([message, message.new_zeros(more)]), layout, torch.float32)


def assert_decodes_or_refuses(message: Tensor, layout: Layout) -> None:
    try:
        payload = read(message, layout, torch.float32)
    except WireError:
        return
    assert payload.decode(layout, torch.float32).shape == (layout.numel,)


@settings(max_examples=300)
@given(st.sampled_from([*FORMATS, 8, 255]), st.binary(max_size=120), st.sampled_from(LAYOUTS))
def test_random_bytes_decode_or_are_refused(tag: int, body: bytes, layout: Layout) -> None:
    assert_decodes_or_refuses(torch.tensor([tag, 0, 0, 0, *body], dtype=torch.uint8), layout)


@settings(max_examples=300)
@given(
    st.sampled_from(COMPRESSORS),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_a_message_with_changed_bytes_decodes_or_is_refused(
    compressor: Compressor, changes: list[tuple[int, int]]
) -> None:
    layout = LAYOUTS[-1]
    message = pack_payload(compressor(gaussian(layout, torch.float32), layout, KEY)).clone()
    for place, byte in changes:
        message[place % message.numel()] = byte
    assert_decodes_or_refuses(message, layout)


def test_flags_nested_in_flags_are_refused() -> None:
    """No sender nests them; a forged message must not exhaust the stack."""
    with pytest.raises(WireError, match="holds format 7 within another"):
        read(torch.tensor([Flagged.tag, *[0] * 7] * 5000, dtype=torch.uint8), LAYOUTS[-1], torch.float32)


@pytest.mark.parametrize("wrong", [-1.0, math.inf, math.nan])
def test_second_moments_that_are_none_are_refused(wrong: float) -> None:
    layout = Layout.of([("x", 0, (3,))])
    beside = torch.full((sum(piece.factors for piece in layout.pieces),), wrong, dtype=torch.bfloat16)
    with pytest.raises(WireError, match="second moments that are none"):
        read(pack_payload(Beside(beside, Dense(torch.ones(3)))), layout, torch.float32)


def test_second_moments_within_another_payload_are_refused() -> None:
    layout = Layout.of([("x", 0, (3,))])
    beside = torch.ones(sum(piece.factors for piece in layout.pieces), dtype=torch.bfloat16)
    payload = Flagged(torch.tensor([True]), Beside(beside, Dense(torch.ones(3))))
    with pytest.raises(WireError, match="holds format 11 within another"):
        read(pack_payload(payload), layout, torch.float32)


def test_a_sum_has_a_fixed_size_where_both_parts_have() -> None:
    layout, positions = Layout.of([("x", 0, (3,))]), torch.tensor([0, 1])
    varies = Sparse.rounded(positions, torch.tensor([1.0, 2.0**-20]), layout, value_format("exponent4"))
    dense = Dense(torch.ones(3))
    parts = [(dense, dense), (dense, varies), (varies, dense)]
    assert [Sum(one, two).fixed for one, two in parts] == [True, False, False]


def test_counts_beyond_a_piece_are_refused() -> None:
    """A shared mask's message says how many numbers of each piece follow; more than there are is damage."""
    layout = Layout.of([("x", 0, (3,)), ("y", 1, (5,))])
    payload = Masked(torch.arange(4), torch.ones(4), layout, (4, 0), value_format("full"))
    with pytest.raises(WireError, match="claims 4 numbers of 'x', which has 3"):
        read(pack_payload(payload), layout, torch.float32)


def test_rounding_loss_stays_with_the_sender() -> None:
    """`values` of a sparse payload are what the receiver sees, not what went in."""
    layout = Layout.of([("x", 0, (2,))])
    payload = Sparse.rounded(torch.tensor([0, 1]), torch.tensor([1.0 + 2**-12, 3.0]), layout, value_format("bfloat16"))
    assert payload.values.tolist() == [1.0, 3.0]


def test_a_message_whose_numbers_may_be_dropped_has_no_fixed_size() -> None:
    """Two ranks that both choose two numbers may write two and one: the shorter message must travel behind its size."""
    layout, positions = Layout.of([("x", 0, (3,))]), torch.tensor([0, 1])
    values = (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0**-20]))
    made = [Sparse.rounded(positions, own, layout, value_format("exponent4")) for own in values]
    assert Sparse.rounded(positions, values[1], layout, value_format("full")).fixed
    assert [payload.positions.tolist() for payload in made] == [[0, 1], [0]]
    assert not any(payload.fixed for payload in made)


def test_a_message_that_writes_zeros_has_a_fixed_size() -> None:
    """What `power4` cannot tell from zero takes as many bits as any other number, and stays in the memory."""
    layout, positions = Layout.of([("x", 0, (3,))]), torch.tensor([0, 1])
    values = (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0**-20]))
    made = [Sparse.rounded(positions, own, layout, value_format("power4")) for own in values]
    assert [payload.values.tolist() for payload in made] == [[1.0, 2.0], [1.0, 0.0]]
    assert all(payload.fixed for payload in made)
    assert len({pack_payload(payload).numel() for payload in made}) == 1
    memory = torch.zeros(3)
    made[1].put_back_(memory, positions, values[1])
    assert memory.tolist() == [0.0, 2.0**-20, 0.0]


def test_a_level_beyond_those_announced_is_refused() -> None:
    """Levels up to 5 travel in three bits, in which 6 and 7 could be written."""
    layout = Layout.of([("x", 0, (8,))])
    message = pack_payload(QSGD(5)(gaussian(layout, torch.float32), layout, KEY))
    message[-1] = 0x77
    with pytest.raises(WireError, match="a level in the message exceeds the 5 levels"):
        read(message, layout, torch.float32)


def test_an_exponent_that_no_sender_writes_is_refused() -> None:
    """Code 255 was once read as 254, the number 2^127."""
    layout = Layout.of([("x", 0, (9,))])
    message = pack_payload(Natural()(gaussian(layout, torch.float32), layout, KEY))
    message[4] = 255
    with pytest.raises(WireError, match="exponent beyond 127"):
        read(message, layout, torch.float32)


@pytest.mark.parametrize("compressor", [ScaledSign(), QSGD(1), Natural()], ids=str)
def test_padding_behind_signs_and_levels_must_be_zero(compressor: Compressor) -> None:
    layout = Layout.of([("x", 0, (9,))])
    original = pack_payload(compressor(gaussian(layout, torch.float32), layout, KEY))
    last = (
        math.ceil(9 * (2 if isinstance(compressor, QSGD) else 1) / 8) - 1
    )  # of the last word, the last byte with bits
    for byte in range(last, 4):
        message = original.clone()
        message[byte - 4] |= 128
        with pytest.raises(WireError, match="beyond the last number" if byte == last else "fill up a word"):
            read(message, layout, torch.float32)


@pytest.mark.parametrize("bit", range(1, 32))
def test_padding_behind_flags_must_be_zero(bit: int) -> None:
    message = pack_payload(Flagged(torch.tensor([True]), Empty()))
    message[4 + bit // 8] |= 1 << bit % 8
    with pytest.raises(WireError, match="beyond the last number" if bit < 8 else "fill up a word"):
        read(message, Layout.of([("x", 0, (9,))]), torch.float32)


def test_a_forged_block_length_costs_nothing() -> None:
    """Blocks of one number in a vector of 10^11: the message is refused before anything of that size is made."""
    message = torch.tensor([4, 0, 0, 0, 1, 0, 0, 0, 9, 9, 9, 9], dtype=torch.uint8)
    with pytest.raises(WireError, match="ends too early"):
        read(message, Layout.of([("x", 0, (10**11,))]), torch.float32)


# ------------------------------------------------------------------------------------------------- of all ranks at once


def of_ranks(
    compressor: Compressor, layout: Layout, dtype: torch.dtype, *, flagged: bool = False, ranks: int = 3
) -> list[Payload]:
    """What every rank of a step makes of its own vector."""
    made = [compressor(gaussian(layout, dtype, rank), layout, Key(1, 2, rank)) for rank in range(ranks)]
    flags = torch.arange(len(layout.pieces))
    return [Flagged((flags + rank) % 2 == 0, p) for rank, p in enumerate(made)] if flagged else made


def read_all(rows: Tensor, own: Payload, layout: Layout, dtype: torch.dtype) -> tuple[list[Payload], list[bool]]:
    """The payloads of all ranks, and for each whether it was sound."""
    fixed = [chunk for chunk in chunks_of(own) if isinstance(chunk, bytes)]
    reader = LateReader(rows, pack_payload(own), fixed)
    payloads = unpack_payloads(reader, layout, KEY, dtype)
    reader.finish()
    return [*payloads], reader.sound().tolist()


each_backend = pytest.mark.parametrize("name", ["reference", "numba"])
plain_or_flagged = pytest.mark.parametrize("flagged", [False, True], ids=["plain", "flagged"])


with backend("reference"):  # while tests are collected, nothing is compiled
    FIXED = [
        pytest.param(compressor, layout, id=f"{compressor}-{len(layout.pieces)}p{layout.numel}")
        for compressor in COMPRESSORS
        for layout in LAYOUTS
        if compressor(gaussian(layout, torch.float32), layout, KEY).fixed
    ]
    """Messages of varying size are never read at once."""


@pytest.mark.parametrize(("compressor", "layout"), FIXED)
@each_dtype
@plain_or_flagged
@pytest.mark.parametrize("ranks", [1, 3])
def test_payloads_of_all_ranks_read_at_once_are_those_read_one_by_one(
    compressor: Compressor, layout: Layout, dtype: torch.dtype, flagged: bool, ranks: int
) -> None:
    made = of_ranks(compressor, layout, dtype, flagged=flagged, ranks=ranks)
    payloads, sound = read_all(torch.stack([pack_payload(p) for p in made]), made[-1], layout, dtype)
    assert sound == [True] * ranks
    assert all(type(copy) is type(payload) for copy, payload in zip(payloads, made, strict=True))
    assert all(torch.equal(pack_payload(c), pack_payload(p)) for c, p in zip(payloads, made, strict=True))
    assert all(
        torch.equal(c.decode(layout, dtype), p.decode(layout, dtype)) for c, p in zip(payloads, made, strict=True)
    )


@pytest.mark.parametrize(("compressor", "layout"), [case for case in FIXED if case.values[1] is LAYOUTS[-1]])
@plain_or_flagged
@each_backend
def test_of_payloads_read_at_once_only_the_damaged_one_is_unsound(
    compressor: Compressor, layout: Layout, flagged: bool, name: str
) -> None:
    """A bit of each byte flipped in one rank's message: unsound where reading it alone refuses it or its fields differ.

    Nothing is raised, and what was read can be decoded: nobody knows better before the end of the step.
    """
    made = of_ranks(compressor, layout, torch.float32, flagged=flagged)
    rows = torch.stack([pack_payload(p) for p in made])
    for place in range(rows.shape[1]):
        damaged, rank = rows.clone(), place % 3
        damaged[rank, place] ^= 1 << place * 5 % 8
        with backend(name):
            payloads, sound = read_all(damaged, made[(rank + place // 3) % 3], layout, torch.float32)
            vectors = [payload.decode(layout, torch.float32) for payload in payloads]
        assert sound == [r != rank or (place not in fields_at(made[0]) and readable(damaged[rank])) for r in range(3)]
        for r in {0, 1, 2} - {rank}:
            assert torch.equal(vectors[r], made[r].decode(layout, torch.float32))
        if sound[rank]:
            expected = read(damaged[rank], layout, torch.float32).decode(layout, torch.float32)
            assert torch.equal(vectors[rank].view(torch.int32), expected.view(torch.int32))


def fields_at(payload: Payload) -> set[int]:
    """The places of fixed fields in a message."""
    found, start = set(), 0
    for chunk in chunks_of(payload):
        length = len(chunk) if isinstance(chunk, bytes) else chunk.numel()
        stop = start + length + -length % 4
        found |= set(range(start, stop)) if isinstance(chunk, bytes) else set()
        start = stop
    return found


def readable(message: Tensor) -> bool:
    try:
        read(message, LAYOUTS[-1], torch.float32)
    except WireError:
        return False
    return True


@each_layout
@each_compressor
@each_dtype
@plain_or_flagged
@each_backend
def test_adding_all_at_once_is_adding_one_by_one_bit_for_bit(
    compressor: Compressor, layout: Layout, dtype: torch.dtype, flagged: bool, name: str
) -> None:
    made = of_ranks(compressor, layout, dtype, flagged=flagged)
    with backend(name):
        for alpha in (1.0, 1 / 3, -0.7):
            start = gaussian(layout, dtype, 9)
            together, apart = start.clone(), start.clone()
            assert add_all_to(together, made, alpha) is together
            for payload in made:
                payload.add_to(apart, alpha)
            assert torch.equal(together.view(torch.uint8), apart.view(torch.uint8))


@each_backend
def test_payloads_of_several_formats_are_added_in_their_order(name: str) -> None:
    """Numbers so far apart that any other order would give another sum."""
    layout = LAYOUTS[-1]
    x = gaussian(layout, torch.float32)
    made: list[Payload] = [
        TopK(0.4)(x, layout, KEY),
        Dense(1e8 * x),
        Empty(),
        RandK(0.3, shared=True)(-1e8 * x, layout, KEY),
        Flagged(torch.ones(len(layout.pieces), dtype=torch.bool), TopK(0.9)(-1e7 * x, layout, KEY)),
        Natural()(x, layout, KEY),
    ]
    sums = []
    with backend(name):
        for order in (made, made[::-1]):
            expected = torch.zeros(layout.numel)
            for payload in order:
                payload.add_to(expected, 1 / 3)
            sums.append(add_all_to(torch.zeros(layout.numel), order, 1 / 3))
            assert torch.equal(sums[-1], expected)
    assert not torch.equal(*sums)


def test_adding_no_payloads_changes_nothing() -> None:
    out = torch.ones(3)
    assert add_all_to(out, []) is out
    assert out.tolist() == [1, 1, 1]


def test_a_format_is_known_by_its_class_alone() -> None:
    """A class with a tag enters the table; its own tag, a byte that no other format has."""
    kept = dict(FORMATS)
    try:
        mine = type("Mine", (Empty,), {"tag": 250})
        assert unpack_payload(Reader(pack_payload(mine())), LAYOUTS[0], Key(), torch.float32).tag == 250
        with pytest.raises(ConfigError, match="Yours has the tag 250, which is Mine's"):
            type("Yours", (Empty,), {"tag": 250})
        with pytest.raises(ConfigError, match="one byte, Wide has 256"):
            type("Wide", (Empty,), {"tag": 256})
    finally:
        FORMATS.clear()
        FORMATS.update(kept)

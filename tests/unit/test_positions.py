"""Ascending positions: Elias-Fano, gaps and bitmap."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.errors import WireError
from thinwire.ops import backend
from thinwire.payload.message import LateReader, Reader, join
from thinwire.payload.positions import (
    bitmap_length,
    is_bitmap,
    low_width,
    size_varies,
    unpack_all_positions,
    unpack_positions,
)
from thinwire.payload.positions import pack_positions as chunks_of_positions


def pack_positions(positions: torch.Tensor, numel: int) -> torch.Tensor:
    return join(chunks_of_positions(positions, numel), torch.device("cpu"))


def size(numel: int, count: int) -> int:
    """The bytes that (n, k) alone decide: whole words of four."""
    if is_bitmap(numel, count):
        return 4 * math.ceil(numel / 32)
    return 4 * (math.ceil(low_width(numel, count) * count / 32) + math.ceil(bitmap_length(numel, count) / 32))


@given(st.integers(0, 200).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, max(0, n - 1)), max_size=n))))
def test_positions_come_back_and_their_size_is_known_beforehand(case: tuple[int, set[int]]) -> None:
    numel, chosen = case
    positions = torch.tensor(sorted(chosen), dtype=torch.int64) if numel else torch.empty(0, dtype=torch.int64)
    packed = pack_positions(positions, numel)
    if not size_varies(numel, positions.numel()):
        assert packed.numel() == size(numel, positions.numel())
    reader = Reader(packed)
    assert torch.equal(unpack_positions(reader, numel, positions.numel()), positions)
    reader.finish()


@pytest.mark.parametrize(
    "positions",
    [[0], [2**31], [2**33 - 1], [0, 1, 2**33 - 1], [2**33 - 3, 2**33 - 2, 2**33 - 1]],
    ids=str,
)
def test_positions_beyond_32_bits(positions: list[int]) -> None:
    numel = 2**33
    if size(numel, len(positions)) > 10**6:
        pytest.fail("a few positions must not need a map of the whole vector")
    packed = pack_positions(torch.tensor(positions), numel)
    assert unpack_positions(Reader(packed), numel, len(positions)).tolist() == positions


@pytest.mark.parametrize("share", [0.5, 0.41, 0.39, 0.2, 0.1, 0.056, 0.055, 0.02, 0.01, 0.001, 0.0001])
def test_size_is_within_ten_percent_of_the_entropy(share: float) -> None:
    """log2 C(n, k) bits are the least that any code can take for the average set of k of n positions."""
    numel = 1_000_000
    count = int(numel * share)
    entropy = (math.lgamma(numel + 1) - math.lgamma(count + 1) - math.lgamma(numel - count + 1)) / math.log(2)
    rng = np.random.default_rng(0)
    positions = torch.from_numpy(np.sort(rng.choice(numel, count, replace=False)))
    packed = pack_positions(positions, numel)
    assert 8 * packed.numel() <= 1.10 * entropy
    assert torch.equal(unpack_positions(Reader(packed), numel, count), positions)


@given(st.integers(1, 10**9), st.integers(1, 10**6))
def test_size_is_within_the_stated_margin_of_the_entropy(numel: int, count: int) -> None:
    """At most k (2 + log2(n / k)) bits, and less than a word of padding for each of the two parts."""
    count = min(count, numel)
    bits = low_width(numel, count) * count + bitmap_length(numel, count)
    assert bits <= count * (2 + math.log2(numel / count)) + 2
    if not is_bitmap(numel, count):
        assert 8 * size(numel, count) < bits + 64


def test_more_positions_than_places_are_refused() -> None:
    with pytest.raises(WireError, match="claims 4 positions in a vector of 3"):
        unpack_positions(Reader(torch.zeros(9, dtype=torch.uint8)), 3, 4)


def test_a_map_with_too_few_marks_is_refused() -> None:
    packed = pack_positions(torch.tensor([1, 5, 9]), 40)
    packed[-4:] = 0
    with pytest.raises(WireError, match="marks where 3 were announced"):
        unpack_positions(Reader(packed), 40, 3)


def test_equal_positions_are_refused() -> None:
    packed = pack_positions(torch.tensor([4, 5]), 64)  # low parts of 5 bits: 4 and 5, from the first byte on
    packed[:2] = torch.tensor([4 | (4 << 5) & 255, 4 >> 3])
    with pytest.raises(WireError, match="not strictly ascending below 64"):
        unpack_positions(Reader(packed), 64, 2)


def test_a_position_beyond_the_vector_is_refused() -> None:
    packed = pack_positions(torch.tensor([32]), 33)
    packed[0] |= 7
    with pytest.raises(WireError, match="below 33"):
        unpack_positions(Reader(packed), 33, 1)


def test_gaps_that_lead_beyond_the_vector_are_refused() -> None:
    positions = torch.arange(0, 100, 10)
    packed = pack_positions(positions, 100)
    assert packed.numel() == 4 + 4 + 4  # length, low parts of three bits, map
    packed[0] += 2
    code = packed[8:].view(torch.int32)
    code += 3 << int(code).bit_length() - 1  # the last mark moves two places: 90 + 2 * 8
    with pytest.raises(WireError, match="below 100"):
        unpack_positions(Reader(packed), 100, 10)


def test_a_map_longer_than_any_gaps_need_is_refused() -> None:
    packed = pack_positions(torch.arange(0, 100, 10), 100)
    packed[:4] = 255
    with pytest.raises(WireError, match="announces a map of"):
        unpack_positions(Reader(packed), 100, 10)


@pytest.mark.parametrize(
    ("numel", "positions", "spare"),
    [
        (61, list(range(0, 61, 2)), [*range(61, 64)]),
        (61, [3, 40], [*range(8, 32)]),
        (61, [3, 40], [*range(32 + 6, 64)]),
        (61, list(range(0, 60, 7)), [*range(32 + 18, 64)]),
        (61, list(range(0, 60, 7)), [*range(64 + 17, 96)]),
    ],
    ids=["bitmap", "low parts", "map", "low parts of gaps", "map of gaps"],
)
def test_padding_that_is_not_zero_is_refused(numel: int, positions: list[int], spare: list[int]) -> None:
    """Whichever bit it is: in the last byte that holds something, or in those that fill up its word."""
    original = pack_positions(torch.tensor(positions), numel)
    for bit in spare:
        packed = original.clone()
        packed[bit // 8] |= 1 << bit % 8
        with pytest.raises(WireError, match=r"beyond the last number|fill up a word"):
            unpack_positions(Reader(packed), numel, len(positions))
    used = original.clone()
    used[(spare[0] - 1) // 8] ^= 1 << (spare[0] - 1) % 8  # the last bit before is none of the padding
    assert "last number" not in problem_with(used, numel, len(positions))


def problem_with(packed: torch.Tensor, numel: int, count: int) -> str:
    try:
        unpack_positions(Reader(packed), numel, count)
    except WireError as error:
        return str(error)
    return ""


def test_a_map_of_gaps_that_goes_on_after_its_last_mark_is_refused() -> None:
    """The same positions with a longer map: once accepted, so that two messages meant the same."""
    packed = pack_positions(torch.arange(0, 96, 12), 100)
    packed[0] += 1
    longer = torch.cat([packed, packed.new_zeros(4)]) if int(packed[0]) % 32 == 1 else packed
    with pytest.raises(WireError, match="goes on after its last mark"):
        unpack_positions(Reader(longer), 100, 8)


# ------------------------------------------------------------------------------------------------- of all ranks at once

CODES = {"bitmap": (61, [[0, 3], [1, 2], [58, 60]], 25), "map": (500, [[0, 499], [7, 8], [250, 251]], 6)}
each_code = pytest.mark.parametrize("code", CODES)
each_backend = pytest.mark.parametrize("name", ["reference", "numba"])


def all_ranks(code: str) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Every rank's positions, and their messages: a few of their own, and others that all have."""
    numel, few, count = CODES[code]
    common = [i for i in range(10, 200 if numel > 200 else 50) if numel < 100 or i % 37 == 0][: count - 2]
    positions = torch.tensor([sorted({*own, *common}) for own in few])
    assert positions.shape == (3, count)
    assert is_bitmap(numel, count) == (code == "bitmap")
    assert not size_varies(numel, count)
    return numel, positions, torch.stack([pack_positions(row, numel) for row in positions])


@each_code
@each_backend
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_positions_of_all_ranks_come_back(code: str, name: str, rows: int) -> None:
    numel, positions, messages = all_ranks(code)
    with backend(name):
        reader = LateReader(messages[:rows], messages[0], [])
        found = unpack_all_positions(reader, numel, positions.shape[1])
    reader.finish()
    assert torch.equal(torch.stack([*found]), positions[:rows])
    assert reader.sound().tolist() == [True] * rows


@each_code
@each_backend
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_one_rank_with_damaged_positions_is_the_unsound_one_and_stays_within_bounds(
    code: str, name: str, rank: int
) -> None:
    """Every bit of its message flipped: refused where it is refused when read alone, and what it gives is in range."""
    numel, positions, messages = all_ranks(code)
    count = positions.shape[1]
    refused = 0
    for bit in range(8 * messages.shape[1]):
        damaged = messages.clone()
        damaged[rank, bit // 8] ^= 1 << bit % 8
        try:
            unpack_positions(Reader(damaged[rank]), numel, count)
            sound = True
        except WireError:
            sound, refused = False, refused + 1
        with backend(name):
            reader = LateReader(damaged, messages[0], [])
            found = torch.stack([*unpack_all_positions(reader, numel, count)])
        assert reader.sound().tolist() == [sound or r != rank for r in range(3)]
        assert 0 <= int(found.min()) <= int(found.max()) < numel
        others = [r for r in range(3) if r != rank]
        assert torch.equal(found[others], positions[others])
    assert refused > 0

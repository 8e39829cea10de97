"""Positions decoded on several threads: every back-end gives the reference's positions, marks and verdict."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.kernels.backends import BACKENDS

from thinwire import ops
from thinwire.ops import reference

COUNT, WIDTH = 100_000, 4
NUMEL = (COUNT + 4) << WIDTH
LENGTH = 2 * COUNT + 4
"""Bits of the map: enough for three threads."""


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def _code() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    positions = torch.randperm(NUMEL, generator=generator)[:COUNT].sort().values
    return reference.pack_positions(positions, WIDTH, LENGTH)


def _agree(name: str, device: str, low: torch.Tensor, bitmap: torch.Tensor, bound: int) -> bool:
    """Whether the code is sound, once the back-end agrees with the reference."""
    expected, marks, sound = reference.unpack_positions(low, bitmap, WIDTH, LENGTH, COUNT, bound)
    given = (low.to(device), bitmap.to(device), WIDTH, LENGTH, COUNT, bound)
    with ops.backend(name):
        positions, found, verdict = ops.unpack_positions(*given)
    assert int(found) == marks
    good = bool(sound) and marks == COUNT
    assert (bool(verdict) and int(found) == COUNT) == good
    assert bool(((positions >= 0) & (positions < bound)).all())
    assert not good or torch.equal(positions.cpu(), expected)
    return good


@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_every_back_end_decodes_what_the_reference_does(name: str, device: str, threads: int) -> None:
    low, bitmap = _code()
    assert _agree(name, device, low, bitmap, NUMEL)
    assert not _agree(name, device, low, bitmap, NUMEL // 2)
    bitmap[bitmap.numel() // 2] ^= 1
    assert not _agree(name, device, low, bitmap, NUMEL)


@pytest.mark.parametrize(("name", "device"), BACKENDS)
@pytest.mark.parametrize("cut", [1, 2])
def test_codes_in_rows_are_decoded_as_each_by_itself(name: str, device: str, threads: int, cut: int) -> None:
    """A sound one among one with a mark too few and one whose positions do not ascend; then all reach too far. The
    whole code, which threads share, and the half of it: parts of longer rows, as messages are."""
    low, bitmap = _code()
    one_mark_less, shuffled = bitmap.clone(), low.flip(0)
    one_mark_less[int(bitmap.nonzero()[0])] &= one_mark_less[int(bitmap.nonzero()[0])] - 1
    length, count = (
        LENGTH // cut // 64 * 64,
        int(reference.unpack_bits(bitmap, LENGTH)[: LENGTH // cut // 64 * 64].sum()),
    )
    lows = torch.stack([low, low, shuffled])[:, : (WIDTH * count + 7) // 8].to(device)
    maps = torch.stack([bitmap, one_mark_less, bitmap])[:, : length // 8].to(device)
    for bound in (NUMEL, NUMEL // 4):
        with ops.backend(name):
            rows, marks, sound = ops.unpack_positions(lows, maps, WIDTH, length, count, bound)
        assert [bool(each) for each in sound & (marks == count)] == [bound == NUMEL, False, False]
        assert bool(((rows >= 0) & (rows < bound)).all())
        expected = reference.unpack_positions(lows[0].cpu(), maps[0].cpu(), WIDTH, length, count, bound)[0]
        assert bound < NUMEL or torch.equal(rows[0].cpu(), expected)


@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_positions_that_do_not_ascend_from_one_thread_to_the_next_are_found(
    name: str, device: str, threads: int
) -> None:
    """Pairs of one high part, marked at bits 4 j + 3 and 4 j + 4: wherever a thread begins, it parts a pair."""
    numbers = torch.arange(COUNT)
    low, bitmap = reference.pack_positions((numbers // 2 * 2 + 3 << WIDTH) | numbers % 2, WIDTH, LENGTH)
    assert _agree(name, device, low, bitmap, NUMEL)
    cuts = [LENGTH * i // threads // 64 * 64 for i in range(1, threads)]
    for pair in [0, *(cut // 4 - 1 for cut in cuts), COUNT // 2 - 1]:
        codes = reference.unpack_codes(low, WIDTH, COUNT)
        codes[2 * pair : 2 * pair + 2] = torch.tensor([1, 0])
        assert not _agree(name, device, reference.pack_codes(codes, WIDTH), bitmap, NUMEL)


@pytest.mark.parametrize(("name", "device"), BACKENDS)
@pytest.mark.parametrize(("numel", "count", "width"), [(1, 1, 0), (40, 40, 0), (1000, 100, 3), (100_000, 30_000, 1)])
def test_every_back_end_sums_gaps_and_undoes_it(name: str, device: str, numel: int, count: int, width: int) -> None:
    positions = torch.randperm(numel, generator=torch.Generator().manual_seed(numel))[:count].sort().values
    expected = reference.sums_of_gaps(positions, width)
    with ops.backend(name):
        sums = ops.sums_of_gaps(positions.to(device), width)
        assert torch.equal(sums.cpu(), expected)
        back = ops.positions_of_sums_(sums, width)
    assert back is sums
    assert torch.equal(back.cpu(), positions)
    assert torch.equal(reference.positions_of_sums_(expected, width), positions)

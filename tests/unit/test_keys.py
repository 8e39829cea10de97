"""Counter-based random numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire import Key
from thinwire.engines.crowd import JointKey, joint_index
from thinwire.ops import random_bits, uniform
from thinwire.ops.keys import mix, signed

DTYPES = [torch.float32, torch.float64]


def test_draws_are_splitmix64() -> None:
    """The first outputs of the reference generator (Vigna's splitmix64.c) for the seed 1234567."""
    words = [w & (2**64 - 1) for w in random_bits(1234567, 5).tolist()]
    assert words == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert mix(1234567) == words[0]


def test_workers_steps_pieces_and_seeds_never_share_a_key() -> None:
    keys = [Key(*parts) for parts in itertools.product(range(4), range(6), range(-1, 4), range(-3, 4))]
    assert len({key.number for key in keys}) == len(keys)


def test_places_are_not_interchangeable() -> None:
    assert len({Key(*order).number for order in itertools.permutations([0, 1, 2, 3])}) == 24


@given(st.integers(), st.integers(0, 2**40), st.integers(-1, 10**6), st.integers(-(10**6), 10**6))
def test_any_whole_numbers_make_a_64_bit_key(seed: int, step: int, worker: int, piece: int) -> None:
    assert 0 <= Key(seed, step, worker, piece).number < 1 << 64


def test_the_shared_key_is_the_same_for_all_workers_and_for_none_alone() -> None:
    own = {Key(1, 2, worker, 3).number for worker in range(100)}
    shared = {Key(1, 2, worker, 3).shared().number for worker in range(100)}
    assert len(own) == 100
    assert len(shared) == 1
    assert not own & shared


@pytest.mark.parametrize("dtype", DTYPES)
def test_uniform_lies_in_zero_one_on_its_grid(dtype: torch.dtype) -> None:
    draws = uniform(Key(3).number, 100_000, dtype)
    bits = 53 if dtype == torch.float64 else 24
    assert draws.dtype == dtype
    assert 0 <= float(draws.min())
    assert float(draws.max()) < 1
    assert torch.equal(draws * 2.0**bits, (draws * 2.0**bits).floor())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(5))
def test_uniform_fills_100_cells_evenly(dtype: torch.dtype, seed: int) -> None:
    """Chi-square with 99 degrees of freedom: mean 99, standard deviation sqrt(198); six of them either way."""
    counts = torch.histc(uniform(Key(seed).number, 100_000, dtype), 100, 0, 1)
    chi2 = float(((counts - 1000).square() / 1000).sum())
    assert abs(chi2 - 99) < 6 * math.sqrt(198)


def test_streams_of_neighbouring_keys_are_uncorrelated() -> None:
    streams = torch.stack(
        [uniform(Key(0, step, worker).number, 10_000, torch.float64) for step in range(3) for worker in range(3)]
    )
    off = torch.corrcoef(streams) - torch.eye(9, dtype=torch.float64)
    assert float(off.abs().max()) < 5 / math.sqrt(10_000)


def test_every_bit_is_set_half_the_time() -> None:
    words = random_bits(Key(9).number, 40_000)
    for bit in range(64):
        share = float(((words >> bit) & 1).double().mean())
        assert abs(share - 0.5) < 6 * 0.5 / math.sqrt(40_000)


def test_a_longer_draw_starts_with_the_shorter_one() -> None:
    assert torch.equal(random_bits(5, 100)[:7], random_bits(5, 7))
    assert random_bits(5, 0).numel() == 0


def test_torchs_generator_is_untouched() -> None:
    before = torch.get_rng_state()
    uniform(Key(1).number, 100, torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("ranks", [range(5), [1, 4, 70_000]], ids=str)
def test_the_keys_of_many_workers_are_their_own(ranks: Sequence[int]) -> None:
    joint = JointKey(3, 5, ranks=ranks)
    indices = [0, 7, -1, -8, 2**31]
    pieces = [joint_index(row, i) if i >= 0 else ~joint_index(row, ~i) for row in range(len(ranks)) for i in indices]
    own = [Key(3, 5, worker, index) for worker in ranks for index in indices]
    assert [joint.at(piece) for piece in pieces] == own
    assert joint.numbers(pieces) == [key.number for key in own]
    assert joint.shared().numbers(pieces) == [key.shared().number for key in own]
    assert joint.stream(2).numbers(pieces) == [key.stream(2).number for key in own]
    assert joint.owners(torch.tensor(pieces)).tolist() == [key.worker for key in own]
    assert Key(3, 5).across(torch.tensor(ranks)).tolist() == [signed(Key(3, 5, worker).number) for worker in ranks]
    assert Key(3, 5, 4).words(torch.tensor(indices)).tolist() == [signed(Key(3, 5, 4, i).number) for i in indices]

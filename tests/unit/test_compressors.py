"""Compressors one by one: what they keep, what they claim, what they refuse."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire import (
    QSGD,
    ChunkTopK,
    Compressor,
    Contractive,
    HardThreshold,
    Identity,
    Key,
    Layout,
    Natural,
    RandK,
    ScaledSign,
    Strom,
    TopK,
    Warmup,
)
from thinwire.compressors.density import kept
from thinwire.errors import ConfigError

ONE = Layout.of([("x", 0, (6,))])
TWO = Layout.of([("a", 0, (3,)), ("b", 1, (3,))])
X = torch.tensor([3.0, -1.0, 0.5, -4.0, 2.0, 0.0])

WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: TopK(0), r"topk ratio must lie in \(0, 1\], got 0: write 1 % as topk\(0.01\)"),
    (lambda: TopK(2), r"topk ratio must lie in \(0, 1\], got 2"),
    (lambda: TopK(-0.1), r"\(0, 1\], got -0.1"),
    (lambda: TopK(math.nan), r"\(0, 1\], got nan"),
    (lambda: TopK(Warmup(2.0, 0.1, 3)), r"\(0, 1\], got warmup\(2.0, 0.1, 3\)"),
    (lambda: TopK(count=0), "topk count must be at least 1, got 0"),
    (lambda: TopK(count=-3), "at least 1, got -3"),
    (lambda: TopK(count=2.5), "topk count must be a whole number, got 2.5"),
    (lambda: TopK(), "either a ratio or count=, got ratio=None and count=None"),
    (lambda: TopK(0.1, count=3), "either a ratio or count=, got ratio=0.1 and count=3"),
    (lambda: TopK(0.1, values="int3"), "unknown value format 'int3'; known: full"),
    (lambda: TopK(0.1, per="model"), "topk per must be parameter or bucket, got 'model'"),
    (lambda: RandK(0), r"randk ratio must lie in \(0, 1\], got 0"),
    (lambda: RandK(1.5), r"\(0, 1\], got 1.5"),
    (lambda: RandK(count=0), "randk count must be positive, got 0"),
    (lambda: RandK(count=math.nan), "positive, got nan"),
    (lambda: RandK(count=1.5), "randk count must be a whole number, or a probability below one, got 1.5"),
    (lambda: RandK(count=math.inf), "got inf"),
    (lambda: RandK(0.1, values="int3"), "unknown value format 'int3'"),
    (lambda: RandK(0.1, shared=True, values="int3"), "unknown value format 'int3'"),
    (
        lambda: RandK(0.1, shared=True, values="exponent4"),
        "values=exponent4 cannot: use full, bfloat16, float16 or power4",
    ),
    (lambda: HardThreshold(0), "threshold tau must be a positive number, got 0"),
    (lambda: HardThreshold(-1.0), "got -1.0"),
    (lambda: HardThreshold(math.inf), "got inf"),
    (lambda: HardThreshold(math.nan), "got nan"),
    (lambda: HardThreshold(0.1, values="int3"), "unknown value format 'int3'"),
    (lambda: Strom(0), "strom tau must be a positive number, got 0"),
    (lambda: Strom(math.nan), "got nan"),
    (lambda: ScaledSign(0), "sign block must be a whole number from 1 to 4294967295, got 0"),
    (lambda: ScaledSign(-5), "got -5"),
    (lambda: QSGD(0), r"qsgd levels must lie in 1..65535, got 0"),
    (lambda: QSGD(1 << 16), "got 65536"),
    (lambda: QSGD(4, 0), "qsgd bucket must be at least 1, got 0"),
    (lambda: Contractive(TopK(0.1)), r"unbiased compressor \(qsgd, natural, identity\), got topk\(0.1\)"),
    (lambda: Contractive(0.1), "got 0.1"),
]


@pytest.mark.parametrize(("build", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_value_out_of_bounds_is_refused_when_built(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


WRONG_TYPES: dict[str, Callable[[], object]] = {
    "topk ratio str": lambda: TopK("0.1"),
    "topk ratio compressor": lambda: TopK(Identity()),
    "topk count str": lambda: TopK(count="3"),
    "randk ratio str": lambda: RandK("0.1"),
    "randk count str": lambda: RandK(count="3"),
    "threshold tau str": lambda: HardThreshold("1"),
    "strom tau str": lambda: Strom("1"),
    "sign block str": lambda: ScaledSign("8"),
    "sign block float": lambda: ScaledSign(2.5),
    "qsgd levels float": lambda: QSGD(4.5),
    "qsgd levels str": lambda: QSGD("4"),
    "qsgd bucket float": lambda: QSGD(4, 8.5),
}


@pytest.mark.parametrize("build", WRONG_TYPES.values(), ids=WRONG_TYPES.keys())
def test_a_value_of_another_type_is_refused_when_built(build: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        build()


@given(st.integers(1, 10**9), st.sampled_from([0.29, 0.1, 0.07, 0.001, 1 / 3, 1.0, 1e-5]))
def test_the_kept_count_is_the_floor_of_the_written_ratio(numel: int, ratio: float) -> None:
    k = kept(numel, ratio, None)
    assert 1 <= k <= numel
    assert k == 1 or k <= ratio * numel * (1 + 1e-12)
    assert k == numel or k + 1 > ratio * numel * (1 - 1e-12)


@pytest.mark.parametrize(
    ("numel", "ratio", "count", "k"),
    [
        (100, 0.29, None, 29),
        (100, 0.07, None, 7),
        (10, 0.01, None, 1),
        (0, 0.5, None, 0),
        (5, None, 9, 5),
        (0, None, 9, 0),
        (7, 1, None, 7),
    ],
)
def test_kept_counts(numel: int, ratio: float | None, count: int | None, k: int) -> None:
    assert kept(numel, ratio, count) == k


def test_numpy_numbers_are_numbers() -> None:
    """A ratio from numpy.logspace is as good as one that was typed."""
    compressor = TopK(np.float64(0.5))
    assert str(compressor) == "topk(0.5)"
    assert compressor(X, ONE, Key()).positions.tolist() == [0, 3, 4]


def test_topk_within_each_parameter_or_over_the_bucket() -> None:
    assert TopK(count=1)(X, TWO, Key()).positions.tolist() == [0, 3]
    assert TopK(count=2, per="bucket")(X, TWO, Key()).positions.tolist() == [0, 3]
    assert TopK(count=1, per="bucket")(X, TWO, Key()).positions.tolist() == [3]
    assert TopK(0.5, per="bucket")(X, TWO, Key()).positions.tolist() == [0, 3, 4]


def test_randk_sends_values_as_they_are() -> None:
    payload = RandK(0.5)(X, ONE, Key(3))
    assert payload.values.tolist() == X[payload.positions].tolist()
    assert payload.positions.numel() == 3


@pytest.mark.parametrize("shared", [False, True])
def test_ultra_sparse_randk_sends_one_coordinate_with_that_probability(shared: bool) -> None:
    """count = 0.25 of 6 numbers: each coordinate with probability 0.25 / 6."""
    draws, rule = 4000, RandK(count=0.25, shared=shared)
    hits = torch.zeros(6)
    for step in range(draws):
        payload = rule(X + 10, ONE, Key(1, step))
        assert payload.positions.numel() in (0, 1)
        hits[payload.positions] += 1
    p = 0.25 / 6
    assert float((hits / draws - p).abs().max()) < 5 * math.sqrt(p * (1 - p) / draws)
    assert rule.delta(6) == pytest.approx(p)


def test_thresholds_include_equality_and_strom_sends_one_magnitude() -> None:
    assert HardThreshold(2.0)(X, ONE, Key()).decode(ONE, torch.float32).tolist() == [3, 0, 0, -4, 2, 0]
    assert Strom(2.0)(X, ONE, Key()).decode(ONE, torch.float32).tolist() == [2, 0, 0, -2, 2, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_strom_sends_the_threshold_as_the_receiver_holds_it(dtype: torch.dtype) -> None:
    """0.1 is not a float32: what is subtracted from the memory must be what arrives."""
    payload = Strom(0.1)(X.to(dtype), ONE, Key())
    assert set(payload.values.abs().tolist()) == {float(torch.tensor(0.1, dtype=dtype))}


def test_scaled_sign_blocks_and_the_sign_of_zero() -> None:
    assert ScaledSign()(X, ONE, Key()).decode(ONE, torch.float32).tolist() == [1.75, -1.75, 1.75, -1.75, 1.75, 1.75]
    assert ScaledSign(3)(X, ONE, Key()).decode(ONE, torch.float32).tolist() == [1.5, -1.5, 1.5, -2, 2, 2]
    assert ScaledSign()(X, TWO, Key()).decode(TWO, torch.float32).tolist() == [1.5, -1.5, 1.5, -2, 2, 2]


def test_qsgd_with_one_level_in_blocks_of_one_is_exact() -> None:
    assert torch.equal(QSGD(1, 1)(X, ONE, Key()).decode(ONE, torch.float32), X)


@pytest.mark.parametrize("compressor", [QSGD(2, 3), Natural()], ids=str)
def test_unbiased_compressors_are_right_on_average_and_within_their_variance(compressor: QSGD | Natural) -> None:
    draws = torch.stack([compressor(X.double(), ONE, Key(0, step)).decode(ONE, torch.float64) for step in range(4000)])
    deviation = draws.std(0) / math.sqrt(len(draws))
    assert bool(((draws.mean(0) - X).abs() <= 5 * deviation + 1e-12).all())
    variance = (draws - X).square().sum(1)
    bound = compressor.omega(6) * float(X.square().sum())
    assert float(variance.mean()) <= bound + 5 * float(variance.std()) / math.sqrt(len(draws))


def test_contractive_scales_by_one_over_one_plus_omega() -> None:
    rule = Contractive(QSGD(1, 100))
    assert QSGD(1, 100).omega(25) == 5.0
    assert QSGD(1, 100).delta(25) == -4.0
    assert rule.delta(25) == pytest.approx(1 / 6)
    assert torch.equal(Contractive(Identity())(X, ONE, Key()).decode(ONE, torch.float32), X)


@pytest.mark.parametrize(
    ("compressor", "delta"),
    [
        (Identity(), 1.0),
        (TopK(0.25), 0.25),
        (TopK(count=5), 0.05),
        (TopK(Warmup(0.5, 0.02, 9)), 0.02),
        (ChunkTopK(0.25, chunk=95), 0.2),  # of the last five numbers one is sent, of the others 23 in 95
        (RandK(0.25), 0.25),
        (RandK(count=0.5), 0.005),
        (HardThreshold(1.0), 0.0),
        (Strom(1.0), 0.0),
        (ScaledSign(), 0.01),
        (ScaledSign(4), 0.25),
        (Natural(), 0.875),
        (QSGD(10, 100), 0.0),
    ],
    ids=str,
)
def test_claimed_contractions_of_100_numbers(compressor: Compressor, delta: float) -> None:
    assert compressor.delta(100) == pytest.approx(delta)


@pytest.mark.parametrize(
    "compressor", [Identity(), TopK(0.1), RandK(0.1), RandK(count=0.5), ScaledSign(), QSGD(4), Natural()], ids=str
)
def test_nothing_compresses_to_nothing(compressor: Compressor) -> None:
    empty = Layout.of([("x", 0, (0,))])
    assert compressor(torch.zeros(0), empty, Key()).decode(empty, torch.float32).numel() == 0
    assert compressor.delta(0) == 1.0 or isinstance(compressor, Natural)


@pytest.mark.parametrize("compressor", [RandK(0.5), RandK(0.5, shared=True), QSGD(2), Natural()], ids=str)
def test_random_compressors_depend_on_their_key_alone(compressor: Compressor) -> None:
    layout = Layout.of([("x", 0, (64,))])
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    before = torch.get_rng_state()

    def drawn(key: Key) -> tuple[float, ...]:
        return tuple(compressor(x, layout, key).decode(layout, torch.float32).tolist())

    assert drawn(Key(1, 2, 3)) == drawn(Key(1, 2, 3))
    assert len({drawn(Key(1, step, 3)) for step in range(8)}) == 8
    workers = {drawn(Key(1, 2, worker)) for worker in range(8)}
    assert len(workers) == (1 if getattr(compressor, "shared", False) else 8)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("compressor", [RandK(0.5), RandK(0.5, shared=True), QSGD(2), Natural()], ids=str)
def test_equal_pieces_draw_differently_wherever_they_lie(compressor: Compressor) -> None:
    """Randomness follows a parameter's place in the model, not its place in the buffer."""
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    both = Layout.of([("a", 0, (64,)), ("b", 1, (64,))])
    swapped = Layout.of([("b", 1, (64,)), ("a", 0, (64,))])
    twice = torch.cat([x, x])
    first, second = compressor(twice, both, Key(5)).decode(both, torch.float32).split(64)
    again = compressor(twice, swapped, Key(5)).decode(swapped, torch.float32).split(64)
    assert not torch.equal(first, second)
    assert torch.equal(first, again[1])
    assert torch.equal(second, again[0])


def test_chunks_of_a_memory_are_rescaled_with_their_own_parameter() -> None:
    error = torch.arange(1.0, 7.0)
    payload = ChunkTopK(0.5, chunk=2).take_(error, torch.zeros(6), (2.0, 3.0), TWO, Key())
    assert (payload.decode(TWO, torch.float32) + error).tolist() == [2.0, 4.0, 6.0, 12.0, 15.0, 18.0]


@pytest.mark.parametrize("kind", [TopK, RandK])
def test_steps_of_other_densities_are_not_alike(kind: type[TopK | RandK]) -> None:
    """Nothing that was recorded in one is repeated in another."""
    compressor = kind(Warmup(0.5, 0.1, 10))
    early, late, later = (compressor.pattern(Key(step=step)) for step in (0, 20, 30))
    assert early is not None
    assert early != late
    assert late == later


def test_compressors_are_frozen_values() -> None:
    assert TopK(0.1) == TopK(0.1)
    assert len({TopK(0.1), TopK(0.1), TopK(0.2)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        TopK(0.1).ratio = 0.2  # type: ignore[misc]

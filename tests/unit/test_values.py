"""How the numbers of a sparse message are written."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thinwire.errors import ConfigError, WireError
from thinwire.layout import Layout
from thinwire.ops import Key, pack_codes
from thinwire.ops.blocks import NO_VALUE, exponents
from thinwire.payload.message import Reader, join, raw
from thinwire.payload.values import DRAWN, FORMATS, SIGN_ONLY, ValueFormat, value_format, value_format_of_tag

DTYPES = [torch.float32, torch.float64]
each_format = pytest.mark.parametrize("written", list(FORMATS.values()), ids=lambda f: f.name)
each_drawn = pytest.mark.parametrize("written", list(DRAWN.values()), ids=lambda f: f.name)
every_format = pytest.mark.parametrize("written", [*FORMATS.values(), *DRAWN.values()], ids=lambda f: f.name)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)

magnitudes = st.one_of(
    st.just(0.0),
    st.floats(-(2.0**127), 2.0**127, width=32),
    st.floats(-(2.0**-120), 2.0**-120, width=32),
    st.floats(-2, 2, width=32),
    st.sampled_from([2.0**-149, 2.0**-126, 1.5 * 2.0**-130, 65504.0, 65520.0, 1e38, -(2.0**-24), 1.9999999]),
)
groups_of = st.lists(st.tuples(magnitudes, st.integers(0, 3)), max_size=20)


def pieces(count: int) -> Layout:
    """Pieces of one number each: a group is the position of its piece."""
    return Layout.of([(str(i), i, (1,)) for i in range(count)])


def tensors(pairs: list[tuple[float, int]], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    ordered = sorted(pairs, key=lambda pair: pair[1])
    values = torch.tensor([v for v, _ in ordered], dtype=dtype)
    return values, torch.tensor([g for _, g in ordered], dtype=torch.int64)


def sent(written: ValueFormat, values: Tensor, groups: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """What the sender says will arrive, what arrives, and the bytes; values that cannot be written are left out."""
    rounded = written.round(values, groups, pieces(count), Key())
    if written.drops:
        rounded, groups = rounded[rounded != 0], groups[rounded != 0]
    packed = join(written.pack(rounded, groups, pieces(count)), torch.device("cpu"))
    reader = Reader(packed)
    arrived = written.unpack(reader, groups, pieces(count), values.dtype)
    reader.finish()
    return rounded, arrived, packed


@every_format
@each_dtype
@settings(max_examples=50)
@given(pairs=groups_of)
def test_what_arrives_is_what_the_sender_says(
    written: ValueFormat, dtype: torch.dtype, pairs: list[tuple[float, int]]
) -> None:
    values, groups = tensors(pairs, dtype)
    rounded, arrived, _ = sent(written, values, groups, 4)
    assert arrived.dtype == dtype
    assert torch.equal(arrived, rounded)
    assert bool(torch.isfinite(arrived).all())


@each_format
@each_dtype
@settings(max_examples=50)
@given(pairs=groups_of)
def test_rounding_twice_is_rounding_once(
    written: ValueFormat, dtype: torch.dtype, pairs: list[tuple[float, int]]
) -> None:
    values, groups = tensors(pairs, dtype)
    once = written.round(values, groups, pieces(4))
    assert torch.equal(written.round(once, groups, pieces(4)), once)


@each_format
@each_dtype
@settings(max_examples=50)
@given(pairs=groups_of)
def test_rounding_never_flips_a_sign_and_never_adds_error(
    written: ValueFormat, dtype: torch.dtype, pairs: list[tuple[float, int]]
) -> None:
    values, groups = tensors(pairs, dtype)
    rounded = written.round(values, groups, pieces(4))
    assert bool((rounded * values.sign() >= 0).all())
    assert bool(((values - rounded).abs() <= values.abs()).all())


@pytest.mark.parametrize(("name", "bits"), [("float32", 24), ("bfloat16", 8), ("float16", 11)])
def test_relative_error_of_ordinary_numbers(name: str, bits: int) -> None:
    """Half a unit in the last of `bits` places; the clamp of float16 just below 2 costs at most one whole unit."""
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = values[values.abs() > 1e-2]
    rounded = value_format(name).round(values, torch.zeros(values.numel(), dtype=torch.int64), pieces(1))
    assert float(((rounded - values) / values).abs().max()) <= 2.0**-bits


@pytest.mark.parametrize("scale", [2.0**-140, 1e-30, 1e-8, 1.0, 1e8, 1e30])
def test_float16_is_relative_to_the_largest_of_its_piece(scale: float) -> None:
    """Neither underflow nor overflow at any scale: 2^-11 of each value down to 2^-14 of the largest."""
    values = (torch.tensor([1.0, -0.7, 0.01, 1e-4]) * scale).float()
    rounded = value_format("float16").round(values, torch.zeros(4, dtype=torch.int64), pieces(1))
    error = (rounded.double() - values.double()).abs()
    assert bool((error <= 2.0**-11 * values.double().abs() + 2.0**-149).all())


def test_float16_gives_each_piece_its_own_scale() -> None:
    values = torch.tensor([1e30, 1e-30])
    rounded = value_format("float16").round(values, torch.tensor([0, 1]), pieces(2))
    assert bool(((rounded - values).abs() <= 2.0**-11 * values).all())
    together = value_format("float16").round(values, torch.tensor([0, 0]), pieces(2))
    assert together[1] == 0


def test_float16_saturates_below_the_next_power_of_two() -> None:
    values = torch.tensor([1.99999, -1.99999])
    rounded = value_format("float16").round(values, torch.tensor([0, 0]), pieces(1))
    assert rounded.tolist() == [2 - 2.0**-10, -(2 - 2.0**-10)]


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_narrow_floats_saturate_instead_of_overflowing(name: str) -> None:
    rounded = value_format(name).round(
        torch.tensor([1e300, -1e300], dtype=torch.float64), torch.tensor([0, 0]), pieces(1)
    )
    most = torch.finfo(getattr(torch, name)).max
    assert rounded.tolist() == [most, -most]


def test_exponent4_example_of_the_paper() -> None:
    """VGC, appendix: E = 5, rounded to 2^-5, 2^-2, 2^3, 2^4, 2^5 (cut off); d = 10, 7, 2, 1, 0; the first is lost."""
    values = torch.tensor([0.04, 0.31, -6.25, 22.25, -35.75])
    groups = torch.zeros(5, dtype=torch.int64)
    written = value_format("exponent4")
    assert exponents(values, groups, 1).tolist() == [5]
    assert written.round(values, groups, pieces(1)).tolist() == [0, 0.25, -8.0, 16.0, -32.0]
    rounded, arrived, packed = sent(written, values, groups, 1)
    assert torch.equal(arrived, rounded)
    assert packed.tolist() == [5, 0, 0, 0, 7 | (8 + 2) << 4, 1 | (8 + 0) << 4, 0, 0]


@pytest.mark.parametrize("name", ["exponent4", "power4"])
@pytest.mark.parametrize(("value", "rounded"), [(1.5, 2.0), (1.4999999, 1.0), (-1.5, -2.0), (8.0, 8.0), (15.9, 8.0)])
def test_powers_go_to_the_nearer_one_and_halfway_up(value: float, rounded: float, name: str) -> None:
    values = torch.tensor([value, 8.0])
    assert value_format(name).round(values, torch.zeros(2, dtype=torch.int64), pieces(1))[0] == rounded


@pytest.mark.parametrize(
    ("name", "depth", "kept"),
    [("exponent4", 7, True), ("exponent4", 8, False), ("power4", 6, True), ("power4", 7, False)],
)
def test_powers_lose_what_lies_more_than_seven_or_six_below(name: str, depth: int, kept: bool) -> None:
    rounded = value_format(name).round(torch.tensor([2.0**-depth, 1.0]), torch.zeros(2, dtype=torch.int64), pieces(1))
    assert bool(rounded[0] != 0) == kept


def test_power4_writes_zero_for_what_lies_more_than_six_powers_below() -> None:
    """The paper's example, d = 10, 7, 2, 1, 0: the first two are zero and have a code, and so has what is zero."""
    values = torch.tensor([0.04, -0.31, -6.25, 22.25, -35.75, 0.0, 0.5])
    rounded, arrived, packed = sent(value_format("power4"), values, torch.zeros(7, dtype=torch.int64), 1)
    assert rounded.tolist() == [0.0, 0.0, -8.0, 16.0, -32.0, 0.0, 0.5]
    assert not rounded[1].signbit()
    assert torch.equal(arrived, rounded)
    assert packed.tolist() == [5, 0, 0, 0, 7 | 7 << 4, (8 + 2) | 1 << 4, (8 + 0) | 7 << 4, 6]


def test_power4_of_zeros_alone_declares_their_piece_empty() -> None:
    values, groups = torch.tensor([0.0, -0.0, 3.0]), torch.tensor([0, 0, 2])
    _, arrived, packed = sent(value_format("power4"), values, groups, 3)
    assert packed[:6].view(torch.int16).tolist() == [NO_VALUE, NO_VALUE, 1]
    assert packed[8:].tolist() == [0x77, 0, 0, 0]
    assert arrived.tolist() == [0.0, 0.0, 4.0 / 2]


@pytest.mark.parametrize(
    ("exponent", "codes", "problem"),
    [
        (0, [15, 0], "exponents in a message"),
        (NO_VALUE, [7, 15], "exponents in a message"),
        (0, [7, 7], "exponents in a message"),
        (0, [7, 1], "exponents in a message"),
        (-149, [0, 1], "exponents in a message"),
        (NO_VALUE, [7, 8], "declares empty"),
    ],
)
def test_power4_refuses_what_no_sender_writes(exponent: int, codes: list[int], problem: str) -> None:
    """A zero with a sign, an exponent that is no number's, a number too small, and one in a piece without any."""
    packed = pack_codes(torch.tensor(codes), 4)
    message = join([raw(torch.tensor([exponent], dtype=torch.int16)), raw(packed)], torch.device("cpu"))
    with pytest.raises(WireError, match=problem):
        value_format("power4").unpack(Reader(message), torch.tensor([0, 0]), pieces(1), torch.float32)


@each_dtype
@pytest.mark.parametrize("name", ["exponent4", "power4"])
@pytest.mark.parametrize("value", [2.0**-149, 1.5 * 2.0**-149 * 2, 2.0**-127, 3e38])
def test_powers_of_a_single_value_of_any_size(value: float, name: str, dtype: torch.dtype) -> None:
    values = torch.tensor([value], dtype=dtype)
    rounded, arrived, _ = sent(value_format(name), values, torch.tensor([0]), 1)
    assert torch.equal(rounded, arrived)
    assert 0.5 <= float(rounded[0]) / float(values[0]) <= 4 / 3


def test_a_group_of_zeros_has_no_exponent_and_sends_nothing() -> None:
    zeros, groups = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
    assert exponents(zeros, groups, 2).tolist() == [NO_VALUE, NO_VALUE]
    rounded, arrived, _ = sent(value_format("exponent4"), zeros, groups, 2)
    assert rounded.numel() == arrived.numel() == 0
    assert sent(value_format("float16"), zeros, groups, 2)[1].tolist() == [0, 0, 0]


def test_exponent4_refuses_values_in_a_piece_declared_empty() -> None:
    message = join([raw(torch.tensor([NO_VALUE], dtype=torch.int16)), bytes(1)], torch.device("cpu"))
    with pytest.raises(WireError, match="declares empty"):
        value_format("exponent4").unpack(Reader(message), torch.tensor([0]), pieces(1), torch.float32)


def test_bins2_sends_two_means_of_each_piece() -> None:
    """Split at the mean, then at (lo + hi) / 2: bins {1, 1, 0.8, 0.3}, {8, 10}; 0.3 is less than half of its mean."""
    values, groups = torch.tensor([1.0, -1.0, 0.8, 0.3, 8.0, -10.0, 7.0]), torch.tensor([0, 0, 0, 0, 0, 0, 1])
    rounded = value_format("bins2").round(values, groups, pieces(2))
    low = float(torch.tensor((1 + 1 + 0.8 + 0.3) / 4))
    assert rounded.tolist() == [low, -low, low, 0.0, 9.0, -9.0, 7.0]


def test_bins2_splits_three_times() -> None:
    """At the mean 5.25, the midpoint of 1 and 10.9, and that of 1.95 and 13.5: 5.75 and then 7 go to the lower bin."""
    values = torch.tensor([1.0, 1.0, 1.0, 1.0, 5.75, -7.0, 20.0])
    rounded = value_format("bins2").round(values, torch.zeros(7, dtype=torch.int64), pieces(1))
    low = float(torch.tensor((4 + 5.75 + 7) / 6))
    assert rounded.tolist() == [0.0, 0.0, 0.0, 0.0, low, -low, 20.0]


def test_bins2_of_equal_magnitudes_and_of_zeros_is_exact() -> None:
    values = torch.tensor([0.3, -0.3, 0.3, 0.0])
    rounded = value_format("bins2").round(values, torch.zeros(4, dtype=torch.int64), pieces(1))
    assert torch.equal(rounded, values)


def test_bins2_loses_less_than_one_magnitude_would() -> None:
    """Of the largest 1 % of a Gaussian vector: Lloyd's two means leave a third of the variance of the magnitudes."""
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    values = x[x.abs() > 2.5758]
    rounded = value_format("bins2").round(values, torch.zeros(values.numel(), dtype=torch.int64), pieces(1))
    lost = float((values - rounded).square().sum())
    assert lost < 0.4 * float(values.abs().var() * values.numel())


@pytest.mark.parametrize(
    ("low", "high", "codes"),
    [
        (1.0, 1.0, 0b1000),
        (2.0, 1.0, 0b1000),
        (0.0, 1.0, 0b1000),
        (1.0, 2.0, 0),
        (math.nan, 1.0, 0b1000),
        (-0.0, 1.0, 0b1010),
    ],
)
def test_bins2_refuses_magnitudes_that_no_sender_writes(low: float, high: float, codes: int) -> None:
    """Two numbers in one piece: equal magnitudes in two bins, in the wrong order, zero, or one that nobody uses."""
    message = join([raw(torch.tensor([low, high])), bytes([codes])], torch.device("cpu"))
    with pytest.raises(WireError, match="magnitudes in a message are not those"):
        value_format("bins2").unpack(Reader(message), torch.tensor([0, 0]), pieces(1), torch.float32)


@pytest.mark.parametrize(
    ("name", "count", "pieces", "expected"),
    [
        ("full", 7, 2, 28),
        ("float32", 7, 2, 28),
        ("bfloat16", 7, 2, 14 + 2),
        ("float16", 7, 2, 4 + 14 + 2),
        ("float16", 8, 3, 6 + 2 + 16),
        ("exponent4", 7, 2, 4 + 4),
        ("exponent4", 9, 1, 2 + 2 + 5 + 3),
        ("power4", 9, 1, 2 + 2 + 5 + 3),
        ("bins2", 17, 2, 16 + 5 + 3),
        ("qsgd4", 7, 2, 8 + 4),
        ("qsgd2", 17, 2, 8 + 5 + 3),
    ],
)
def test_bytes_on_the_wire(name: str, count: int, pieces: int, expected: int) -> None:
    """Numbers, and what fills up the last word of each row of them."""
    values, groups = torch.ones(count), torch.zeros(count, dtype=torch.int64)
    assert sent(value_format(name, FORMATS | DRAWN), values, groups, pieces)[2].numel() == expected


@each_drawn
@each_dtype
def test_drawn_levels_have_the_value_as_their_mean(written: ValueFormat, dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, -0.3, 0.05, 0.6, -0.9, 2.0, 0.1, -3.0], dtype=dtype)
    layout, times = Layout.of([("a", 0, (5,)), ("b", 5, (3,))]), 1000
    rounds = torch.stack([written.round(values, torch.arange(8), layout, Key(step=t)) for t in range(times)])
    unit = torch.tensor([1.0] * 5 + [3.0] * 3) / {"qsgd4": 8, "qsgd2": 2}[written.name]
    assert bool(((rounds - values).abs() < unit).all())
    assert bool(((rounds / unit - (rounds / unit).round()).abs() <= 8 * torch.finfo(torch.float32).eps).all())
    assert bool(((rounds.mean(0) - values).abs() <= 5 * unit / 2 / times**0.5).all())


def test_drawn_levels_do_not_depend_on_how_buckets_are_cut() -> None:
    values, key = torch.linspace(-1, 1, 40), Key(step=3)
    whole = Layout.of([("a", 0, (10,)), ("b", 10, (30,))])
    alone = Layout((replace(whole.pieces[1], offset=0),))
    for written in DRAWN.values():
        together = written.round(values, torch.arange(40), whole, key)
        assert torch.equal(together[10:], written.round(values[10:], torch.arange(30), alone, key))


@each_drawn
def test_drawn_levels_of_two_parameters_are_drawn_apart(written: ValueFormat) -> None:
    """Equal numbers at equal places, rounded by draws of their own."""
    both = Layout.of([("a", 0, (40,)), ("b", 1, (40,))])
    found = written.round(torch.linspace(-1, 1, 40).repeat(2), torch.arange(80), both, Key(step=3))
    assert not torch.equal(found[:40], found[40:])


@each_drawn
@pytest.mark.parametrize("most", [-1.0, 0.0, math.inf, math.nan])
def test_drawn_levels_refuse_magnitudes_that_no_sender_writes(written: ValueFormat, most: float) -> None:
    message = join(
        [raw(torch.tensor([most])), pack_codes(torch.tensor([1]), int(written.name[-1]))], torch.device("cpu")
    )
    with pytest.raises(WireError, match="magnitudes in a message"):
        written.unpack(Reader(message), torch.tensor([0]), pieces(1), torch.float32)


@each_drawn
def test_drawn_levels_refuse_a_largest_number_that_is_not_sent(written: ValueFormat) -> None:
    message = join(
        [raw(torch.tensor([1.0])), pack_codes(torch.tensor([1]), int(written.name[-1]))], torch.device("cpu")
    )
    with pytest.raises(WireError, match="magnitudes in a message"):
        written.unpack(Reader(message), torch.tensor([0]), pieces(1), torch.float32)


@pytest.mark.parametrize("signs", [[], [1.0], [-1.0, 1.0] * 5])
def test_sign_only_sends_one_magnitude_and_a_bit_a_value(signs: list[float]) -> None:
    values = torch.tensor(signs) * 0.3
    groups = torch.zeros(len(signs), dtype=torch.int64)
    rounded, arrived, packed = sent(SIGN_ONLY, values, groups, 1)
    assert torch.equal(arrived, rounded)
    assert packed.numel() == 4 + 4 * math.ceil(len(signs) / 32)


def test_unknown_formats_are_typed_errors() -> None:
    with pytest.raises(ConfigError, match=r"unknown value format 'int8'; known: full, float32, bfloat16"):
        value_format("int8")
    with pytest.raises(ConfigError, match="unknown value format 'sign'"):
        value_format("sign")
    with pytest.raises(WireError, match="unknown value format 99"):
        value_format_of_tag(99)


@each_format
def test_contraction_left_after_rounding_is_kept(written: ValueFormat) -> None:
    """|x - C(x)|^2 <= (1 - keeps(1, d)) |x|^2 when every number is chosen."""
    for seed in range(20):
        values = torch.randn(50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 3
        rounded = written.round(values, torch.zeros(50, dtype=torch.int64), pieces(1))
        left = float((values - rounded).square().sum() / values.square().sum())
        assert left <= 1 - written.keeps(1.0, 50)


@pytest.mark.parametrize("name", ["float16", "exponent4", "power4"])
@pytest.mark.parametrize(
    ("forged", "piece", "dtype"),
    [
        *((forged, 1, dtype) for forged in (NO_VALUE + 1, -300, 0, 5, 200, 30000) for dtype in DTYPES),
        *((forged, 0, dtype) for forged in (NO_VALUE + 1, 30000) for dtype in DTYPES),
        *((forged, 0, torch.float32) for forged in (-300, 200)),
    ],
)
def test_exponents_that_are_not_those_of_the_numbers_are_refused(
    name: str, forged: int, piece: int, dtype: torch.dtype
) -> None:
    """Once any exponent was taken: numbers came out as zero or infinity, or two messages meant the same."""
    values, groups = torch.tensor([4.0, 0.5], dtype=dtype), torch.tensor([0, 0])  # the second piece has no number
    written = value_format(name)
    packed = join(written.pack(values, groups, pieces(2)), torch.device("cpu"))
    packed[2 * piece : 2 * piece + 2] = torch.tensor([forged], dtype=torch.int16).view(torch.uint8)
    with pytest.raises(WireError, match="exponents in a message are not those"):
        written.unpack(Reader(packed), groups, pieces(2), dtype)


@pytest.mark.parametrize("half", [math.nan, math.inf, 2.0])
def test_a_float16_beyond_its_range_is_refused(half: float) -> None:
    written, groups = value_format("float16"), torch.tensor([0, 1])
    packed = join(written.pack(torch.ones(2), groups, pieces(2)), torch.device("cpu"))
    packed[-2:] = torch.tensor([half], dtype=torch.float16).view(torch.uint8)
    with pytest.raises(WireError, match="exponents in a message are not those"):
        written.unpack(Reader(packed), groups, pieces(2), torch.float32)


@pytest.mark.parametrize(
    ("magnitude", "count", "bits", "problem"),
    [
        (-1.0, 1, 0, "below zero"),
        (-0.0, 1, 0, "below zero"),
        (-0.0, 0, None, "below zero"),
        (0.0, 1, 1, "signs of zero"),
        (math.nan, 1, 1, "signs of zero"),
        (1.0, 0, None, "no numbers"),
    ],
)
def test_a_magnitude_that_no_sender_writes_is_refused(
    magnitude: float, count: int, bits: int | None, problem: str
) -> None:
    packed = join([raw(torch.tensor([magnitude])), b"" if bits is None else bytes([bits])], torch.device("cpu"))
    reader = Reader(packed)
    with pytest.raises(WireError, match=problem):
        SIGN_ONLY.unpack(reader, torch.arange(count), pieces(2), torch.float32)

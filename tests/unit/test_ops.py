"""The reference operations against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire import Key, Layout
from thinwire.ops import (
    backend,
    block_count,
    block_lengths,
    block_norms,
    first_nonfinite,
    pack_bits,
    pack_codes,
    pack_positions,
    randk_indices,
    unpack_bits,
    unpack_codes,
    unpack_positions,
)
from thinwire.ops import reference as definitions
from thinwire.ops.reference import large_indices, natural_exponents, qsgd_levels, topk_indices

CPU = torch.device("cpu")
few_values = st.lists(st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 5.0, 1e-40, -1e30]), max_size=30)


@given(few_values, st.integers(1, 30))
def test_topk_is_a_stable_sort_with_ties_to_the_lower_index(values: list[float], k: int) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    expected = np.sort(np.argsort(-np.abs(x.numpy()), kind="stable")[:k])
    assert topk_indices(x, k).tolist() == expected.tolist()


def test_topk_takes_infinities_first_and_leaves_its_input() -> None:
    x = torch.tensor([1.0, math.inf, 3.0, -math.inf])
    before = x.clone()
    assert topk_indices(x, 2).tolist() == [1, 3]
    assert torch.equal(x, before)
    assert topk_indices(torch.zeros(0), 1).numel() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_topk_gives_k_positions_whatever_the_vector_holds(dtype: torch.dtype) -> None:
    """NaN is the largest magnitude, before infinity; of several the lower index wins."""
    x = torch.tensor([1.0, math.nan, math.inf, -3.0, -math.nan, 0.0], dtype=dtype)
    assert [topk_indices(x, k).tolist() for k in (1, 2, 3, 4)] == [[1], [1, 4], [1, 2, 4], [1, 2, 3, 4]]
    assert topk_indices(torch.full((7,), math.nan, dtype=dtype), 3).tolist() == [0, 1, 2]


def test_nan_reaches_every_threshold() -> None:
    x = torch.tensor([1.0, math.nan, -math.inf])
    assert large_indices(x, 2.0).tolist() == [1, 2]
    assert definitions.threshold(x, 2.0, signs=True)[1].tolist() == [0.0, -2.0]


@pytest.mark.parametrize(("numel", "k"), [(0, 0), (1, 1), (5, 5), (5, 9), (100, 1), (100, 37)])
def test_randk_draws_k_ascending_places_without_replacement(numel: int, k: int) -> None:
    indices = randk_indices(Key(1).number, numel, k, CPU)
    assert indices.numel() == min(k, numel)
    assert bool((indices.diff() > 0).all())
    assert all(0 <= i < numel for i in indices.tolist())


def test_randk_takes_every_coordinate_with_probability_k_over_d() -> None:
    """4,000 draws of 3 of 12: each count is binomial(4000, 1/4); within five standard deviations; so are pairs."""
    draws, d, k = 4000, 12, 3
    hits, pairs = np.zeros(d), np.zeros((d, d))
    for step in range(draws):
        mask = np.zeros(d)
        mask[randk_indices(Key(2, step).number, d, k, CPU).numpy()] = 1
        hits += mask
        pairs += np.outer(mask, mask)
    p, q = k / d, k * (k - 1) / (d * (d - 1))
    assert np.abs(hits / draws - p).max() < 5 * math.sqrt(p * (1 - p) / draws)
    assert np.abs(pairs[np.triu_indices(d, 1)] / draws - q).max() < 5 * math.sqrt(q * (1 - q) / draws)


def test_large_indices_includes_the_threshold() -> None:
    assert large_indices(torch.tensor([0.5, -0.5, 0.49, 2.0]), 0.5).tolist() == [0, 1, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_qsgd_levels_surround_the_scaled_value_and_are_right_on_average(dtype: torch.dtype) -> None:
    numel, levels = 40_000, 4
    x = torch.full((numel,), -0.3, dtype=dtype)
    drawn = qsgd_levels(x, torch.ones(numel, dtype=dtype), levels, Key(1).number)
    assert set(drawn.tolist()) == {1, 2}
    assert abs(float(drawn.double().mean()) - 1.2) < 5 * math.sqrt(0.2 * 0.8 / numel)


def test_qsgd_levels_of_zero_norms_and_of_rounding_above_the_norm() -> None:
    x = torch.tensor([0.0, 1.0 + 1e-7, 1e-39])
    levels = qsgd_levels(x, torch.tensor([0.0, 1.0, 1e-39]), 255, Key(1).number)
    assert levels.tolist() == [0, 255, 255]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [1.0, -1.25, 3.0, 1e-20, 2.0**-127, 2.0**-140])
def test_natural_rounds_to_a_neighbouring_power_without_bias(value: float, dtype: torch.dtype) -> None:
    numel = 20_000
    x = torch.full((numel,), value, dtype=dtype)
    codes = natural_exponents(x, Key(4).number).double()
    drawn = torch.where(codes == 0, 0.0, torch.exp2(codes - 127))
    low = 2.0 ** math.floor(math.log2(abs(value)))
    low, high = (low, 2 * low) if low >= 2.0**-126 else (0.0, 2.0**-126)
    assert set(drawn.tolist()) <= {low, high}
    spread = math.sqrt((high - abs(value)) * (abs(value) - low))
    assert abs(float(drawn.mean()) - abs(value)) <= 5 * spread / math.sqrt(numel)


def test_natural_sends_zero_as_zero_and_caps_what_is_too_large() -> None:
    assert natural_exponents(torch.zeros(3), Key(1).number).tolist() == [0, 0, 0]
    assert natural_exponents(torch.tensor([1e300, 3e38], dtype=torch.float64), Key(1).number).tolist() == [254, 254]


@given(st.lists(st.integers(0, 9), max_size=5), st.integers(1, 12), st.sampled_from([1, 2]))
def test_block_norms_never_cross_a_piece(sizes: list[int], block: int, order: int) -> None:
    layout = Layout.of([(str(i), i, (size,)) for i, size in enumerate(sizes)])
    x = torch.arange(layout.numel, dtype=torch.float64) - 3
    norms, lengths = block_norms(x, layout, block, order), block_lengths(layout, block, CPU)
    blocks = [part for _, view in layout.views(x) if view.numel() for part in view.split(block)]
    assert lengths.tolist() == [part.numel() for part in blocks]
    assert block_count(layout, block) == len(blocks)
    assert norms.tolist() == pytest.approx([float(np.linalg.norm(part.numpy(), order)) for part in blocks])


@given(st.lists(st.booleans(), max_size=40))
def test_bits_come_back_in_the_fewest_bytes(bits: list[bool]) -> None:
    packed = pack_bits(torch.tensor(bits, dtype=torch.bool))
    assert packed.dtype == torch.uint8
    assert packed.numel() == math.ceil(len(bits) / 8)
    assert unpack_bits(packed, len(bits)).tolist() == bits


@given(st.integers(1, 33), st.data())
def test_codes_come_back_in_the_fewest_bytes(width: int, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, 2**width - 1), max_size=20))
    packed = pack_codes(torch.tensor(codes, dtype=torch.int64), width)
    assert packed.numel() == math.ceil(width * len(codes) / 8)
    assert unpack_codes(packed, width, len(codes)).tolist() == codes


def test_bits_are_written_lowest_first() -> None:
    assert pack_bits(torch.tensor([True, False, False, True])).tolist() == [0b1001]
    assert pack_codes(torch.tensor([5, 2]), 3).tolist() == [0b010101]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_first_nonfinite_names_the_piece(bad: float) -> None:
    layout = Layout.of([("a", 0, (2,)), ("b", 1, (0,)), ("c", 2, (3,))])
    x = torch.zeros(5)
    assert first_nonfinite(x, layout) == -1
    x[4] = bad
    assert first_nonfinite(x, layout) == 2
    x[1] = bad
    assert first_nonfinite(x, layout) == 0
    assert first_nonfinite(torch.zeros(0), Layout(())) == -1


@pytest.mark.parametrize("name", ["reference", "numba"])
@pytest.mark.parametrize(("width", "length"), [(0, 9), (3, 20), (7, 64), (7, 131)])
def test_positions_of_any_code_lie_within_bounds(name: str, width: int, length: int) -> None:
    """Too few marks, too many, not ascending or too far: whoever reads on before judging must not leave the vector."""
    generator, bound = torch.Generator().manual_seed(width), length << width >> 1
    for count in (1, 5, 9):
        for share in (0.02, 0.1, 0.5, 1.0):
            low = torch.randint(256, (math.ceil(count * width / 8),), generator=generator, dtype=torch.uint8)
            bitmap = pack_bits(torch.rand(length, generator=generator) < share)
            with backend(name):
                positions, marks, sound = unpack_positions(low, bitmap, width, length, count, bound)
            assert marks == int(unpack_bits(bitmap, length).sum())
            assert positions.shape == (count,)
            assert bool(((positions >= 0) & (positions < bound)).all())
            if sound and marks == count:
                assert bool((positions.diff() > 0).all())


@pytest.mark.parametrize("width", [0, 5])
def test_codes_of_positions_in_rows_are_read_row_by_row(width: int) -> None:
    """A GPU without Triton reads all ranks' positions by the definition: it once took no rows."""
    numel, length = 90, 3 + (89 >> width) + 1
    rows = torch.tensor([[0, 1, 89], [5, 40, 41], [7, 7, 9], [3, 5, 99]])
    codes = [pack_positions(row, width, length + 9) for row in rows]
    low, bitmap = (torch.stack([*part]) for part in zip(*codes, strict=True))
    bitmap[1, 0] ^= 1
    positions, marks, sound = definitions.unpack_positions(low, bitmap, width, length + 9, 3, numel)
    assert isinstance(marks, torch.Tensor)
    assert isinstance(sound, torch.Tensor)
    for i in range(len(rows)):
        one, held, fine = definitions.unpack_positions(low[i], bitmap[i], width, length + 9, 3, numel)
        assert torch.equal(positions[i], one)
        assert (int(marks[i]), bool(sound[i])) == (held, fine)
    assert (sound & (marks == 3)).tolist() == [True, False, False, False]

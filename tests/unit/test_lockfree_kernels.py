"""The parts of the lock-free engine: atomic additions, the tree of maxima, the heap, drawing, products, losses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from thinwire.linear import Loss
from thinwire.linear.losses import slope, value
from thinwire.linear.order import independent, shuffled
from thinwire.linear.rules import RANDOM, StepRule
from thinwire.linear.steps.choice import pop_, push_, send_above_, send_drawn_, send_largest_
from thinwire.linear.steps.dense_step import accumulate_all_, dense_product
from thinwire.linear.steps.kernel import add_float_
from thinwire.linear.steps.maxima import level_offsets, refresh_
from thinwire.linear.steps.sparse_step import accumulate_, forget_, sparse_product
from thinwire.linear.steps.state import COUNT, Private, Shared, private_state, shared_state
from thinwire.linear.steps.walk import CHUNK, take_
from thinwire.ops.reference import topk_indices

FLOATS = [np.float32, np.float64]


def states(d: int, dtype: type, **parts: bool) -> tuple[Private, Shared]:
    """Of one thread, with some of its parts."""
    shared = shared_state(np.zeros(d, dtype), np.zeros(0, dtype), 1, atomic=False, copies=False)
    none = dict.fromkeys(("tree", "heap", "marks", "row", "mean"), False)
    return private_state(shared, 0, 1, 0, **none | parts), shared


# --------------------------------------------------------------------------------------------------- several threads


@njit(nogil=True)
def add_many(x: Any, times: int, value: Any) -> None:
    for i in range(times):
        add_float_(x, i % x.size, value)


@pytest.mark.parametrize("dtype", FLOATS)
def test_no_addition_of_two_threads_is_lost(dtype: type) -> None:
    """Whole numbers add without rounding, so the sums are exact or something was lost."""
    cells, times = 4, 400_000
    x = np.zeros(cells, dtype)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda number: add_many(x, times, dtype(number)), [1, 3]))
    assert x.tolist() == [4 * times / cells] * cells


def test_every_step_is_taken_once() -> None:
    (_, shared), steps = states(1, np.float64), 1000 * CHUNK + 7

    def take(_: int) -> list[tuple[int, int]]:
        taken = []
        while True:
            begin, end = take_(shared, steps)
            if begin >= end:
                return taken
            taken.append((begin, end))

    with ThreadPoolExecutor(2) as pool:
        chunks = sorted(chunk for taken in pool.map(take, range(2)) for chunk in taken)
    assert chunks == [(begin, min(begin + CHUNK, steps)) for begin in range(0, steps, CHUNK)]


# ----------------------------------------------------------------------------------------------------------- the tree


@st.composite
def streams(draw: Any) -> tuple[int, int, list[tuple[list[int], list[float]]]]:
    """d, k, and sparse additions with many ties and cancellations."""
    d = draw(st.sampled_from([1, 2, 63, 64, 65, 500, 4096, 4097, 300_000]))
    near = st.integers(0, d - 1) | st.integers(max(0, d - 70), d - 1) | st.integers(0, min(d - 1, 3))
    number = st.sampled_from([0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 1e-30, -3.25])
    additions = st.lists(st.tuples(near, number), min_size=0, max_size=12, unique_by=lambda pair: pair[0])
    stream = draw(st.lists(additions, min_size=1, max_size=12))
    return d, draw(st.integers(1, min(d, 9))), [([j for j, _ in each], [g for _, g in each]) for each in stream]


@pytest.mark.parametrize("dtype", FLOATS)
@given(stream=streams())
def test_the_largest_of_a_changing_memory_are_those_of_brute_force(
    dtype: type, stream: tuple[int, int, list[tuple[list[int], list[float]]]]
) -> None:
    d, k, additions = stream
    private, shared = states(d, dtype, tree=True)
    memory, x = np.zeros(d, dtype), np.zeros(d, dtype)
    for columns, values in additions:
        accumulate_(np.array(columns, np.uint32), np.array(values, dtype), dtype(1), private, 0)
        send_largest_(shared, private, 0, k, dtype(1), 0.0)
        memory[columns] += np.array(values, dtype)
        chosen = topk_indices(torch.from_numpy(memory), k).numpy()
        x[chosen] -= memory[chosen]
        memory[chosen] = 0
        assert np.array_equal(private.memory[0, :d], memory)
        assert np.array_equal(shared.v, x)


@pytest.mark.parametrize("dtype", FLOATS)
@given(stream=streams(), falls=st.lists(st.sampled_from([1.0, 1.0, 0.999, 0.99, 0.5, 1e-3, 3.0]), min_size=12))
def test_what_reaches_a_moving_threshold_is_what_brute_force_finds(
    dtype: type, stream: tuple[int, int, list[tuple[list[int], list[float]]]], falls: list[float]
) -> None:
    d, _, additions = stream
    (private, shared), least = states(d, dtype, heap=True), dtype(2.5)
    memory, x = np.zeros(d, dtype), np.zeros(d, dtype)
    for (columns, values), fall in zip(additions, falls, strict=False):
        least *= dtype(fall)
        bits = np.array([least]).view(private.bits.dtype)[0]
        rows = np.array(columns, np.uint32), np.array(values, dtype)
        sent = send_above_(*rows, dtype(1), shared, private, 0, bits, dtype(1), 0.0)
        memory[columns] += rows[1]
        chosen = np.flatnonzero(np.abs(memory) >= least)
        x[chosen] -= memory[chosen]
        memory[chosen] = 0
        assert sent == len(chosen)
        assert np.array_equal(private.memory[0, :d], memory)
        assert np.array_equal(shared.v, x)


def test_rows_longer_than_a_block_and_a_heap_that_overflows() -> None:
    """200 entries that stay just below the threshold and are put into the heap in every step."""
    d, least = 200, np.float64(1.0)
    private, shared = states(d, np.float64, heap=True)
    columns, up = np.arange(d, dtype=np.uint32), np.full(d, np.nextafter(1.0, 0.0) / 256)
    bits = np.array([least]).view(np.int64)[0]
    for step in range(600):
        given = up * (256 if step == 0 else 1e-17)
        assert send_above_(columns, given, 1.0, shared, private, 0, bits, 1.0, 0.0) == 0
    assert private.heap[0, COUNT] <= private.keys.shape[1]
    fallen = np.array([np.nextafter(1.0, 0.0)]).view(np.int64)[0]
    assert send_above_(columns[:0], up[:0], 1.0, shared, private, 0, fallen, 1.0, 0.0) == d


@given(st.lists(st.integers(0, 50), max_size=60))
def test_the_heap_gives_its_keys_from_the_largest_down(numbers: list[int]) -> None:
    keys, places, heap = np.zeros(64, np.int64), np.zeros(64, np.int64), np.zeros(2, np.int64)
    for place, number in enumerate(numbers):
        push_(keys, places, heap, number, place)
    found = []
    while heap[COUNT]:
        assert numbers[places[0]] == keys[0]
        found.append(int(keys[0]))
        pop_(keys, places, heap)
    assert found == sorted(numbers, reverse=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("d", [1, 64, 129, 5000])
def test_a_dense_change_refreshes_the_tree(d: int, dtype: type) -> None:
    rng, (private, shared) = np.random.default_rng(d), states(d, dtype, tree=True)
    for _ in range(5):
        row = rng.normal(size=d).round(1).astype(dtype)  # rounded: many ties
        before = private.memory[0, :d].copy() + row
        accumulate_all_(row, dtype(1), dtype(0), shared.v, private.memory[0])
        refresh_(private.bits[0], private.maxima[0], private.offsets, private.mask, d)
        send_largest_(shared, private, 0, min(d, 7), dtype(1), 0.0)
        sent = np.flatnonzero(private.memory[0, :d] != before)
        expected = topk_indices(torch.from_numpy(before), min(d, 7)).numpy()
        assert sent.tolist() == expected[before[expected] != 0].tolist()


def test_forgetting_leaves_nothing() -> None:
    private, _ = states(5000, np.float64, tree=True)
    columns = np.array([0, 70, 4999], np.uint32)
    accumulate_(columns, np.array([1.0, 2.0, 3.0]), 1.0, private, 0)
    forget_(columns, private, 0)
    assert not private.memory.any()
    assert not private.maxima.any()


@pytest.mark.parametrize(("d", "levels"), [(1, 1), (64, 1), (65, 1), (4096, 1), (4097, 2), (262_144, 2), (262_145, 3)])
def test_the_highest_level_is_one_scan(d: int, levels: int) -> None:
    offsets = level_offsets(d)
    assert len(offsets) - 1 == levels
    assert offsets[-1] - offsets[-2] == 64


# --------------------------------------------------------------------------------------------------- random choices


def drawn(d: int, k: int, probability: float, t: int, key: int = 1) -> list[int]:
    """What a memory of ones sends at step t."""
    private, shared = states(d, np.float64, marks=True)
    private.memory[:] = 1
    send_drawn_(shared, private, 0, StepRule(RANDOM, True, k, probability), np.uint64(key), t, 1.0, 0.0)
    return np.flatnonzero(shared.v).tolist()


def test_masks_have_k_coordinates_each_equally_likely() -> None:
    d, k, draws = 12, 5, 3000
    masks = [drawn(d, k, 1.0, t) for t in range(draws)]
    assert {len(mask) for mask in masks} == {k}
    counts = np.bincount([j for mask in masks for j in mask], minlength=d)
    assert np.abs(counts - draws * k / d).max() < 5 * np.sqrt(draws * k / d * (1 - k / d))


def test_masks_of_two_steps_and_two_seeds_differ() -> None:
    """t9: whichever threads take two steps, they never draw the same stream."""
    assert len({tuple(drawn(100_000, 5, 1.0, t, key)) for t in range(20) for key in (1, 2)}) == 40


def test_below_one_k_is_a_probability() -> None:
    draws, p = 4000, 0.3
    sizes = [len(drawn(50, 1, p, t)) for t in range(draws)]
    assert set(sizes) == {0, 1}
    assert abs(sum(sizes) - draws * p) < 5 * np.sqrt(draws * p * (1 - p))


def test_all_coordinates_can_be_drawn() -> None:
    assert drawn(70, 70, 1.0, 0) == list(range(70))


def test_orders() -> None:
    walk = shuffled(7, 3, 0, 21).reshape(3, 7)
    assert all(sorted(epoch) == list(range(7)) for epoch in walk.tolist())
    assert len({tuple(epoch) for epoch in walk.tolist()}) > 1
    assert shuffled(7, 3, 5, 17).tolist() == walk.ravel()[5:17].tolist()
    draws = independent(7, 3, 0, 7000)
    assert np.abs(np.bincount(draws) - 1000).max() < 5 * np.sqrt(1000)
    assert independent(7, 3, 100, 200).tolist() == draws[100:200].tolist()


# ------------------------------------------------------------------------------------------------- products and losses


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("d", [1, 3, 64, 200])
def test_products(d: int, dtype: type) -> None:
    rng = np.random.default_rng(d)
    a, x = rng.normal(size=d).astype(dtype), rng.normal(size=d).astype(dtype)
    bound = d * np.finfo(dtype).eps * float(np.abs(a) @ np.abs(x))
    exact = float(a.astype(np.float64) @ x.astype(np.float64))
    assert abs(dense_product(a, x) - exact) <= bound
    assert abs(sparse_product(np.arange(d, dtype=np.uint32), a, x) - exact) <= bound


@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize("y", [-1.0, 1.0])
def test_slopes_are_derivatives(loss: Loss, y: float) -> None:
    h = 1e-6
    for z in (-30.0, -1.5, 0.2, 3.0):
        numeric = (value(int(loss), z + h, y) - value(int(loss), z - h, y)) / (2 * h)
        assert slope(int(loss), z, y) == pytest.approx(numeric, abs=1e-6 * max(1.0, abs(z)))


def test_the_logistic_loss_does_not_overflow() -> None:
    assert value(int(Loss.LOGISTIC), -1e4, 1.0) == 1e4
    assert slope(int(Loss.LOGISTIC), 1e4, 1.0) == 0
    assert slope(int(Loss.LOGISTIC), -1e4, 1.0) == -1

"""The lock-free engine: equal to the simulation, nothing lost by any number of threads, and what it refuses."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from tests.unit.lockfree_data import matrix, samples

from thinwire import HardThreshold, MemSGD, Simulation, TopK
from thinwire.compressors import Compressor
from thinwire.errors import ConfigError, DataError, OversubscriptionWarning
from thinwire.linear import (
    Bottou,
    Constant,
    Decoupled,
    Final,
    InMemory,
    LockFree,
    Samples,
    Shifted,
    Theory,
    Uniform,
    Weighted,
    independent,
    shift_for,
    weight_sum,
)
from thinwire.linear.losses import slope
from thinwire.linear.steps.dense_step import dense_product
from thinwire.linear.steps.plan import SMALLEST_SCALE
from thinwire.linear.steps.sparse_step import sparse_product

EPS = np.finfo(np.float64).eps
RULES = [
    "plain(identity())", "memsgd(topk(count=3))", "memsgd(randk(count=3))", "memsgd(randk(count=0.5))",
    "memsgd(threshold(0.3))", "plain(topk(count=3))", "plain(randk(count=3))", "plain(threshold(0.3))",
    "plain(qsgd(4, 150))",
]  # fmt: skip
MEMORIES = [rule for rule in RULES if rule.startswith("memsgd")]


def product(data: Samples, i: int, x: Any) -> float:
    """⟨a_i, x⟩ as the engine adds it up."""
    if data.dense:
        return float(dense_product(data.rows[i], x))
    first, last = data.rows.indptr[i : i + 2]
    return float(sparse_product(data.rows.indices[first:last].astype(np.uint32), data.rows.data[first:last], x))


def row(data: Samples, i: int) -> Any:
    return data.rows[i] if data.dense else data.rows[[i]].toarray()[0]


def simulated(
    data: Samples, compressor: Compressor, steps: int, schedule: Any, signal_of: Callable[..., tuple[Any, float]]
) -> Any:
    """x after steps of the project's simulation with one worker."""
    x = torch.zeros(data.d, dtype=torch.float64)
    sim = Simulation({"x": x}, MemSGD(compressor), workers=1)
    order = independent(len(data), 0, 0, steps)
    for t, eta in enumerate(schedule(np.arange(steps, dtype=np.float64))):
        i = order[t]
        derivative = slope(int(data.loss), product(data, i, x.numpy()), data.targets[i])
        given, size = signal_of(float(eta), derivative, row(data, i), x.numpy())
        result = sim.exchange([{"x": torch.from_numpy(given)}], {"x": size})
        x.add_(result["x"], alpha=-size)
    return x.numpy()


# ------------------------------------------------------------------------------------------- sequential: bit for bit


@pytest.mark.parametrize("loss", ["logistic", "squared", "hinge"])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("k", [1, 7])
def test_one_thread_equals_the_simulation_bit_for_bit(k: int, sparse: bool, loss: str) -> None:
    """The paper's memory, in units of x: the simulation is given η g and a step size of one."""
    data, schedule = samples(sparse=sparse, loss=loss), Bottou(1.3, 0.01)
    engine = LockFree(data, f"memsgd(topk(count={k}))", schedule, order=independent)
    engine.run(300)
    theirs = simulated(data, TopK(count=k), 300, schedule, lambda eta, slope, a, x: ((eta * slope) * a, 1.0))
    assert np.array_equal(engine.x, theirs)
    assert engine.x.any()


@pytest.mark.parametrize("sparse", [True, False])
def test_a_regulariser_in_the_memory_equals_the_simulation_bit_for_bit(sparse: bool) -> None:
    data, schedule, strength = samples(sparse=sparse), Bottou(1.3, 0.01), 0.05
    rule = "memsgd(topk(count=3))"
    engine = LockFree(data, rule, schedule, order=independent, regulariser=InMemory(strength))
    engine.run(300)
    theirs = simulated(
        data, TopK(count=3), 300, schedule, lambda eta, slope, a, x: ((eta * slope) * a + (eta * strength) * x, 1.0)
    )
    assert np.array_equal(engine.x, theirs)


def halving(t: Any) -> Any:
    """Powers of two, which no product rounds: half as large after every 60 steps."""
    return 0.5 ** (1 + t // 60)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("compressor", [TopK(count=3), HardThreshold(0.3), HardThreshold(1.5)])
def test_steps_of_powers_of_two_equal_the_simulation_of_plain_gradients_bit_for_bit(
    compressor: Compressor, sparse: bool
) -> None:
    """As η falls so does a threshold in units of x: what it leaves behind is sent though no row touches it."""
    data = samples(sparse=sparse)
    engine = LockFree(data, MemSGD(compressor), halving, order=independent)
    engine.run(300)
    theirs = simulated(data, compressor, 300, halving, lambda eta, slope, a, x: (slope * a, eta))
    assert np.array_equal(engine.x, theirs)
    assert engine.x.any()
    assert engine.memory.any()


def test_a_threshold_that_fell_is_reached_by_what_no_row_touches() -> None:
    """Two columns; the second is touched once, and its memory of 0.4 waits for η τ to fall to it."""
    data = Samples.of(csr_matrix([[1.0, 0.0], [0.0, 0.8]]), [0.0, -1.0], loss="squared")

    def second_row_first(samples: int, seed: int, begin: int, end: int) -> Any:
        return (np.arange(begin, end) == 0).astype(np.int64)

    engine = LockFree(data, "memsgd(threshold(1.0))", lambda t: np.where(t < 3, 0.5, 0.25), order=second_row_first)
    engine.run(3)
    assert (engine.x.tolist(), engine.memory.tolist(), engine.written) == ([0.0, 0.0], [[0.0, 0.4]], 0)
    engine.run(1)
    assert (engine.x.tolist(), engine.memory.tolist(), engine.written) == ([0.0, -0.4], [[0.0, 0.0]], 1)


def test_a_memory_in_gradient_units_agrees_when_it_is_carried_over() -> None:
    """t6: the memory here never sees a change of η; the simulation's is multiplied by the ratio of step sizes."""
    data, schedule, steps = samples(), Shifted(2.0, 0.5, 3.0), 200
    engine = LockFree(data, "memsgd(topk(count=3))", schedule, order=independent)
    engine.run(steps)
    theirs = simulated(data, TopK(count=3), steps, schedule, lambda eta, slope, a, x: (slope * a, eta))
    assert np.abs(engine.x - theirs).max() <= steps * 4 * EPS * max(1.0, np.abs(theirs).max())


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("regulariser", [Decoupled(0.01), InMemory(0.01)])
def test_with_k_equal_to_d_it_is_sgd_bit_for_bit(sparse: bool, regulariser: Decoupled | InMemory) -> None:
    """t1."""
    engines = [
        LockFree(samples(sparse=sparse), rule, Bottou(0.7, 0.01), regulariser=regulariser)
        for rule in ("memsgd(topk(count=150))", "memsgd(identity())", "plain(identity())")
    ]
    for engine in engines:
        engine.run(200)
    assert np.array_equal(engines[0].x, engines[2].x)
    assert np.array_equal(engines[1].x, engines[2].x)
    assert not engines[0].memory.any()


@pytest.mark.parametrize("rule", RULES)
def test_one_thread_is_deterministic_and_seeds_differ(rule: str) -> None:
    runs = []
    for seed in (0, 0, 1):
        engine = LockFree(samples(), rule, Bottou(1.0, 0.01), seed=seed)
        engine.run(150)
        engine.run(150)
        runs.append(engine.x.copy())
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("rule", [rule for rule in RULES if "qsgd" not in rule])
def test_both_kinds_of_rows_and_both_precisions_agree(rule: str, sparse: bool) -> None:
    steps, results = 100, []
    for dtype in (np.float64, np.float32):
        data = samples(sparse=sparse, loss="squared", dtype=dtype)
        results.append(LockFree(data, rule, Bottou(0.5, 0.01), regulariser=Decoupled(0.01)))
        results[-1].run(steps)
    assert results[1].x.dtype == np.float32
    gap = np.abs(results[0].x - results[1].x).max()
    assert gap <= steps * 16 * np.finfo(np.float32).eps * max(1.0, np.abs(results[0].x).max())


# ------------------------------------------------------------------------------------------------ nothing is lost (t3)


def virtual(engine: LockFree) -> Any:
    """x − Σ m_w."""
    return engine.x - engine.memory.sum(axis=0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rule", MEMORIES)
@pytest.mark.parametrize("sparse", [True, False])
def test_the_virtual_iterate_takes_all_steps_of_sgd(sparse: bool, rule: str, threads: int) -> None:
    """x_T − Σ m_w = x_0 − Σ_t c_t a_t, whatever the threads did: c_t is what the row of step t was multiplied with."""
    data, start, steps = samples(sparse=sparse), np.linspace(-1, 1, 150), 20_000
    engine = LockFree(data, rule, Bottou(1.0, 0.01), threads=threads, start=start)
    engine.run(steps)
    assert engine.last is not None
    assert len(engine.last.samples) == engine.step == steps
    dense = data.rows if data.dense else data.rows.toarray()
    moves = engine.last.coefficients[:, None] * dense[engine.last.samples]
    bound = 4 * steps * EPS * (np.abs(moves).sum(0) + 1)
    assert (np.abs(virtual(engine) - (start - moves.sum(0))) <= bound).all()
    assert np.abs(engine.memory).max() > bound.max()  # else the law would say little


@pytest.mark.parametrize(
    "rule", ["plain(identity())", "memsgd(topk(count=4))", "memsgd(randk(count=4))", "memsgd(threshold(0.5))"]
)
def test_not_one_write_is_lost_where_threads_meet(rule: str) -> None:
    """Eight coordinates, one cache line: without atomic additions, or copies, some of these writes go missing."""
    data, steps = samples(d=8, sparse=False, density=1.0), 60_000
    engine = LockFree(data, rule, Constant(0.5), threads=2)
    engine.run(steps)
    assert engine.last is not None
    moves = engine.last.coefficients[:, None] * data.rows[engine.last.samples]
    bound = 4 * steps * EPS * np.abs(moves).sum(0)
    assert (np.abs(virtual(engine) + moves.sum(0)) <= bound).all()


@pytest.mark.parametrize("regulariser", [Decoupled(0.02), InMemory(0.02)])
def test_the_virtual_iterate_takes_regularised_steps(regulariser: Decoupled | InMemory) -> None:
    """x̃_{t+1} = x̃_t − η_t (∇ℓ + λ x_t), step by step."""
    data, schedule, steps = samples(), Bottou(1.0, 0.02), 200
    engine = LockFree(data, "memsgd(topk(count=2))", schedule, regulariser=regulariser, order=independent)
    followed = virtual(engine)
    for t in range(steps):
        before, eta = engine.x.copy(), float(schedule(np.array([float(t)]))[0])
        engine.run(1)
        assert engine.last is not None
        i = engine.last.samples[0]
        gradient = slope(int(data.loss), product(data, i, before), data.targets[i]) * row(data, i) + 0.02 * before
        followed = followed - eta * gradient
        assert np.abs(virtual(engine) - followed).max() <= 16 * (t + 1) * EPS


def test_flushing_gives_the_virtual_iterate() -> None:
    engine = LockFree(samples(), "memsgd(topk(count=1))", Constant(1.0), threads=2)
    engine.run(1000)
    expected = virtual(engine)
    engine.flush_()
    assert np.abs(engine.x - expected).max() <= 8 * EPS
    assert not engine.memory.any()
    engine.run(1000)
    assert engine.memory.any()


def test_memories_take_turns_on_one_thread() -> None:
    """With as many memories as steps, each has only its own sample's remainder."""
    data = samples(n=5, density=1.0)
    engine = LockFree(data, "memsgd(topk(count=1))", Constant(0.5), memories=5)
    engine.run(5)
    assert engine.memory.shape == (5, 150)
    assert [int((memory != 0).sum()) for memory in engine.memory] == [149] * 5
    assert engine.written == 5


# ------------------------------------------------------------------------------------------------ averages, scales (t5)


@pytest.mark.parametrize("average", [Uniform(), Weighted(30.0)])
@pytest.mark.parametrize("regulariser", [Decoupled(0.0), Decoupled(0.05), InMemory(0.05)])
@pytest.mark.parametrize("rule", ["memsgd(topk(count=2))", "plain(identity())"])
def test_means_cost_k_and_are_those_of_all_iterates(
    rule: str, regulariser: Decoupled | InMemory, average: Uniform | Weighted
) -> None:
    steps = 300
    kept: dict[str, Any] = {"regulariser": regulariser, "intercept": 0.5}
    engine = LockFree(samples(), rule, Bottou(1.0, 0.05), average=average, **kept)
    engine.run(steps)
    slow = LockFree(samples(), rule, Bottou(1.0, 0.05), **kept)
    iterates, intercepts = [], []
    for _ in range(steps):
        iterates.append(slow.x.copy())
        intercepts.append(slow.intercept)
        slow.run(1)
    weights = average.weights(np.arange(steps, dtype=np.float64))
    mean = weights @ np.array(iterates) / weights.sum()
    assert np.abs(engine.estimate - mean).max() <= 64 * steps * EPS * np.abs(iterates).max()
    assert abs(engine.estimated_intercept - weights @ intercepts / weights.sum()) <= 64 * steps * EPS
    assert np.abs(engine.x - slow.x).max() <= 64 * steps * EPS
    assert np.abs(engine.estimate - engine.x).max() > 1e-3


def virtual_mean(engine: LockFree, average: Uniform | Weighted) -> tuple[Any, float]:
    """The mean of x̃_t = −Σ_{u<t} c_u a_u in the order of the steps, whichever thread took them, and its rounding."""
    assert engine.last is not None
    moves = engine.last.coefficients[:, None] * engine.samples.rows.toarray()[engine.last.samples]
    iterates = np.vstack([np.zeros(engine.samples.d), -np.cumsum(moves, axis=0)[:-1]])
    weights = average.weights(np.arange(len(moves), dtype=np.float64))
    return weights @ iterates / weights.sum(), 4 * len(moves) * EPS * np.abs(moves).sum(0).max()


@pytest.mark.parametrize("average", [Uniform(), Weighted(30.0)])
def test_means_of_two_threads_are_those_of_all_iterates(average: Uniform | Weighted) -> None:
    """Without a memory x_t is the virtual iterate."""
    engine = LockFree(samples(), "plain(identity())", Bottou(1.0, 0.01), average=average, threads=2)
    engine.run(5000)
    mean, rounding = virtual_mean(engine, average)
    assert np.abs(engine.estimate - mean).max() <= rounding


@pytest.mark.parametrize("average", [Uniform(), Weighted(30.0)])
def test_means_of_two_threads_with_memories_are_those_of_all_iterates(average: Uniform | Weighted) -> None:
    """No memory reaches η τ in a coordinate, so x_t is within 2 η τ of the virtual iterate, and so are the means."""
    eta, tau = 0.25, 1e-3
    engine = LockFree(samples(), f"memsgd(threshold({tau}))", Constant(eta), average=average, threads=2)
    engine.run(5000)
    mean, rounding = virtual_mean(engine, average)
    bound = 2 * eta * tau + rounding
    assert np.abs(engine.estimate - mean).max() <= bound
    assert np.abs(engine.estimate - engine.x).max() > 10 * bound  # else the last iterate would do


@pytest.mark.parametrize(
    ("schedule", "closed"),
    [
        (Shifted(2, 0.1, 50), lambda t: 49 * 48 / ((t + 49) * (t + 48))),
        (Bottou(2, 0.1), lambda t: np.where(t > 0, 0.8 / (1 + 0.2 * (t - 1)), 1.0)),
        (Constant(0.5), lambda t: 0.95**t),
    ],
)
def test_scales_have_their_closed_forms(schedule: Any, closed: Callable[[Any], Any]) -> None:
    engine = LockFree(samples(), "plain(identity())", schedule, regulariser=Decoupled(0.1))
    plan = engine.planned(0, 100)
    assert np.allclose(plan.scale, closed(np.arange(101.0)), rtol=100 * 4 * EPS)


def test_the_sum_of_weights_has_its_closed_form() -> None:
    for shift, steps in ((1.0, 1), (7.5, 10), (2000.0, 1000)):
        assert weight_sum(shift, steps) == pytest.approx(((shift + np.arange(steps)) ** 2).sum(), rel=steps * EPS)


def test_v_begins_anew_before_the_scale_vanishes() -> None:
    """λη = 0.9: after ten steps the scale would be 1e-10."""
    data, schedule = samples(), Constant(9.0)
    engine = LockFree(data, "plain(identity())", schedule, regulariser=Decoupled(0.1))
    assert engine.planned(0, 100).scale[-1] < SMALLEST_SCALE[np.dtype(np.float64)] < engine.planned(0, 100).scale[-2]
    engine.run(100)
    slow = LockFree(data, "plain(identity())", schedule, regulariser=Decoupled(0.1))
    for _ in range(100):
        slow.run(1)
    assert np.abs(engine.x - slow.x).max() <= 1e4 * EPS * np.abs(slow.x).max()


def test_schedules() -> None:
    t = np.array([0.0, 8.0])
    assert Theory(mu=2, shift=8)(t).tolist() == [0.5, 0.25]
    assert Shifted(gamma=2, strength=0.5, shift=8)(t).tolist() == [0.5, 0.25]
    assert Bottou(initial=1, strength=0.125)(t).tolist() == [1.0, 0.5]
    assert shift_for(d=100, k=4) == 25


# -------------------------------------------------------------------------------------------- weights and the intercept


def test_weights_are_repetitions_of_samples() -> None:
    data = samples(n=20, loss="squared")
    weights = np.arange(20) % 3.0
    weighted = Samples.of(data.rows, data.targets, loss="squared", weights=weights)
    often = np.repeat(np.arange(20), weights.astype(int))
    repeated = Samples.of(data.rows[often], data.targets[often], loss="squared")
    x = np.linspace(0, 1, data.d)
    assert weighted.mean_loss(x) * 20 == pytest.approx(repeated.mean_loss(x) * len(often))
    engine = LockFree(weighted, "plain(identity())", Constant(0.1), order=lambda n, seed, begin, end: np.array([5, 3]))
    engine.run(2)
    double = LockFree(data, "plain(identity())", Constant(0.2), order=lambda n, seed, begin, end: np.array([5]))
    double.run(1)
    assert np.array_equal(engine.x, double.x)  # sample 5 weighs two, sample 3 nothing


def test_the_intercept_is_a_column_of_ones_that_is_neither_compressed_nor_regularised() -> None:
    data = samples(loss="squared")
    engine = LockFree(data, "plain(identity())", Constant(0.25), intercept=1.0, start_intercept=0.5)
    engine.run(100)
    ones = Samples.of(csr_matrix(np.hstack([data.rows.toarray(), np.ones((60, 1))])), data.targets, loss="squared")
    other = LockFree(ones, "plain(identity())", Constant(0.25), start=[*[0.0] * 150, 0.5])
    other.run(100)
    assert abs(engine.intercept - other.x[-1]) <= 1e3 * EPS
    assert np.abs(engine.x - other.x[:-1]).max() <= 1e3 * EPS


# ------------------------------------------------------------------------------------------- running, looking, stopping


def test_snapshots_are_taken_where_they_were_asked_for() -> None:
    engine = LockFree(samples(), "memsgd(topk(count=2))", Bottou(1.0, 0.01), regulariser=Decoupled(0.01))
    run = engine.run(250, every=100)
    assert [snapshot.step for snapshot in run.snapshots] == [0, 100, 200, 250]
    assert run.snapshots[-1].loss == engine.loss() < run.losses[0] == pytest.approx(np.log(2))
    assert all(one.seconds < other.seconds for one, other in pairwise(run.snapshots))
    assert run.snapshots[-1].written == engine.written == 500
    assert run.stopped == "steps"


def test_a_run_ends_at_its_target_and_where_the_watcher_says_so() -> None:
    engine = LockFree(samples(), "memsgd(topk(count=2))", Bottou(1.0, 0.01))
    run = engine.run(100_000, every=50, target=0.5)
    assert run.stopped == "target"
    assert run.losses[-1] <= 0.5 < run.losses[-2]
    watched = engine.run(100_000, every=10, watch=lambda now: now.step >= engine.last.begin + 20)  # type: ignore[union-attr]
    assert watched.stopped == "watch"


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_keeps_the_model(threads: int) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # torch's launcher leaves one of its own
    try:
        _interrupt(threads)
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(threads: int) -> None:
    engine = LockFree(samples(), "memsgd(topk(count=2))", Bottou(0.5, 0.01), threads=threads)
    engine.run(100)  # compiles
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    run = engine.run(10**12, every=10**11)
    timer.join()
    assert run.stopped == "interrupted"
    assert 100 < engine.step < 10**9
    assert run.snapshots[-1].step == engine.step
    assert engine.loss() < np.log(2)
    assert engine.run(1000, every=1000).stopped == "steps"  # and it can go on


def test_it_goes_on_with_other_samples() -> None:
    first, second = samples(seed=0), samples(seed=5)
    engine = LockFree(first, "memsgd(topk(count=2))", Constant(0.5))
    engine.run(100)
    x, memory = engine.x.copy(), engine.memory
    engine.feed_(second)
    assert np.array_equal(engine.x, x)
    assert np.array_equal(engine.memory, memory)
    engine.run(1)
    assert engine.step == 101
    with pytest.raises(ConfigError, match="cannot be followed by"):
        engine.feed_(samples(d=151))


@pytest.mark.parametrize("rule", ["plain(identity())", *MEMORIES, "plain(qsgd(4, 150))"])
@pytest.mark.parametrize("sparse", [True, False])
def test_two_threads_come_as_far_as_one(sparse: bool, rule: str) -> None:
    """The two agree within a tenth of what was gained: only the order of writes differs, and the shift a."""
    strength, losses = 0.005, []
    for threads in (1, 2):
        schedule = Shifted(2.0, strength, shift_for(150, 0.5, threads))
        engine = LockFree(samples(n=200, sparse=sparse), rule, schedule, threads=threads,
                          regulariser=Decoupled(strength))  # fmt: skip
        losses += engine.run(20_000, every=20_000).losses
    start, one, _, two = losses
    assert start - one > 0.1
    assert abs(two - one) < 0.1 * (start - one)


def test_hogwild_writes_may_go_without_atomics() -> None:
    engine = LockFree(samples(), "plain(identity())", Bottou(0.5, 0.01), threads=2, atomic=False)
    assert engine.run(5000, every=5000).losses[-1] < 0.5


# ----------------------------------------------------------------------------------------------------------- bad input


def bad(change: Callable[[Any], Any]) -> Any:
    rows = matrix(4, 3, 1.0)
    return change(rows)


@pytest.mark.parametrize(
    ("rows", "targets", "weights", "problem"),
    [
        (np.full((2, 3), np.nan), [1, -1], None, "NaN or infinity: impute"),
        (csr_matrix([[np.inf, 0]]), [1], None, "NaN or infinity"),
        (np.ones((2, 3)), [1, -1, 1], None, r"targets have shape \(3,\); 2 rows take a vector of 2"),
        (np.ones((2, 3)), [1, 0], None, "labels -1 and \\+1, got 0"),
        (np.ones((2, 3)), [1, np.nan], None, "targets hold NaN"),
        (np.ones((2, 3)), [1, -1], [1, -2], "weights must be at least 0, got -2"),
        (np.ones(3), [1, 1, 1], None, r"rows must be a matrix .* got shape \(3,\)"),
        (np.ones((0, 3)), [], None, r"at least one sample"),
    ],
)
def test_bad_samples_are_refused(rows: Any, targets: Any, weights: Any, problem: str) -> None:
    with pytest.raises((DataError, ConfigError), match=problem):
        Samples.of(rows, targets, weights=weights)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"rule": "memsgd(topk(count=151))"}, "more than the 150 coordinates"),
        ({"rule": "memsgd(randk(count=151))"}, "more than the 150 coordinates"),
        ({"rule": "ef21(topk(count=1))"}, "the lock-free engine runs memsgd or plain"),
        ({"rule": "memsgd(sign(8))"}, "the lock-free engine runs memsgd or plain"),
        ({"rule": "memsgd(topk(count=1), decay=0.9)"}, "without options"),
        ({"rule": "memsgd(topk(count=1), memory=int8)"}, "without options"),
        ({"rule": "plain(qsgd(4, 8))"}, r"write qsgd\(4, 150\)"),
        ({"threads": 0}, "threads must be a whole number of at least 1, got 0"),
        ({"threads": 1.5}, "a whole number of at least 1, got 1.5"),
        ({"threads": 2, "memories": 3}, "each of 2 threads has one memory, got memories=3"),
        ({"intercept": -1.0}, "must be at least 0"),
        ({"start": np.zeros(3)}, "start must be 150 finite numbers"),
        ({"schedule": Shifted(2, 0.1, 1), "regulariser": Decoupled(0.1)}, "needs η λ < 1, got η_0 λ = 2.*InMemory"),
        ({"schedule": lambda t: np.zeros(len(t))}, "step sizes must be finite and positive, got η_0 = 0"),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, Any], problem: str) -> None:
    given = {"rule": "memsgd(topk(count=1))", "schedule": Constant(0.1)} | arguments
    rule, schedule = given.pop("rule"), given.pop("schedule")
    with pytest.raises(ConfigError, match=problem):
        LockFree(samples(), rule, schedule, **given)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Theory(mu=1.0, shift=1.0), "above 1, got 1.0"),
        (lambda: Shifted(2, 0.1, 0), "the shift a must be a finite number above 0, got 0"),
        (lambda: Shifted(2, 0.1, -3), "above 0, got -3"),
        (lambda: Shifted(2, 0.0, 5), "λ must be a finite number above 0"),
        (lambda: Bottou(1.0, -1.0), "at least 0, got -1.0"),
        (lambda: Constant(float("nan")), "got nan"),
        (lambda: Weighted(0.0), "above 0, got 0.0"),
        (lambda: Decoupled(-1.0), "at least 0, got -1.0"),
        (lambda: shift_for(10, 0), "k must be a finite number above 0, got 0"),
        (lambda: Samples.of(np.ones((1, 1)), [1.0], loss="cubic"), "logistic, squared, hinge, got 'cubic'"),
    ],
)
def test_bad_values_are_refused(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schedule": lambda t: np.where(t < 5, 0.1, -0.1)}, "finite, positive size, got -0.1 at step 5"),
        ({"schedule": lambda t: np.where(t < 5, 0.1, np.nan)}, "got nan at step 5"),
        ({"schedule": lambda t: np.full(len(t) + 1, 0.1)}, r"each of 10 steps .* an array of shape \(11,\)"),
        ({"order": lambda n, seed, begin, end: np.full(end - begin, n)}, "among 30 samples, got 30 to 30"),
        ({"order": lambda n, seed, begin, end: np.full(end - begin, -1)}, "got -1 to -1"),
        ({"order": lambda n, seed, begin, end: np.zeros(end - begin)}, "10 whole numbers .* got float64"),
        ({"order": lambda n, seed, begin, end: np.zeros(3, int)}, r"got int64 of \(3,\)"),
    ],
)
def test_schedules_and_orders_are_looked_at_as_they_go(change: dict[str, Any], problem: str) -> None:
    given = {"schedule": Constant(0.1)} | change
    engine = LockFree(samples(n=30), "memsgd(topk(count=1))", given.pop("schedule"), **given)
    with pytest.raises(ConfigError, match=problem):
        engine.run(10)


def test_more_threads_than_cores_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the cores that this process may use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)
    with pytest.warns(OversubscriptionWarning, match="2 threads on 1 cores"):
        LockFree(samples(), "memsgd(topk(count=1))", Constant(0.1), threads=2)


def test_a_target_needs_snapshots() -> None:
    engine = LockFree(samples(), "memsgd(topk(count=1))", Constant(0.1))
    for asked in ({"target": 0.6}, {"watch": lambda now: True}):
        with pytest.raises(ConfigError, match="target and watch look at snapshots"):
            engine.run(10, **asked)


def test_a_run_of_bad_length_is_refused() -> None:
    engine = LockFree(samples(), "memsgd(topk(count=1))", Constant(0.1), average=Final())
    for steps, every in ((-1, None), (5, 0)):
        with pytest.raises(ConfigError, match="steps >= 0 and every >= 1"):
            engine.run(steps, every=every)


def test_integers_and_duplicates_are_taken_as_they_are_meant() -> None:
    twice = csr_matrix((np.array([1, 2, 3]), np.array([0, 0, 1]), np.array([0, 3])), shape=(1, 2))
    data = Samples.of(twice, [1.0])
    assert data.dtype == np.float64
    assert data.rows.toarray().tolist() == [[3.0, 3.0]]
    assert len(data.compiled.columns) == 2
    assert replace(data, weights=np.zeros(1)).mean_loss(np.ones(2)) == 0

"""Mem-SGD against the paper's algorithm 1, which keeps its memory in update units."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.paper import transcriptions as paper
from tests.paper.runs import (
    EPS,
    STEPS,
    WORKERS,
    D,
    Quadratics,
    Vector,
    assert_close,
    assert_moved,
    constant,
    cosine,
    decay,
    halving,
    ours,
    states,
    tolerance,
)

from thinwire import Compressor, HardThreshold, Key, MemSGD, Plain, RandK, ScaledSign, Simulation, Strom, TopK
from thinwire.ops import randk_indices

K = 3


def drawn(k: int, *, shared: bool) -> paper.Compress:
    """rand_k with thinwire's masks, taken as given data."""

    def compress(v: Vector, t: int, i: int) -> Vector:
        key = Key(seed=5, step=t, worker=i)
        number = (key.shared() if shared else key).at(0).number
        return paper.keep(v, randk_indices(number, v.size, k, torch.device("cpu")).numpy())

    return compress


@pytest.mark.parametrize("step", [cosine, decay], ids=["cosine", "step decay"])
def test_memory_in_gradient_units_equals_memory_in_update_units_under_any_schedule(
    step: Callable[[int], float],
) -> None:
    problem = Quadratics()
    theirs, _ = paper.mem_sgd(problem.gradient, problem.start, WORKERS, paper.top(K), step, STEPS)
    mine = ours(MemSGD(TopK(count=K)), problem.gradient, problem.start, step)
    assert_moved(mine)
    assert_close(mine, theirs)


def test_steps_of_powers_of_two_give_the_papers_iterates_bit_for_bit() -> None:
    problem = Quadratics()
    theirs, _ = paper.mem_sgd(problem.gradient, problem.start, WORKERS, paper.top(K), halving, STEPS)
    assert np.array_equal(ours(MemSGD(TopK(count=K)), problem.gradient, problem.start, halving), theirs)


@pytest.mark.parametrize("step", [halving, cosine], ids=["halving", "cosine"])
@pytest.mark.parametrize("forgets", [0.5, 0.95])
def test_a_memory_that_decays(forgets: float, step: Callable[[int], float]) -> None:
    problem = Quadratics()
    theirs, kept = paper.mem_sgd(problem.gradient, problem.start, WORKERS, paper.top(K), step, STEPS, forgets)
    memories: list[list[Vector]] = []
    mine = ours(
        MemSGD(TopK(count=K), decay=forgets),
        problem.gradient,
        problem.start,
        step,
        watch=lambda simulation: memories.append(states(simulation, "error")),
    )
    whole, _ = paper.mem_sgd(problem.gradient, problem.start, WORKERS, paper.top(K), step, STEPS)
    assert_moved(mine)
    assert_close(mine, theirs)
    assert float(np.abs(step(STEPS - 1) * np.array(memories[-1]) - kept).max()) <= tolerance(theirs)
    assert float(np.abs(theirs - whole).max()) > 0.01


@pytest.mark.parametrize("shared", [False, True], ids=["own masks", "shared masks"])
def test_rand_k(shared: bool) -> None:
    problem = Quadratics()
    k = 10
    compress = drawn(k, shared=shared)
    theirs, _ = paper.mem_sgd(problem.gradient, problem.start, WORKERS, compress, halving, STEPS)
    mine = ours(MemSGD(RandK(count=k, shared=shared)), problem.gradient, problem.start, halving)
    assert_moved(mine)
    assert np.array_equal(mine, theirs)


def above(tau: float, step: Callable[[int], float]) -> paper.Compress:
    """Of p in update units what reaches the step size times tau: tau is in gradient units."""
    return lambda p, t, i: np.where(np.abs(p) >= step(t) * tau, p, 0.0)


def signs_above(tau: float, step: Callable[[int], float]) -> paper.Compress:
    """Strom's message in update units: the step size times tau, with p's signs."""
    return lambda p, t, i: np.where(np.abs(p) >= step(t) * tau, np.sign(p) * step(t) * tau, 0.0)


@pytest.mark.parametrize("step", [halving, cosine, decay], ids=["halving", "cosine", "step decay"])
@pytest.mark.parametrize(
    ("compressor", "transcribed"),
    [(HardThreshold(0.5), above), (Strom(0.5), signs_above)],
    ids=["threshold", "strom"],
)
def test_a_threshold_compares_updates_with_the_step_size_times_tau(
    compressor: Compressor, transcribed: Callable[..., paper.Compress], step: Callable[[int], float]
) -> None:
    problem = Quadratics()
    theirs, _ = paper.mem_sgd(problem.gradient, problem.start, WORKERS, transcribed(0.5, step), step, STEPS)
    mine = ours(MemSGD(compressor), problem.gradient, problem.start, step)
    assert_moved(mine)
    if step is halving:
        assert np.array_equal(mine, theirs)
    assert_close(mine, theirs)


def test_scaled_sign() -> None:
    problem = Quadratics()
    theirs, _ = paper.mem_sgd(problem.gradient, problem.start, WORKERS, paper.scaled_sign, cosine, STEPS)
    mine = ours(MemSGD(ScaledSign()), problem.gradient, problem.start, cosine)
    assert_moved(mine)
    assert_close(mine, theirs)


def test_plain_compression_forgets() -> None:
    problem = Quadratics()
    theirs = paper.plain(problem.gradient, problem.start, WORKERS, paper.top(K), cosine, STEPS)
    mine = ours(Plain(TopK(count=K)), problem.gradient, problem.start, cosine)
    assert np.array_equal(mine, theirs)


def test_two_parameter_groups_keep_their_own_step_sizes() -> None:
    problem = Quadratics()
    half = D // 2

    def step(t: int) -> Vector:
        return np.r_[np.full(half, cosine(t)), np.full(D - half, decay(t))]

    def top_of_each(v: Vector, t: int, i: int) -> Vector:
        return np.r_[paper.top(K)(v[:half], t, i), paper.top(K)(v[half:], t, i)]

    theirs, _ = paper.mem_sgd(problem.gradient, problem.start, WORKERS, top_of_each, step, STEPS)
    a, b = (torch.nn.Parameter(torch.from_numpy(part.copy())) for part in np.split(problem.start, [half]))
    optimizer = torch.optim.SGD([{"params": [a], "lr": 1.0}, {"params": [b], "lr": 1.0}])
    simulation = Simulation({"a": a, "b": b}, MemSGD(TopK(count=K)), WORKERS, optimizer=optimizer)
    path = [problem.start]
    for t in range(STEPS):
        optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = cosine(t), decay(t)
        gradients = [torch.from_numpy(problem.gradient(i, path[-1], t)).split([half, D - half]) for i in range(WORKERS)]
        simulation.step([{"a": first, "b": second} for first, second in gradients])
        path.append(np.r_[a.detach().numpy(), b.detach().numpy()])
    assert_close(np.array(path), theirs)


def test_sequential_virtual_iterate_follows_uncompressed_sgd() -> None:
    """x_T - m_T = x_0 - sum_t s_t grad f(x_t), with m = s e."""
    problem = Quadratics(workers=1)
    steps: list[Vector] = []
    memories: list[Vector] = []

    def watched(i: int, x: Vector, t: int) -> Vector:
        steps.append(cosine(t) * problem.gradient(i, x, t))
        return problem.gradient(i, x, t)

    def keep_memory(simulation: Simulation) -> None:
        memories.append(simulation.channels[0].step_sizes["x"] * states(simulation, "error")[0])

    path = ours(MemSGD(TopK(count=1)), watched, problem.start, cosine, workers=1, watch=keep_memory)
    virtual = problem.start - np.cumsum(steps, axis=0)
    assert float(np.abs(memories).max()) > 0.1
    assert float(np.abs(path[1:] - np.array(memories) - virtual).max()) <= tolerance(path)


@pytest.mark.parametrize("ratio", [0.1, 10.0, 1 / 3])
def test_a_change_of_the_step_size_leaves_the_mass_in_update_units(ratio: float) -> None:
    """Nothing can be sent over so high a threshold, and the second gradient is zero: only the step size moves."""
    simulation = Simulation({"x": torch.zeros(D, dtype=torch.float64)}, MemSGD(HardThreshold(1e30)), 1)
    gradient = torch.from_numpy(np.random.default_rng(0).normal(size=D))
    simulation.exchange([{"x": gradient}], {"x": 0.3})
    mass = 0.3 * states(simulation, "error")[0]
    simulation.exchange([{"x": torch.zeros(D, dtype=torch.float64)}], {"x": 0.3 * ratio})
    moved = 0.3 * ratio * states(simulation, "error")[0]
    assert float(np.abs(moved - mass).max()) <= 4 * EPS * float(np.abs(mass).max())


def test_k_equal_to_d_is_gradient_descent_bit_for_bit() -> None:
    problem = Quadratics()
    theirs = paper.gradient_descent(problem.gradient, problem.start, WORKERS, cosine, STEPS)
    assert np.array_equal(ours(MemSGD(TopK(1.0)), problem.gradient, problem.start, cosine), theirs)
    assert np.array_equal(ours(Plain(TopK(1.0)), problem.gradient, problem.start, cosine), theirs)


def test_residual_stays_bounded_where_local_minus_average_grows() -> None:
    """4 non-iid workers, 1,000 steps. The contraction bounds |e| by G r / (1 - r), r = sqrt(1 - k/d); a residual taken
    against the workers' average (as torch's PowerSGD hook does) grows by each worker's offset at every step."""
    steps, rng = 1000, np.random.default_rng(3)
    offsets = rng.normal(size=(WORKERS, D)) * 5
    noise = rng.normal(size=(WORKERS, steps + 1, D)) * 0.5
    largest = float(np.linalg.norm(offsets[:, None] + noise, axis=2).max())
    norms: list[float] = []
    ours(
        MemSGD(TopK(count=K)),
        lambda i, x, t: offsets[i] + noise[i, t],
        np.zeros(D),
        constant(0.1),
        steps,
        watch=lambda simulation: norms.append(max(np.linalg.norm(e) for e in states(simulation, "error"))),
    )
    shrink = math.sqrt(1 - K / D)
    assert max(norms) <= largest * shrink / (1 - shrink)

    error = np.zeros((WORKERS, D))
    grown: list[float] = []
    for t in range(steps):
        wanted = error + offsets + noise[:, t]
        average = np.mean([paper.top(K)(wanted[i], t, i) for i in range(WORKERS)], axis=0)
        error = wanted - average
        grown.append(float(np.linalg.norm(error, axis=1).max()))
    drift = float(np.linalg.norm(offsets - offsets.mean(0), axis=1).max())
    assert grown[-1] >= 0.9 * drift * steps
    assert grown[-1] > 10 * max(norms)
    assert 1.9 <= grown[999] / grown[499] <= 2.1


def test_two_workers_draw_different_masks() -> None:
    simulation = Simulation({"x": torch.zeros(1000)}, MemSGD(RandK(count=100)), 2)
    simulation.exchange([{"x": torch.ones(1000)}] * 2, {"x": 1.0})
    first, second = states(simulation, "error")
    common = int(((first == 0) & (second == 0)).sum())
    assert int((first == 0).sum()) == int((second == 0).sum()) == 100
    assert common < 40  # hypergeometric, mean 10, standard deviation 2.8

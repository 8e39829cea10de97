"""EF21's family against the papers' algorithms, 200 steps in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.paper import family, transcriptions
from tests.paper.runs import (
    EPS,
    STEPS,
    WORKERS,
    D,
    Quadratics,
    Recorded,
    Vector,
    assert_close,
    assert_moved,
    constant,
    cosine,
    ours,
    simulated,
)
from tests.paper.test_memsgd import drawn

from thinwire import (
    CLAG,
    EF21,
    EF21BC,
    EF21HB,
    EF21P,
    EF21PAGE,
    EF21PP,
    EF21SGD2M,
    EF21SGDM,
    EF21W,
    EFBV,
    MARINA,
    Identity,
    Key,
    RandK,
    ScaledSign,
    ThreePCv2,
    ThreePCv4,
    ThreePCv5,
    TopK,
    Unbias,
)
from thinwire.feedback.family.participation import toss
from thinwire.ops import randk_indices
from thinwire.updates import L1, Muon, Normalised, Proximal

K = 3
top = transcriptions.top(K)
SIZE = 2.0**-5
"""A power of two: a fused multiply-add rounds as the two operations do."""


def joins(probability: float) -> Callable[[int, int], bool]:
    """thinwire's coins of each worker, taken as given data."""
    return lambda t, i: toss(Key(seed=5, step=t, worker=i), probability)


def coin(probability: float) -> Callable[[int], bool]:
    """thinwire's common coins, taken as given data."""
    return lambda t: toss(Key(seed=5, step=t).shared(), probability)


def unbiased(k: int) -> transcriptions.Compress:
    return lambda v, t, i: D / k * drawn(k, shared=False)(v, t, i)


def drawn_by(key: Key, v: Vector, k: int) -> Vector:
    return transcriptions.keep(v, randk_indices(key.at(0).number, v.size, k, torch.device("cpu")).numpy())


@pytest.mark.parametrize("eta", [0.25, 0.1])
def test_double_momentum(eta: float) -> None:
    problem = Quadratics(noise=0.5)
    mine = ours(EF21SGD2M(TopK(count=K), eta=eta), problem.gradient, problem.start, cosine)
    assert_moved(mine)
    assert_close(mine, family.sgd2m(problem.gradient, problem.start, WORKERS, top, cosine, STEPS, eta))


@pytest.mark.parametrize("probability", [0.5, 0.1])
def test_partial_participation_bit_for_bit(probability: float) -> None:
    problem = Quadratics()
    theirs = family.partial(problem.gradient, problem.start, WORKERS, top, cosine, STEPS, joins(probability))
    mine = ours(EF21PP(TopK(count=K), probability), problem.gradient, problem.start, cosine)
    assert_moved(mine)
    assert np.array_equal(mine, theirs)


def test_workers_join_by_coins_of_their_own() -> None:
    rounds = np.array([[joins(0.25)(t, i) for i in range(WORKERS)] for t in range(2000)])
    spread = np.sqrt(0.25 * 0.75 / 2000)
    assert np.all(np.abs(rounds.mean(0) - 0.25) <= 5 * spread)
    assert abs((rounds[:, 0] & rounds[:, 1]).mean() - 1 / 16) <= 5 * np.sqrt(15 / 256 / 2000)


def test_bidirectional_bit_for_bit() -> None:
    problem = Quadratics()
    theirs = family.bidirectional(
        problem.gradient, problem.start, WORKERS, top, lambda v, t: transcriptions.top(5)(v, t, 0), cosine, STEPS
    )
    mine = ours(EF21BC(TopK(count=K), TopK(count=5)), problem.gradient, problem.start, cosine)
    assert_moved(mine)
    assert np.array_equal(mine, theirs)


def test_bidirectional_with_a_random_server_draws_from_a_stream_of_its_own() -> None:
    problem = Quadratics()
    theirs = family.bidirectional(
        problem.gradient,
        problem.start,
        WORKERS,
        drawn(6, shared=True),
        lambda v, t: drawn_by(Key(5, t).shared().stream(1), v, 6),
        constant(SIZE),
        STEPS,
    )
    rule = EF21BC(RandK(count=6, shared=True), RandK(count=6, shared=True))
    assert np.array_equal(ours(rule, problem.gradient, problem.start, constant(SIZE)), theirs)


@pytest.mark.parametrize("eta", [0.5, 0.9])
def test_heavy_ball(eta: float) -> None:
    problem = Quadratics()
    theirs = family.heavy_ball(problem.gradient, problem.start, WORKERS, top, cosine, STEPS, eta)
    mine = ours(EF21HB(TopK(count=K), eta=eta), problem.gradient, problem.start, cosine)
    assert_moved(mine)
    assert_close(mine, theirs)


def test_weights() -> None:
    problem, L = Quadratics(), np.array([1.0, 2.5, 0.5, 4.0])
    theirs = family.weighted(problem.gradient, problem.start, transcriptions.scaled_sign, cosine, STEPS, L)

    mine = ours(EF21W(ScaledSign(), tuple(L)), problem.gradient, problem.start, cosine)
    assert_moved(mine)
    assert_close(mine, theirs)


@pytest.mark.parametrize(("lam", "nu"), [(0.25, 0.5), (0.2, 1.0)])
def test_bias_and_variance(lam: float, nu: float) -> None:
    problem = Quadratics()
    theirs = family.ef_bv(problem.gradient, problem.start, WORKERS, unbiased(6), cosine, STEPS, lam, nu)
    rule = EFBV(Unbias(RandK(count=6)), lam=lam, nu=nu, start="compressed")
    mine = ours(rule, problem.gradient, problem.start, cosine)
    assert_moved(mine)
    assert_close(mine, theirs)


MAPS = {
    "lag": (CLAG(Identity(), zeta=2.0), family.lag(2.0)),
    "clag": (CLAG(TopK(count=K), zeta=8.0), family.clag(top, 8.0)),
    "v2": (ThreePCv2(TopK(count=K), Unbias(RandK(count=6))), family.v2(top, unbiased(6))),
    "v4": (ThreePCv4(TopK(count=K), TopK(count=2)), family.v4(top, transcriptions.top(2))),
}


@pytest.mark.parametrize("name", MAPS)
def test_three_point_compressors(name: str) -> None:
    rule, point = MAPS[name]
    problem = Quadratics()
    theirs = family.three_points(problem.gradient, problem.start, WORKERS, point, cosine, STEPS)
    mine = ours(rule, problem.gradient, problem.start, cosine)
    assert_moved(mine)
    assert_close(mine, theirs)


def test_lazy_workers_are_silent_at_times() -> None:
    problem = Quadratics()
    sizes: list[float] = []
    ours(
        CLAG(TopK(count=K), zeta=8.0),
        problem.gradient,
        problem.start,
        cosine,
        watch=lambda sim: sizes.append(sim.ledger.last_step()["message_bytes"]),
    )
    assert len(set(sizes[1:])) > 1


@pytest.mark.parametrize("probability", [0.5, 0.1])
def test_v5(probability: float) -> None:
    problem = Quadratics()
    theirs = family.three_points(
        problem.exact,
        problem.start,
        WORKERS,
        family.v5(transcriptions.top(15), coin(probability)),
        constant(SIZE),
        STEPS,
    )
    rule = ThreePCv5(TopK(count=15), probability)
    mine = simulated(rule, Recorded(problem.exact, problem.start), constant(SIZE))
    assert_moved(mine)
    assert_close(mine, theirs)


@pytest.mark.parametrize("probability", [0.5, 0.1])
def test_marina_with_noise_that_is_the_same_at_both_points(probability: float) -> None:
    problem = Quadratics()
    theirs = family.marina(
        problem.gradient, problem.start, WORKERS, unbiased(10), constant(SIZE), STEPS, coin(probability)
    )
    rule = MARINA(Unbias(RandK(count=10)), probability)
    mine = simulated(rule, Recorded(problem.gradient, problem.start), constant(SIZE))
    assert_moved(mine)
    assert_close(mine, theirs)


@pytest.mark.parametrize("probability", [0.5, 0.1])
def test_page(probability: float) -> None:
    problem = Quadratics(noise=0.5)

    def noisy(i: int, x: Vector, t: int) -> Vector:
        """A mini-batch whose curvature is off as well: its difference between two points is not the full one's."""
        return problem.gradient(i, x, t) + 0.1 * problem.noise[i, t] * x

    theirs = family.page(noisy, problem.exact, problem.start, WORKERS, top, constant(SIZE), STEPS, coin(probability))
    recorded = Recorded(noisy, problem.start, full=problem.exact)
    mine = simulated(EF21PAGE(TopK(count=K), probability), recorded, constant(SIZE))
    assert_moved(mine)
    assert_close(mine, theirs)


def test_normalised_steps() -> None:
    problem = Quadratics()
    theirs = family.ef21_stepping(
        problem.gradient,
        problem.start,
        WORKERS,
        top,
        STEPS,
        lambda x, g, t: x - SIZE * g / np.linalg.norm(g),
    )
    mine = simulated(
        EF21(TopK(count=K)), Recorded(problem.gradient, problem.start), constant(SIZE), update=Normalised()
    )
    assert_moved(mine)
    assert_close(mine, theirs)
    rounding = 2 * EPS * float(np.linalg.norm(mine, axis=1).max())
    assert np.linalg.norm(np.diff(mine, axis=0), axis=1) == pytest.approx(SIZE, abs=rounding)


def test_proximal_steps() -> None:
    problem, weight = Quadratics(noise=0.0), 0.5
    theirs = family.ef21_stepping(
        problem.gradient,
        problem.start,
        WORKERS,
        top,
        STEPS,
        lambda x, g, t: family.soft_threshold(x - SIZE * g, SIZE * weight),
    )
    update = Proximal(L1(weight))
    mine = simulated(EF21(TopK(count=K)), Recorded(problem.gradient, problem.start), constant(SIZE), update=update)
    assert_moved(mine)
    assert_close(mine, theirs)
    assert 0 < int((mine[-1] == 0).sum()) < D


def test_compressed_models() -> None:
    """EF21-P around EF21, as EF21-Muon with a plain step and no momentum."""
    problem = Quadratics()
    theirs = family.muon(
        problem.gradient,
        problem.start,
        WORKERS,
        top,
        lambda v, t: transcriptions.top(10)(v, t, 0),
        lambda x, g, t: x - SIZE * g,
        STEPS,
        beta=1.0,
    )
    rule = EF21P(EF21(TopK(count=K)), TopK(count=10))
    mine = simulated(rule, Recorded(problem.gradient, problem.start), constant(SIZE))
    assert_moved(mine)
    assert_close(mine, theirs)


def test_muon_with_momentum_and_compressed_models() -> None:
    problem, shape = Quadratics(noise=0.5), (5, 6)

    def gradient(i: int, X: Vector, t: int) -> Vector:
        return problem.gradient(i, X.reshape(-1), t).reshape(shape)

    def flat(k: int) -> transcriptions.Compress:
        return lambda v, t, i: transcriptions.top(k)(v.reshape(-1), t, i).reshape(shape)

    theirs = family.muon(
        gradient,
        problem.start.reshape(shape),
        WORKERS,
        flat(K),
        lambda v, t: flat(10)(v, t, 0),
        lambda X, G, t: X - SIZE * family.polar(G),
        STEPS,
        beta=0.25,
    )
    rule = EF21P(EF21SGDM(TopK(count=K), eta=0.25), TopK(count=10))
    mine = simulated(rule, Recorded(gradient, problem.start, shape=shape), constant(SIZE), update=Muon())
    assert_moved(mine)
    assert_close(mine, theirs)

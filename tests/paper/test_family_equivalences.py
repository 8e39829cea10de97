"""Where EF21's family is the same as something simpler, bit for bit where the order of operations allows."""

from __future__ import annotations

import numpy as np
import pytest
from tests.paper import transcriptions as paper
from tests.paper.runs import (
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
    Feedback,
    Identity,
    RandK,
    ThreePCv2,
    ThreePCv4,
    ThreePCv5,
    TopK,
    Unbias,
)
from thinwire.updates import L1, Box, Proximal

TOP = TopK(count=3)
SIZE = constant(2.0**-5)
"""A power of two: a fused multiply-add rounds as the two operations do."""


@pytest.mark.parametrize("start", ["gradient", "compressed", "zero"])
@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (EF21PP, {"probability": 1.0}),
        (EF21HB, {"eta": 0.0}),
        (EF21W, {"smoothness": (3.0,) * WORKERS}),
        (EF21W, {"smoothness": (1.0, 1.0, 2.0, 4.0)}),  # weights are powers of two, and top-k is homogeneous
        (EFBV, {"lam": 1.0, "nu": 1.0}),
        (CLAG, {"zeta": 0.0}),
        (EF21SGD2M, {"eta": 1.0}),
    ],
    ids=["pp 1", "hb 0", "w equal", "w of top-k", "ef-bv 1 1", "clag 0", "sgd2m 1"],
)
def test_is_ef21_bit_for_bit(rule: type[Feedback], options: dict[str, float], start: str) -> None:
    problem = Quadratics()
    mine = ours(rule(TOP, start=start, **options), problem.gradient, problem.start, cosine)
    assert_moved(mine)
    assert np.array_equal(mine, ours(EF21(TOP, start=start), problem.gradient, problem.start, cosine))


def test_a_server_that_says_all_is_ef21() -> None:
    problem = Quadratics()
    both = ours(EF21BC(TOP, Identity()), problem.gradient, problem.start, cosine)
    assert_close(both, ours(EF21(TOP), problem.gradient, problem.start, cosine))


def test_two_selections_one_after_the_other_are_one_of_both_sizes() -> None:
    problem = Quadratics()
    twice = ours(ThreePCv4(TOP, TopK(count=2)), problem.gradient, problem.start, cosine)
    assert np.array_equal(twice, ours(EF21(TopK(count=5)), problem.gradient, problem.start, cosine))


def test_without_compression_momentum_is_sgdm() -> None:
    """EF21-SGDM with C = identity: x <- x - s v, v <- (1 - eta) v + eta grad."""
    problem, eta = Quadratics(noise=0.5), 0.25

    def sgdm(x: Vector) -> Vector:
        path, v = [x], np.zeros(D)
        for t in range(STEPS):
            gradient = sum(problem.gradient(i, x, t) for i in range(WORKERS)) / WORKERS
            v = gradient if t == 0 else (1 - eta) * v + eta * gradient
            x = x - cosine(t) * v
            path.append(x)
        return np.array(path)

    assert_close(ours(EF21SGDM(Identity(), eta=eta), problem.gradient, problem.start, cosine), sgdm(problem.start))


@pytest.mark.parametrize(
    "rule",
    [
        EF21PP(Identity(), 1.0),
        EF21BC(Identity(), Identity()),
        EF21BC(TopK(1.0), TopK(1.0)),
        EF21W(TopK(1.0), (1.0, 2.5, 0.5, 4.0)),
        EFBV(Identity(), lam=0.3),
        CLAG(TopK(1.0), zeta=0.0),
        ThreePCv2(Identity(), Unbias(RandK(0.5))),
        ThreePCv2(TOP, Identity()),
        ThreePCv4(TOP, TopK(1.0)),
    ],
    ids=str,
)
def test_without_compression_they_are_gradient_descent(rule: Feedback) -> None:
    problem = Quadratics()
    theirs = paper.gradient_descent(problem.gradient, problem.start, WORKERS, cosine, STEPS)
    assert_close(ours(rule, problem.gradient, problem.start, cosine), theirs)


def test_marina_with_whole_gradients_in_every_round_is_gradient_descent_bit_for_bit() -> None:
    problem = Quadratics()
    mine = simulated(MARINA(Unbias(RandK(0.1)), 1.0), Recorded(problem.gradient, problem.start), SIZE)
    assert_moved(mine)
    assert np.array_equal(mine, paper.gradient_descent(problem.gradient, problem.start, WORKERS, SIZE, STEPS))


@pytest.mark.parametrize("rule", [ThreePCv5(TOP, 1.0), ThreePCv5(Identity(), 0.1), MARINA(Identity(), 0.1)], ids=str)
def test_v5_and_marina_without_compression_are_gradient_descent(rule: Feedback) -> None:
    """Without noise: what differs between the samples of two rounds is in no difference of the same samples."""
    problem = Quadratics()
    theirs = paper.gradient_descent(problem.exact, problem.start, WORKERS, SIZE, STEPS)
    mine = simulated(rule, Recorded(problem.exact, problem.start), SIZE)
    assert_moved(mine)
    assert_close(mine, theirs)


def test_marina_is_v5_with_an_unbiased_compressor() -> None:
    problem, Q = Quadratics(), Unbias(RandK(0.4))
    one = simulated(MARINA(Q, 0.2), Recorded(problem.exact, problem.start), SIZE)
    assert_moved(one)
    assert_close(one, simulated(_v5_unchecked(Q), Recorded(problem.exact, problem.start), SIZE))


def _v5_unchecked(Q: Unbias) -> ThreePCv5:
    class AnyVariance(ThreePCv5):
        """v5 without the check that its compressor contracts: unbiased ones need not."""

        def admit(self, name: str, numel: int) -> None: ...

    return AnyVariance(Q, 0.2)


def test_page_with_full_gradients_in_every_round_is_ef21_bit_for_bit() -> None:
    problem = Quadratics(noise=5.0)
    page = simulated(EF21PAGE(TOP, 1.0), Recorded(problem.gradient, problem.start, full=problem.exact), SIZE)
    assert_moved(page)
    assert np.array_equal(page, simulated(EF21(TOP), Recorded(problem.exact, problem.start), SIZE))


@pytest.mark.parametrize("rule", [EF21(TOP), EF21SGDM(TOP), MARINA(Unbias(RandK(0.4)), 0.3)], ids=str)
def test_a_model_that_is_broadcast_whole_changes_nothing(rule: Feedback) -> None:
    problem = Quadratics()
    told = simulated(EF21P(rule, Identity()), Recorded(problem.gradient, problem.start), SIZE)
    assert_moved(told)
    assert np.array_equal(told, simulated(rule, Recorded(problem.gradient, problem.start), SIZE))


@pytest.mark.parametrize("regulariser", [L1(0.0), Box(-1e6, 1e6)], ids=str)
def test_a_regulariser_of_zero_changes_nothing(regulariser: L1 | Box) -> None:
    problem = Quadratics()
    plain = simulated(EF21(TOP), Recorded(problem.gradient, problem.start), SIZE)
    assert_moved(plain)
    proximal = simulated(EF21(TOP), Recorded(problem.gradient, problem.start), SIZE, update=Proximal(regulariser))
    assert np.array_equal(proximal, plain)

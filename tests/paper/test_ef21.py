"""EF21, EF21+ and EF21-SGDM against the papers' algorithms."""

from __future__ import annotations

import numpy as np
import pytest
from tests.paper import transcriptions as paper
from tests.paper.runs import STEPS, WORKERS, Quadratics, assert_close, assert_moved, constant, cosine, ours
from tests.paper.test_memsgd import drawn

from thinwire import EF21, EF21SGDM, EF21Plus, RandK, ScaledSign, TopK

K = 3


@pytest.mark.parametrize("start", ["gradient", "compressed", "zero"])
def test_ef21_bit_for_bit_from_each_start(start: str) -> None:
    problem = Quadratics()
    theirs = paper.ef21(problem.gradient, problem.start, WORKERS, paper.top(K), cosine, STEPS, start)
    mine = ours(EF21(TopK(count=K), start=start), problem.gradient, problem.start, cosine)
    assert_moved(mine)
    assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("shared", [False, True], ids=["own masks", "shared masks"])
def test_ef21_with_rand_k(shared: bool) -> None:
    problem = Quadratics()
    theirs = paper.ef21(problem.gradient, problem.start, WORKERS, drawn(6, shared=shared), constant(0.05), STEPS)
    mine = ours(EF21(RandK(count=6, shared=shared)), problem.gradient, problem.start, constant(0.05))
    assert np.array_equal(mine, theirs)


def test_ef21_with_scaled_sign() -> None:
    problem = Quadratics()
    theirs = paper.ef21(problem.gradient, problem.start, WORKERS, paper.scaled_sign, constant(0.05), STEPS)
    assert_close(ours(EF21(ScaledSign()), problem.gradient, problem.start, constant(0.05)), theirs)


def test_ef21_plus_bit_for_bit_when_both_branches_are_taken() -> None:
    problem = Quadratics(noise=10.0)
    step = constant(0.05)
    theirs, replaced = paper.ef21_plus(problem.gradient, problem.start, WORKERS, paper.top(10), step, STEPS)
    assert 0 < replaced < WORKERS * STEPS
    mine = ours(EF21Plus(TopK(count=10)), problem.gradient, problem.start, step)
    assert_moved(mine)
    assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("eta", [0.25, 0.1])
def test_ef21_sgdm(eta: float) -> None:
    problem = Quadratics(noise=0.5)
    theirs = paper.ef21_sgdm(problem.gradient, problem.start, WORKERS, paper.top(K), cosine, STEPS, eta)
    mine = ours(EF21SGDM(TopK(count=K), eta=eta), problem.gradient, problem.start, cosine)
    assert_moved(mine)
    if eta == 0.25:  # a power of two: a fused multiply-add rounds as the two operations do
        assert np.array_equal(mine, theirs)
    assert_close(mine, theirs)

"""What the papers say is the same as something else, and where memory decides between going and staying."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.paper import transcriptions as paper
from tests.paper.runs import EPS, STEPS, WORKERS, Quadratics, Vector, assert_close, constant, cosine, ours
from torch import Tensor

from thinwire import (
    EF21,
    EF21SGDM,
    Compressor,
    EControl,
    EF21Plus,
    Feedback,
    Identity,
    Key,
    Layout,
    MemSGD,
    Plain,
    TopK,
)
from thinwire.payload import Sparse
from thinwire.payload.values import value_format


def test_zero_start_is_the_compressed_start_one_step_late() -> None:
    problem = Quadratics()
    early = ours(EF21(TopK(count=3), start="compressed"), problem.exact, problem.start, constant(0.05))
    late = ours(EF21(TopK(count=3), start="zero"), problem.exact, problem.start, constant(0.05))
    assert np.array_equal(late[1:], early[:-1])


@pytest.mark.parametrize("start", ["gradient", "compressed", "zero"])
def test_momentum_of_weight_one_is_ef21(start: str) -> None:
    problem = Quadratics()
    momentum = ours(EF21SGDM(TopK(count=3), eta=1.0, start=start), problem.gradient, problem.start, cosine)
    assert np.array_equal(momentum, ours(EF21(TopK(count=3), start=start), problem.gradient, problem.start, cosine))


@pytest.mark.parametrize("start", ["gradient", "compressed"])
def test_econtrol_with_a_vanishing_eta_is_ef21(start: str) -> None:
    """eta must be positive; 2^-80 of an error below 2^20 is 2^-60, less than the rounding of a gradient."""
    problem = Quadratics()
    rule = EControl(TopK(count=3), eta=2.0**-80, start=start)
    controlled = ours(rule, problem.gradient, problem.start, cosine)
    assert_close(controlled, ours(EF21(TopK(count=3), start=start), problem.gradient, problem.start, cosine))


@pytest.mark.parametrize("rule", [EF21, EF21Plus, EControl], ids=lambda rule: rule.name)
def test_without_compression_every_rule_is_gradient_descent(rule: type[Feedback]) -> None:
    problem = Quadratics()
    theirs = paper.gradient_descent(problem.gradient, problem.start, WORKERS, cosine, STEPS)
    for compressor in (Identity(), TopK(1.0)):
        assert_close(ours(rule(compressor), problem.gradient, problem.start, cosine), theirs)


@dataclass(frozen=True)
class EveryOther(Compressor):
    """Keep the even coordinates: additive, unlike top-k."""

    name: ClassVar[str] = "every_other"

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Sparse:
        return Sparse.rounded(torch.arange(0, x.numel(), 2), x[::2].clone(), layout, value_format("full"))

    def delta(self, numel: int) -> float:
        return 0.0


def test_with_an_additive_compressor_memory_and_ef21_are_the_same() -> None:
    """Theorem 3 of the EF21 paper, with the compressed start and a constant step size."""
    problem = Quadratics()
    memory = ours(MemSGD(EveryOther()), problem.gradient, problem.start, constant(0.05))
    assert_close(memory, ours(EF21(EveryOther(), start="compressed"), problem.gradient, problem.start, constant(0.05)))


A = np.array([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])


def pulled_apart(i: int, x: Vector, t: int) -> Vector:
    """f_i(x) = <a_i, x>^2 + |x|^2 / 4: at (s, s, s) the largest entry of every gradient points the wrong way."""
    return 2 * (A[i] @ x) * A[i] + x / 2


def test_top_1_without_memory_runs_away_where_memory_converges() -> None:
    """Beznosikov et al. 2020, example 1: without memory x grows by 1 + 11/6 s at every step."""
    x, size, steps = np.ones(3), 2.0**-6, 300
    lost = ours(Plain(TopK(count=1)), pulled_apart, x, constant(size), steps, workers=3)
    assert lost[-1] == pytest.approx((1 + 11 / 6 * size) ** steps * x, rel=64 * EPS * steps)
    for rule in (MemSGD(TopK(count=1)), EF21(TopK(count=1)), EF21Plus(TopK(count=1)), EControl(TopK(count=1))):
        found = ours(rule, pulled_apart, x, constant(size), steps, workers=3)
        assert np.linalg.norm(found[-1]) < 0.1 * np.linalg.norm(x), str(rule)


def test_top_1_without_memory_stalls_where_memory_reaches_the_minimum() -> None:
    """Two workers pull the first coordinate apart with equal force: all that top-1 sends cancels, for ever."""
    target = np.array([0.0, 1, -2, 3])
    pull = np.array([10.0, 0, 0, 0])

    def gradient(i: int, x: Vector, t: int) -> Vector:
        return x - target + (pull if i == 0 else -pull)

    stalled = ours(Plain(TopK(count=1)), gradient, np.zeros(4), constant(0.02), 300, workers=2)
    assert np.array_equal(stalled, np.zeros((301, 4)))
    for rule in (MemSGD(TopK(count=1)), EF21(TopK(count=1))):
        found = ours(rule, gradient, np.zeros(4), constant(0.02), 300, workers=2)
        assert np.linalg.norm(found[-1] - target) < 0.1 * np.linalg.norm(target), str(rule)

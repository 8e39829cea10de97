"""The inequality that makes EF21 and its relatives converge: they are three point compressors (Richtarik et al. 2022).

    E|C_{h,y}(x) - x|^2 <= (1 - A) |h - y|^2 + B |x - y|^2

for h what is known of a worker's gradient, y its last gradient and x the new one, with `thinwire.theory`'s A and B.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from tests.laws.gradients import eps, vectors
from torch import Tensor

from thinwire import (
    CLAG,
    EF21,
    Feedback,
    Identity,
    Key,
    Layout,
    RandK,
    ThreePCv2,
    ThreePCv4,
    ThreePCv5,
    TopK,
    Unbias,
    theory,
)
from thinwire.feedback import Signal
from thinwire.feedback.family.participation import toss

D, K = 20, 3
LAYOUT = Layout.of([("x", 0, (D,))])
TOP = TopK(count=K)
ALPHA = K / D
points = vectors(LAYOUT, torch.float64)


def error(rule: Feedback, h: Tensor, y: Tensor, x: Tensor, key: Key) -> float:
    """|C_{h,y}(x) - x|^2"""
    state = {slot.name: torch.zeros(D, dtype=torch.float64) for slot in rule.slots} | {"local": h.clone()}
    if "previous" in state:
        state["previous"] = y.clone()
    rule.send(Signal(x, previous=y), LAYOUT, state, key)
    return float((state["local"] - x).square().sum())


def assert_bounded(mean: float, h: Tensor, y: Tensor, x: Tensor, claim: theory.Recursion) -> None:
    known, moved = float((h - y).square().sum()), float((x - y).square().sum())
    rounding = 16 * eps(torch.float64) * float(torch.stack([h, y, x]).square().sum())
    assert mean <= (1 - claim.theta) * known + claim.beta * moved + rounding


DETERMINISTIC = [
    (EF21(TOP), theory.markov(ALPHA)),
    (CLAG(Identity(), zeta=0.7), theory.lag(0.7)),
    (CLAG(TOP, zeta=0.7), theory.clag(ALPHA, 0.7)),
    (CLAG(TOP, zeta=50.0), theory.clag(ALPHA, 50.0)),
    (ThreePCv4(TOP, TopK(count=2)), theory.three_point_v4(ALPHA, 2 / D)),
]


@pytest.mark.parametrize(("rule", "claim"), DETERMINISTIC, ids=lambda value: str(value))
@settings(max_examples=60)
@given(h=points, y=points, x=points)
def test_deterministic_ones_in_every_case(
    rule: Feedback, claim: theory.Recursion, h: Tensor, y: Tensor, x: Tensor
) -> None:
    assert_bounded(error(rule, h, y, x, Key()), h, y, x, claim)


@pytest.mark.parametrize("probability", [0.1, 0.5])
@settings(max_examples=60)
@given(h=points, y=points, x=points)
def test_v5_in_the_mean_of_its_coin(probability: float, h: Tensor, y: Tensor, x: Tensor) -> None:
    rule = ThreePCv5(TOP, probability)
    heads, tails = (
        next(key for key in map(Key, range(1000)) if toss(key.shared(), probability) == side) for side in (True, False)
    )
    mean = probability * error(rule, h, y, x, heads) + (1 - probability) * error(rule, h, y, x, tails)
    assert_bounded(mean, h, y, x, theory.three_point_v5(ALPHA, probability))


@pytest.mark.parametrize("seed", range(3))
def test_v2_in_the_mean_of_its_draws(seed: int) -> None:
    """With probability below 1e-9 the mean of N draws in [0, M] is M sqrt(ln(1e9) / 2N) too large (Hoeffding)."""
    generator, draws = torch.Generator().manual_seed(seed), 1500
    h, y, x = (torch.randn(D, generator=generator, dtype=torch.float64) for _ in range(3))
    Q = Unbias(RandK(count=10))
    errors = [error(ThreePCv2(TOP, Q), h, y, x, Key(step=step)) for step in range(draws)]
    slack = max(errors) * math.sqrt(math.log(1e9) / (2 * draws))
    assert_bounded(sum(errors) / draws - slack, h, y, x, theory.three_point_v2(ALPHA, Q.omega(D)))

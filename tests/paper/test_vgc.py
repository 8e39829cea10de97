"""VGC and its hybrid against the paper's algorithms, its criterion, and the ratio that noise alone gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tests.paper import transcriptions as paper
from tests.paper.runs import WORKERS, D, Quadratics, Vector, assert_close, assert_moved, constant, cosine, ours

from thinwire import VGC, Hybrid, Key, Layout, Strom
from thinwire.feedback import Signal, State
from thinwire.ops import uniform
from thinwire.payload import Sparse

STEPS, BATCH = 300, 8


class Sampled:
    """Quadratics whose gradients are means over batches of samples with noise of their own."""

    def __init__(self, noise: float) -> None:
        self.problem = Quadratics(noise=0.0, steps=STEPS)
        self.start = self.problem.start
        self.noise = noise * np.random.default_rng(8).normal(size=(WORKERS, STEPS, BATCH, D))

    def samples(self, i: int, x: Vector, t: int) -> Vector:
        return self.problem.gradient(i, x, t) + self.noise[i, t]

    def gradient(self, i: int, x: Vector, t: int) -> Vector:
        return self.samples(i, x, t).sum(0) / BATCH

    def moment(self, i: int, x: Vector, t: int) -> Vector:
        return ((self.samples(i, x, t) / BATCH) ** 2).sum(0)


@pytest.mark.parametrize("noise", [1.0, 30.0], ids=["signal", "noise"])
@pytest.mark.parametrize(
    ("rule", "encode", "resets_all"),
    [
        (VGC(1.5), paper.four_bits, False),
        (VGC(1.5, drop_small=True), paper.four_bits, True),
        (VGC(1.0, zeta=0.9, values="full"), paper.as_they_are, True),
        (VGC(2.0, zeta=1.0, positions="word"), paper.four_bits, False),
        (VGC(1.5, decay=0.75), paper.four_bits, False),
    ],
    ids=["kept", "to the letter", "full values", "words", "decay"],
)
def test_vgc_bit_for_bit(rule: VGC, encode: object, resets_all: bool, noise: float) -> None:
    problem = Sampled(noise)
    theirs, count = paper.vgc(
        problem.samples, problem.start, WORKERS, cosine, STEPS, rule.alpha, rule.zeta, encode, resets_all, rule.decay
    )
    assert 0 < count < WORKERS * STEPS * D
    mine = ours(rule, problem.gradient, problem.start, cosine, STEPS, moment=problem.moment)
    assert_moved(mine)
    assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("noise", [1.0, 30.0], ids=["signal", "noise"])
@pytest.mark.parametrize(("name", "levels"), [("qsgd4", 8), ("qsgd2", 2)])
def test_vgc_with_the_levels_of_qsgd(name: str, levels: int, noise: float) -> None:
    problem, places = Sampled(noise), itertools.product(range(STEPS), range(WORKERS))
    draws = (uniform(Key(5, t, w).number, D, torch.float64).numpy() for t, w in places)
    encode = paper.drawn_levels(levels, draws)
    theirs, count = paper.vgc(problem.samples, problem.start, WORKERS, cosine, STEPS, 1.5, 0.999, encode, True)
    assert 0 < count < WORKERS * STEPS * D
    mine = ours(VGC(1.5, values=name), problem.gradient, problem.start, cosine, STEPS, moment=problem.moment)
    assert_moved(mine)
    assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("tau", [0.25, 0.1])
@pytest.mark.parametrize("decay", [1.0, 0.75])
@pytest.mark.parametrize("noise", [1.0, 30.0], ids=["signal", "noise"])
def test_hybrid(tau: float, decay: float, noise: float) -> None:
    problem, step = Sampled(noise), constant(0.05)
    theirs, count = paper.hybrid(problem.samples, problem.start, WORKERS, step, STEPS, 2.0, 0.999, tau, decay)
    assert 0 < count < WORKERS * STEPS * D
    mine = ours(Hybrid(tau, decay=decay), problem.gradient, problem.start, step, STEPS, moment=problem.moment)
    assert_moved(mine)
    if tau == 0.25:  # a power of two: its products are exact
        assert np.array_equal(mine, theirs)
    assert_close(mine, theirs)


def state_of(numel: int, dtype: torch.dtype = torch.float64) -> State:
    return {"total": torch.zeros(numel, dtype=dtype), "squares": torch.zeros(numel, dtype=dtype)}


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 4.0])
def test_the_decision_is_criterion_1_on_all_samples_since_the_last_sending(alpha: float) -> None:
    """alpha' V / n < mean^2 with the unbiased variance V of all n samples, alpha' = alpha (n - 1) / (n - alpha)."""
    numel, batch = 2000, 6
    layout, rule, state = Layout.of([("x", 0, (numel,))]), VGC(alpha, zeta=1.0, values="full"), state_of(numel)
    rng, seen, waiting = np.random.default_rng(0), np.empty((0, numel)), np.ones(numel, dtype=bool)
    sent_at = []
    for _ in range(6):
        fresh = rng.normal(rng.normal(scale=0.3, size=numel), 1.0, size=(batch, numel))
        seen = np.concatenate([seen, fresh])
        n = len(seen)
        certain = alpha * (n - 1) / (n - alpha) * seen.var(0, ddof=1) / n < seen.mean(0) ** 2
        signal = Signal(torch.from_numpy(fresh.mean(0)), moment=torch.from_numpy(((fresh / batch) ** 2).sum(0)))
        sent = rule.send(signal, layout, state, Key())
        assert isinstance(sent, Sparse)
        passed = np.zeros(numel, dtype=bool)
        passed[sent.positions.numpy()] = True
        assert np.array_equal(passed[waiting], certain[waiting])
        waiting &= ~passed
        sent_at.append(int(passed.sum()))
    assert all(sent_at)
    assert waiting.any()


def test_the_ratio_of_noise_alone() -> None:
    """Samples without any signal: 20, 87 and 240 for alpha 1, 1.5 and 2, with 64 samples a batch and zeta = 0.999.

    The sums of a batch of normal numbers are drawn as such: the mean is normal with variance 1/64, and independent of
    it the squared distances to it sum to a chi-square of 63 degrees.
    """
    numel, steps, burn_in, batch = 4000, 5000, 2000, 64
    layout, rng = Layout.of([("x", 0, (numel,))]), np.random.default_rng(0)
    rules = {alpha: VGC(alpha, values="full") for alpha in (1.0, 1.5, 2.0)}
    states, sent = {alpha: state_of(numel, torch.float32) for alpha in rules}, dict.fromkeys(rules, 0)
    for step in range(steps):
        mean = rng.normal(scale=batch**-0.5, size=numel)
        squares = (rng.chisquare(batch - 1, size=numel) + batch * mean**2) / batch**2
        signal = Signal(torch.from_numpy(mean).float(), moment=torch.from_numpy(squares).float())
        for alpha, rule in rules.items():
            elements = rule.send(signal, layout, states[alpha], Key()).elements or 0
            sent[alpha] += elements * (step >= burn_in)
    ratio = {alpha: numel * (steps - burn_in) / count for alpha, count in sent.items()}
    assert abs(ratio[1.0] - 20) <= 2, ratio
    assert abs(ratio[1.5] - 87) <= 8, ratio
    assert abs(ratio[2.0] - 240) <= 30, ratio


def test_hybrid_with_hardly_any_alpha_is_strom_on_a_memory() -> None:
    """The same recursion but for |r| = tau, which Strom's threshold sends here and the hybrid does not."""
    layout, rule, state = Layout.of([("x", 0, (50,))]), Hybrid(0.5, alpha=1e-30), state_of(50)
    error = torch.zeros(50, dtype=torch.float64)
    for t in range(200):
        gradient = torch.randn(50, generator=torch.Generator().manual_seed(t), dtype=torch.float64)
        mine = rule.send(Signal(gradient, moment=gradient.square()), layout, state, Key())
        theirs = Strom(0.5).take_(error, gradient, None, layout, Key())
        assert torch.equal(mine.decode(layout, torch.float64), theirs.decode(layout, torch.float64))
        assert torch.equal(state["total"], error)

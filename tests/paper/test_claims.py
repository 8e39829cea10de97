"""What the papers claim of EF21 and its family, shown on generated problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice

import numpy as np
import torch
from tests.paper.runs import Gradient, Vector

from thinwire import EF21, EF21HB, EF21SGDM, Compressor, EF21Plus, Feedback, Identity, MemSGD, Plain, TopK
from thinwire.engines.crowd import Crowd

LAMBDA = 0.1


def iterates(rule: Feedback, gradient: Gradient, x: Vector, size: float, rounds: int, workers: int) -> Iterator[Vector]:
    """The points of a run with all workers in one call, which gives the bits of n channels in a fifth of the time."""
    crowd = Crowd({"x": torch.zeros(x.size, dtype=torch.float64)}, rule, workers, seed=5, ledger_every=0)
    yield x
    for t in range(rounds):
        stacked = torch.from_numpy(np.stack([gradient(i, x, t) for i in range(workers)]))
        x = x - size * crowd.exchange({"x": stacked}, size)["x"].numpy()
        yield x


class Logistic:
    """f_i(x) = mean log(1 + exp(-y a'x)) + 0.1 sum x^2 / (1 + x^2) over binary features, most of them rare."""

    def __init__(self, workers: int, rows: int, features: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        frequency = rng.beta(0.3, 2.0, size=features)
        self.A = (rng.random((workers, rows, features)) < frequency).astype(np.float64)
        chance = 1 / (1 + np.exp(-(self.A @ rng.normal(size=features))))
        self.y = np.where(rng.random((workers, rows)) < chance, 1.0, -1.0)
        self.workers, self.start = workers, rng.normal(size=features)

    def gradient(self, i: int, x: Vector, t: int) -> Vector:
        margins = self.y[i] * (self.A[i] @ x)
        pulls = self.y[i] * np.exp(-np.logaddexp(0.0, margins))
        return -(self.A[i].T @ pulls) / len(pulls) + LAMBDA * 2 * x / (1 + x * x) ** 2

    def squared_norm(self, x: Vector) -> float:
        return float(np.sum(np.mean([self.gradient(i, x, 0) for i in range(self.workers)], axis=0) ** 2))

    def step_of_theory(self, k: int) -> float:
        """1 / (L + L~ sqrt(beta / theta)): theorem 1 of the EF21 paper."""
        L = [float(np.linalg.eigvalsh(A.T @ A / (4 * len(A)))[-1]) + 2 * LAMBDA for A in self.A]
        stacked = self.A.reshape(-1, self.A.shape[2])
        pooled = float(np.linalg.eigvalsh(stacked.T @ stacked / (4 * len(stacked)))[-1]) + 2 * LAMBDA
        root = np.sqrt(1 - k / self.start.size)
        return float(1 / (pooled + np.sqrt(np.mean(np.square(L))) * root / (1 - root)))

    def reached(self, kind: Callable[[Compressor], Feedback], multiple: float, rounds: int) -> float:
        """The least squared gradient norm of every eighth round, with top-1 and a multiple of theory's step size."""
        size = multiple * self.step_of_theory(1)
        path = iterates(kind(TopK(count=1)), self.gradient, self.start, size, rounds, self.workers)
        return min(self.squared_norm(x) for x in islice(path, 0, None, 8))


def test_error_feedback_floors_where_ef21_converges() -> None:
    """EF's floor rises with the step size; EF21 goes on to the square of machine precision (64 times theory's step)."""
    problem = Logistic(workers=5, rows=200, features=60, seed=1)
    floors = [problem.reached(MemSGD, multiple, 800) for multiple in (64, 128, 256)]
    assert floors == sorted(floors)
    assert floors[0] > 1e-4
    assert problem.reached(EF21, 64, 800) < 1e-6 * floors[0]


def test_ef21_plus_bears_steps_at_which_ef21_stalls() -> None:
    """At 256 times theory's step size EF21 oscillates; EF21+ converges as if nothing had happened."""
    problem = Logistic(workers=5, rows=400, features=100, seed=2)
    plus, plain = problem.reached(EF21Plus, 256, 800), problem.reached(EF21, 256, 800)
    assert plain > 1e-5
    assert plus < 1e-2 * plain


class Noisy:
    """Ten quadratics in 50 dimensions whose gradients carry noise of variance 1 in all."""

    WORKERS, D, ROUNDS = 10, 50, 900

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.curvature = rng.uniform(0.5, 1.5, size=(self.WORKERS, self.D))
        self.target = rng.normal(size=(self.WORKERS, self.D))
        self.noise = rng.normal(size=(self.WORKERS, self.ROUNDS + 1, self.D)) / np.sqrt(self.D)

    def gradient(self, i: int, x: Vector, t: int) -> Vector:
        return self.curvature[i] * (x - self.target[i]) + self.noise[i, t]

    def tail(self, rule: Feedback, size: float) -> float:
        """The mean squared norm of f's gradient over the last third of the rounds."""
        path = [*iterates(rule, self.gradient, np.zeros(self.D), size, self.ROUNDS, self.WORKERS)]
        mean, shift = self.curvature.mean(0), (self.curvature * self.target).mean(0)
        return float(np.mean([np.sum((mean * x - shift) ** 2) for x in path[-self.ROUNDS // 3 :]]))


@cache
def tail_of(rule: Feedback, size: float) -> float:
    return Noisy().tail(rule, size)


TOP, SIZE = TopK(count=2), 0.02


def test_noise_floors_ef21_and_momentum_before_compression_removes_the_floor() -> None:
    """At one step size: EF21 far above uncompressed SGD, EF21-SGDM near it."""
    dense = tail_of(Plain(Identity()), SIZE)
    assert tail_of(EF21(TOP), SIZE) > 5 * dense
    assert tail_of(EF21SGDM(TOP, eta=0.1), SIZE) < 3 * dense


def test_heavy_ball_after_compression_is_no_help_against_noise() -> None:
    assert tail_of(EF21HB(TOP, eta=0.9), SIZE / 10) > 5 * tail_of(EF21SGDM(TOP, eta=0.1), SIZE)

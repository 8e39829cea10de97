"""Runs of EF21 held against the theorems: what is proved of every run is true of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire import EF21, EF21Plus, Feedback, Simulation, TopK, parse, simulate, theory

N, D, K, ROUNDS = 10, 50, 2, 100
EPS = float(np.finfo(np.float64).eps)
Vector = NDArray[np.float64]
RULES = (EF21(TopK(count=K)), EF21(TopK(count=K), start="zero"), EF21Plus(TopK(count=K)))


class Quadratics:
    """Random heterogeneous quadratics f_i(x) = x'A_i x / 2 - b_i'x, strongly convex in the mean."""

    def __init__(self, seed: int, n: int = N, d: int = D) -> None:
        self.workers = n
        random = np.random.default_rng(seed)
        roots = random.normal(size=(n, d, d)) / np.sqrt(d)
        self.A = roots @ roots.transpose(0, 2, 1) * random.uniform(0.5, 2, size=(n, 1, 1)) + 0.1 * np.eye(d)
        self.b = random.normal(size=(n, d))
        self.x0 = random.normal(size=d)
        self.optimum = np.linalg.solve(self.A.mean(0), self.b.mean(0))

    def smoothness(self) -> theory.Smoothness:
        values = np.linalg.eigvalsh(self.A.mean(0))
        workers = np.linalg.eigvalsh(self.A)[:, -1]
        ones = np.ones(len(self.A), dtype=np.int64)
        return theory.Smoothness(values[-1], values[-1], workers, workers, ones, float(values[0]), True)

    def gradients(self, x: Vector) -> Vector:
        return self.A @ x - self.b

    def gap(self, x: Vector) -> float:
        """f(x) − f*, from the distance: a difference of values would drown in rounding."""
        away = x - self.optimum
        return float(away @ self.A.mean(0) @ away / 2)

    def start(self) -> Mapping[str, Tensor]:
        return {"x": torch.from_numpy(self.x0)}

    def gradient(self, worker: int, x: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        return {"x": torch.from_numpy(self.A[worker] @ x["x"].numpy() - self.b[worker])}

    def loss(self, x: Mapping[str, Tensor]) -> float:
        return self.gap(x["x"].numpy())

    def all_gradients(self, x: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        return {"x": torch.from_numpy(self.gradients(x["x"].numpy()))}

    def all_full_gradients(self, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.all_gradients(x, 0)


@dataclass(frozen=True)
class Round:
    gap: float
    distortion: float
    gradient: float
    """‖∇f(x)‖²"""


def rounds(problem: Quadratics, rule: Feedback, step: float, count: int) -> Iterator[Round]:
    """x and the workers' estimates after each exchange, before the step: what the Lyapunov functions look at."""
    simulation = Simulation({"x": torch.zeros(problem.x0.size, dtype=torch.float64)}, rule, len(problem.A))
    x = problem.x0
    for _ in range(count):
        gradients = problem.gradients(x)
        given = [{"x": torch.from_numpy(own)} for own in gradients]
        estimate = simulation.exchange(given, {"x": step})["x"].numpy()
        locals_ = np.array([channel.worker.view("x", "local").numpy() for channel in simulation.channels])
        norm = float(np.square(gradients.mean(0)).sum())
        yield Round(problem.gap(x), theory.distortion(locals_, gradients), norm)
        x = x - step * estimate


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_the_lyapunov_function_of_theorem_2_contracts_every_round(rule: Feedback, seed: int) -> None:
    problem = Quadratics(seed)
    known, moving = problem.smoothness(), theory.markov(K / D)
    assert known.mu is not None
    step = theory.ef21_pl_step(known.overall, known.quadratic_mean, moving, known.mu)
    path = list(rounds(problem, rule, step, ROUNDS))
    psi = np.array([theory.ef21_pl_lyapunov(each.gap, each.distortion, step, moving) for each in path])
    assert np.all(psi[1:] <= (1 - step * known.mu) * psi[:-1] * (1 + 64 * EPS * D))
    assert psi[-1] <= theory.ef21_pl_bound(psi[0], step, known.mu, ROUNDS - 1)


@pytest.mark.parametrize("start", ["gradient", "compressed", "zero"])
@pytest.mark.parametrize("seed", range(2))
def test_theorem_1_bounds_the_mean_gradient_and_its_lyapunov_function_descends(start: str, seed: int) -> None:
    problem = Quadratics(seed)
    known, moving = problem.smoothness(), theory.markov(K / D)
    step = theory.ef21_nonconvex_step(known.overall, known.quadratic_mean, moving)
    path = list(rounds(problem, EF21(TopK(count=K), start=start), step, ROUNDS))
    bound = theory.ef21_nonconvex_bound(path[0].gap, path[0].distortion, step, moving, len(path))
    assert 0 < np.mean([each.gradient for each in path]) <= bound
    phi = np.array([theory.ef21_nonconvex_lyapunov(each.gap, each.distortion, step, moving) for each in path])
    descent = step / 2 * np.array([each.gradient for each in path[:-1]])
    assert np.all(phi[1:] <= (phi[:-1] - descent) * (1 + 64 * EPS * D))


def test_simulate_converges_as_theorem_2_says() -> None:
    problem = Quadratics(0)
    known, moving = problem.smoothness(), theory.markov(K / D)
    assert known.mu is not None
    step = theory.ef21_pl_step(known.overall, known.quadratic_mean, moving, known.mu)
    run = simulate(problem, EF21(TopK(count=K)), steps=200, step_size=step, every=20)
    for place, loss in enumerate(run.losses):  # the start is exact, so that Ψ⁰ is f(x⁰) − f*
        assert loss <= theory.ef21_pl_bound(run.losses[0], step, known.mu, 20 * place)


def bowls(workers: int) -> Quadratics:
    """f_i(x) = |x - b_i|^2 / 2: all curvatures are 1, so that a step is its own multiple of 1/L."""
    made = Quadratics(0, n=workers)
    made.A[:] = np.eye(D)
    made.optimum = made.b.mean(0)
    return made


@pytest.mark.parametrize("shared", [False, True])
def test_marina_converges_at_the_step_of_its_own_draws(shared: bool) -> None:
    """n = 50, ω = 49, p = 0.01. A shared mask's coordinate becomes g (1 − γ(1 + ω)) when drawn: with ω/n in place of
    ω, γ = 0.092 and |1 − 4.6| makes it explode before the next whole gradient."""
    problem = bowls(50)
    rule = parse(f"marina(unbias(randk(count=1, shared={shared})), 0.01)")
    ratio = (1 - 0.01) * (D - 1) / 0.01 / (1 if shared else 50)
    (step, *_) = (each.step for each in theory.admissible(rule, problem.smoothness(), D))
    assert step == pytest.approx(1 / (1 + np.sqrt(ratio)), rel=8 * EPS)
    run = simulate(problem, rule, steps=400, step_size=step, every=400)
    assert run.losses[-1] < run.losses[0] / 10


def test_ef_bv_averages_no_shared_mask() -> None:
    """ω = 49, λ = 1/50, ν = 1: r_av is ω/n for draws of their own and ω for a shared one, so √r_av is √n as large."""
    known = bowls(50).smoothness()
    own, shared = (
        theory.admissible(parse(f"efbv(unbias(randk(count=1, shared={shared})), lam=0.02)"), known, D)[0].step
        for shared in (False, True)
    )
    assert (1 / shared - 1) / (1 / own - 1) == pytest.approx(np.sqrt(50), rel=64 * EPS * D)


def test_the_mean_gradient_of_a_noisy_run_stays_below_its_bound() -> None:
    """Top-k on noisy gradients, the mean of 20 runs: the bound is on the expectation."""
    problem, sigma2, count = Quadratics(1), 1.0, 200
    known, noisy = problem.smoothness(), theory.stochastic_markov(K / D)
    step = theory.ef21_sgd_step(known.overall, known.quadratic_mean, noisy)
    norms, starts = [], []
    for seed in range(20):
        random = np.random.default_rng(seed)
        x, estimates = problem.x0, None
        for _ in range(count):
            exact = problem.gradients(x)
            seen = exact + random.normal(size=exact.shape) * np.sqrt(sigma2 / D)
            estimates = seen.copy() if estimates is None else estimates + top(seen - estimates)
            starts += [theory.distortion(estimates, exact)] if x is problem.x0 else []
            norms.append(float(np.square(exact.mean(0)).sum()))
            x = x - step * estimates.mean(0)
    gap, start = problem.gap(problem.x0), float(np.mean(starts))
    assert np.mean(norms) <= theory.ef21_sgd_bound(gap, start, step, noisy, count, sigma2, batch=1)


def top(rows: Vector) -> Vector:
    kept = np.zeros_like(rows)
    chosen = np.argpartition(-np.abs(rows), K, axis=1)[:, :K]
    np.put_along_axis(kept, chosen, np.take_along_axis(rows, chosen, axis=1), axis=1)
    return kept


@pytest.mark.parametrize("seed", range(20))
def test_the_tight_rate_holds_for_one_worker(seed: int) -> None:
    """d = 20, top-5, eigenvalues from 0.1 to 1: no step multiplies the Lyapunov function by more than ρ = 0.9742."""
    d, k, L, mu = 20, 5, 1.0, 0.1
    random = np.random.default_rng(seed)
    basis = np.linalg.qr(random.normal(size=(d, d)))[0]
    A = basis @ np.diag(np.concatenate([[mu, L], random.uniform(mu, L, d - 2)])) @ basis.T
    step, rate = theory.tight_step(L, mu, k / d), theory.tight_rate(L, mu, k / d)
    x = random.normal(size=d)
    simulation = Simulation({"x": torch.zeros(d, dtype=torch.float64)}, EF21(TopK(count=k)), 1)
    values = []
    for _ in range(100):
        gradient = A @ x
        estimate = simulation.exchange([{"x": torch.from_numpy(gradient)}], {"x": step})["x"].numpy()
        values.append(theory.tight_lyapunov(gradient, estimate, k / d))
        x = x - step * estimate
    assert max(after / before for before, after in pairwise(values)) <= rate * (1 + 64 * EPS * d)

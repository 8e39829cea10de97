"""A run: one setting from the paper's start to its last tolerance."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from thinwire import parse, simulate
from thinwire.errors import ConfigError, NonFiniteGradient
from thinwire.papers.ef21.course import Course, Reached
from thinwire.papers.ef21.settings import Setting
from thinwire.problems import Dataset, FiniteSum, file_order, least_squares_minimiser, load_dataset, objective
from thinwire.problems.minibatches import Minibatches
from thinwire.theory import Smoothness, ef21_nonconvex_step, ef21_pl_step, markov

STRENGTH = 0.1
"""λ of the regulariser."""


@dataclass(frozen=True)
class Outcome:
    """What a run did."""

    setting: Setting
    d: int
    samples: int
    step: float
    theory_step: float
    status: str
    """reached, stopped (by the number of rounds) or diverged"""
    rounds: int
    best: float
    reached: tuple[Reached, ...]
    curve: tuple[tuple[int, float], ...]
    """(round, measure): ‖∇f(x)‖², or f(x) − f* for least squares."""
    seconds: float

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@lru_cache(maxsize=8)
def dataset_of(name: str, data: str | None) -> Dataset:
    return load_dataset(name, data)


@lru_cache(maxsize=4)
def problem_of(name: str, dataset: str, data: str | None, workers: int) -> tuple[FiniteSum, Smoothness]:
    """The problem with the paper's split and start, and its constants."""
    loaded = dataset_of(dataset, data)
    problem = objective(name, loaded, file_order(len(loaded), workers))
    if name == "least-squares":  # the paper's scripts start it from N(0, 4)
        problem = replace(problem, x0=2 * problem.x0)
    return problem, problem.smoothness()


@lru_cache(maxsize=4)
def least_of(name: str, dataset: str, data: str | None, workers: int) -> float:
    """f* of least squares, found once; of the other problems none is needed."""
    problem, _ = problem_of(name, dataset, data, workers)
    return problem.value(least_squares_minimiser(problem)) if name == "least-squares" else 0.0


def theory_step(setting: Setting, problem: FiniteSum, known: Smoothness) -> float:
    """1× in the paper's scripts: of L over all samples, L̃ and α = k/d; for EF21+ theorem 2's with μ = 0.1."""
    if not setting.k:
        return 1 / known.pooled
    if obstacle := setting.obstacle(len(problem.targets), problem.d):
        raise ConfigError(f"{setting.title} cannot be run: {obstacle}")
    recursion = markov(setting.k / problem.d)
    if setting.problem == "least-squares":
        assert known.mu is not None  # known up to the size that `obstacle` allows
        return ef21_pl_step(known.pooled, known.quadratic_mean, recursion, known.mu)
    if setting.rule.startswith("ef21plus"):
        return ef21_pl_step(known.pooled, known.quadratic_mean, recursion, STRENGTH)
    return ef21_nonconvex_step(known.pooled, known.quadratic_mean, recursion)


def run(setting: Setting, data: str | None = None, watch: Callable[[int], None] | None = None) -> Outcome:
    """One setting from x⁰ to its last tolerance, or as far as it gets; `watch` is told of every round."""
    which = (setting.problem, setting.dataset, data, setting.workers)
    problem, known = problem_of(*which)
    base = theory_step(setting, problem, known)
    course = Course(setting, problem, least_of(*which), watch)
    start, status = time.perf_counter(), "stopped"
    subject = problem if setting.batch == 1 else Minibatches(problem, setting.batch)
    try:
        simulate(
            subject, parse(setting.rule), steps=setting.rounds + 1, step_size=setting.factor * base, watch=course.see,
            beyond_theory=True,  # the figures are about that, and say so
        )  # fmt: skip
    except NonFiniteGradient:
        status = "diverged"
    if course.diverged:
        status = "diverged"
    elif course.complete:
        status = "reached"
    return Outcome(
        setting, problem.d, len(problem.targets), setting.factor * base, base, status, course.rounds, course.best,
        course.reached(), course.curve(), time.perf_counter() - start,
    )  # fmt: skip

"""A run: one setting from the paper's start to its last tolerance, what it measured, and the bits that it took."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, final

from thinwire import EF21BC, EF21P, EF21PP, EF21Plus, parse, simulate
from thinwire.engines.simulate import Instant
from thinwire.errors import ConfigError, NonFiniteGradient
from thinwire.feedback import Rule
from thinwire.papers.ef21.settings import EF21Setting
from thinwire.problems import Dataset, FiniteSum, file_order, least_squares_minimiser, load_dataset, objective
from thinwire.problems.minibatches import Minibatches
from thinwire.theory import Smoothness, ef21_nonconvex_step, ef21_pl_step, markov

STRENGTH = 0.1
"""λ of the regulariser."""
POINTS = 240
"""Of a curve, at most: evenly spaced rounds."""
LARGEST = 1e12
"""The measure beyond which a run counts as diverged."""
parsed = lru_cache(maxsize=64)(parse)


# ----------------------------------------------------------------------------------------------------------------- bits


def paper_bits(setting: EF21Setting, d: int, rounds: int) -> int:
    """Bits that a worker sends and hears as the paper counts: 32 for each of the k numbers, nothing for positions or
    the start. Where the server's answers count too, 32 for each of their numbers."""
    return round(rounds * 32 * ((setting.k or d) * _share(setting) + _down(setting, d)))


def honest_bits(setting: EF21Setting, d: int, rounds: int) -> int:
    """With ⌈log₂ d⌉ bits for each position, EF21+'s flag, and the start with whole gradients, whose mean EF21-BC's
    server answers whole."""
    if not rounds:
        return 0
    rule, position = parsed(setting.rule), math.ceil(math.log2(d))
    each = setting.k * (32 + position) + isinstance(rule, EF21Plus) if setting.k else 32 * d
    down = _down(setting, d) * (32 + (position if setting.down else 0))
    inner = rule.rule if isinstance(rule, EF21P) else rule
    whole = 32 * d if getattr(inner, "start", None) == "gradient" else 0
    rest = rounds - 1 if whole else rounds
    answers = whole + rest * down if isinstance(rule, EF21BC) else rounds * down
    return whole + round(rest * each * _share(setting)) + answers


def _down(setting: EF21Setting, d: int) -> int:
    """Numbers of the server's answer that count."""
    return 0 if setting.down is None else setting.down or d


def _share(setting: EF21Setting) -> float:
    """The mean share of workers that send in a round."""
    rule = parsed(setting.rule)
    return rule.probability if isinstance(rule, EF21PP) else 1.0


# --------------------------------------------------------------------------------------------------------------- result


@dataclass(frozen=True)
class Reached:
    """A tolerance, and what it took; None where the run did not reach it."""

    tolerance: float
    rounds: int | None
    paper_bits: int | None
    """32 a number: neither positions nor the start count."""
    honest_bits: int | None
    """Positions in ⌈log₂ d⌉ bits, EF21+'s flag and the start with whole gradients count as well."""
    wire_bits: int | None
    """What thinwire's own messages take: 64-bit numbers, positions, checksum and all; a server's broadcast too."""


@dataclass(frozen=True)
class EF21Run:
    """What a run did."""

    setting: EF21Setting
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

    @property
    def rule(self) -> Rule:
        return parsed(self.setting.rule)

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_plain(cls, line: dict[str, Any]) -> EF21Run:
        """The inverse of `plain`."""
        return cls(
            **line
            | {
                "setting": EF21Setting(**line["setting"]),
                "reached": tuple(Reached(**one) for one in line["reached"]),
                "curve": tuple((step, value) for step, value in line["curve"]),
            }
        )


# -------------------------------------------------------------------------------------------------------------- running


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


def theory_step(setting: EF21Setting, problem: FiniteSum, known: Smoothness) -> float:
    """1× in the paper's scripts: of L over all samples, L̃ and α = k/d; for EF21+ theorem 2's with μ = 0.1."""
    if not setting.k:
        return 1 / known.pooled
    if obstacle := setting.obstacle(len(problem.targets), problem.d):
        raise ConfigError(f"{setting.title} cannot be run: {obstacle}")
    recursion = markov(setting.k / problem.d)
    if setting.problem == "least-squares":
        assert known.mu is not None  # known up to the size that `obstacle` allows
        return ef21_pl_step(known.pooled, known.quadratic_mean, recursion, known.mu)
    if isinstance(parsed(setting.rule), EF21Plus):
        return ef21_pl_step(known.pooled, known.quadratic_mean, recursion, STRENGTH)
    return ef21_nonconvex_step(known.pooled, known.quadratic_mean, recursion)


def run(setting: EF21Setting, data: str | None = None, watch: Callable[[int], None] | None = None) -> EF21Run:
    """One setting from x⁰ to its last tolerance, or as far as it gets; `watch` is told of every round."""
    which = (setting.problem, setting.dataset, data, setting.workers)
    problem, known = problem_of(*which)
    base = theory_step(setting, problem, known)
    notes = _Notes(setting, problem, least_of(*which), watch)
    start, status = time.perf_counter(), "stopped"
    subject = problem if setting.batch == 1 else Minibatches(problem, setting.batch)
    try:
        simulate(
            subject, parsed(setting.rule), steps=setting.rounds + 1, step_size=setting.factor * base,
            watch=notes.see, beyond_theory=True,  # the figures are about that, and say so
        )  # fmt: skip
    except NonFiniteGradient:
        status = "diverged"
    if notes.diverged:
        status = "diverged"
    elif notes.complete:
        status = "reached"
    return EF21Run(
        setting, problem.d, len(problem.targets), setting.factor * base, base, status, notes.rounds, notes.best,
        notes.reached(), notes.curve(), time.perf_counter() - start,
    )  # fmt: skip


@final
class _Notes:
    """What is noted of a run, round by round; `least` is f* where f(x) − f* is the measure."""

    def __init__(
        self, setting: EF21Setting, problem: FiniteSum, least: float, watch: Callable[[int], None] | None
    ) -> None:
        self._setting, self._problem, self._least, self._watch = setting, problem, least, watch
        self._first: dict[float, tuple[int, float]] = {}
        self._points: list[tuple[int, float]] = []
        self.rounds, self.best, self.diverged = 0, math.inf, False

    def see(self, now: Instant) -> bool:
        value = self._measure(now)
        self.rounds = now.step
        if self._watch:
            self._watch(now.step)
        self.diverged = not value < LARGEST
        if self.diverged:
            return True
        self.best = min(self.best, value)
        self._points.append((now.step, value))
        for tolerance in self._setting.tolerances:
            if value <= tolerance and tolerance not in self._first:
                totals = now.ledger.summary()
                self._first[tolerance] = (now.step, totals["message_bytes"] + totals["broadcast_bytes"])
        return self.complete

    def _measure(self, now: Instant) -> float:
        """‖∇f(x)‖² by the gradients of the round where they are exact; f(x) − f* for least squares."""
        if self._setting.problem == "least-squares":
            return self._problem.loss(now.x) - self._least
        if self._setting.batch == 1:
            mean = now.gradients["x"].numpy().mean(0)
        else:
            mean = self._problem.mean_gradient(now.x["x"].numpy())
        return float(mean @ mean)

    @property
    def complete(self) -> bool:
        return len(self._first) == len(self._setting.tolerances)

    def reached(self) -> tuple[Reached, ...]:
        return tuple(self._one(tolerance) for tolerance in self._setting.tolerances)

    def _one(self, tolerance: float) -> Reached:
        if tolerance not in self._first:
            return Reached(tolerance, None, None, None, None)
        rounds, sent = self._first[tolerance]
        which = self._setting, self._problem.d, rounds
        return Reached(tolerance, rounds, paper_bits(*which), honest_bits(*which), int(8 * sent))

    def curve(self) -> tuple[tuple[int, float], ...]:
        """Every so many-th point, and the last."""
        stride = -(-len(self._points) // POINTS) or 1
        kept = self._points[::stride]
        last = self._points[-1:] if self._points and kept[-1] != self._points[-1] else []
        return tuple((step, float(f"{value:.4g}")) for step, value in (*kept, *last))

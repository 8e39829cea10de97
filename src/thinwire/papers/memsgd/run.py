"""A run: one setting from x₀ ~ N(0, 0.01²) through its epochs on the lock-free engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from thinwire.linear import (
    Average,
    Bottou,
    Decoupled,
    Final,
    InMemory,
    LockFree,
    Regulariser,
    Schedule,
    Shifted,
    Snapshot,
    Uniform,
    Weighted,
)
from thinwire.papers.memsgd.bits import wire_bits
from thinwire.papers.memsgd.data import Problem, problem_of
from thinwire.papers.memsgd.settings import SGD, Setting

GAMMA = 2.0
"""γ of figure 2's step sizes; the theorem has 8."""
START = 0.01
LOOKS = 10
"""In an epoch, but about POINTS in a run: where time is the subject few, since threads start anew after each."""
POINTS = {"theory": 100, "bits": 100, "cores": 20, "memories": 20}
LARGEST = 1e12
"""The loss beyond which a run counts as diverged."""
WARM = 64
"""Steps of a run before the clock starts, in which the kernels are compiled."""


class Point(NamedTuple):
    """A run at one moment."""

    step: int
    seconds: float
    written: int
    """Coordinates, other than zeros."""
    loss: float


@dataclass(frozen=True)
class Outcome:
    """What a run did."""

    setting: Setting
    samples: int
    d: int
    entries: float
    """Numbers other than zero in a row."""
    sparse: bool
    least: float
    """f*."""
    status: str
    """done or diverged"""
    wire_bits: float | None
    """Of one of thinwire's own messages, where bits are the subject."""
    curve: tuple[Point, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def last(self) -> Point:
        return self.curve[-1]

    def above(self, loss: float) -> float:
        """(f − f*)/f*."""
        return loss / self.least - 1

    @property
    def end(self) -> float:
        """How far above f* the run ended; infinitely where it diverged."""
        return self.above(self.last.loss) if self.status == "done" else math.inf

    def at_epoch(self, epoch: float) -> Point:
        """The first point at or after so many epochs, else the last."""
        return next((point for point in self.curve if point.step >= epoch * self.samples), self.last)

    def reaches(self, loss: float) -> Point | None:
        """The first point at or below a loss."""
        return next((point for point in self.curve if point.loss <= loss), None)


def engine_of(setting: Setting, problem: Problem) -> LockFree:
    """λ = 1/n. SGD on several threads writes without atomics, as Hogwild does."""
    schedule, regulariser, average = _choices(setting, 1 / len(problem.samples))
    start = START * np.random.default_rng(setting.seed).standard_normal(problem.samples.d)
    return LockFree(
        problem.samples, setting.rule, schedule, regulariser=regulariser, average=average, threads=setting.threads,
        memories=setting.memories if setting.threads == 1 else None, seed=setting.seed, start=start,
        atomic=setting.rule != SGD,
    )  # fmt: skip


def _choices(setting: Setting, strength: float) -> tuple[Schedule, Regulariser, Average]:
    """Figure 2 is as the paper prints it; in the others the regulariser is beside the memory and is never sent."""
    if setting.figure == "theory":
        return Shifted(GAMMA, strength, setting.size), InMemory(strength), Weighted(setting.size)
    average: Average = Uniform() if setting.figure == "bits" else Final()
    return Bottou(setting.size, strength), Decoupled(strength), average


def run(setting: Setting, data: str | None = None, watch: Callable[[int], None] | None = None) -> Outcome:
    """One setting to its last epoch, or until it diverges; `watch` is told of every look. Ctrl-C ends it."""
    problem = problem_of(setting.dataset, data)
    samples = problem.samples
    engine_of(setting, problem).run(WARM)
    engine, steps = engine_of(setting, problem), setting.epochs * len(samples)

    def see(now: Snapshot) -> bool:
        if watch is not None:
            watch(now.step)
        return not now.loss < LARGEST

    looks = min(LOOKS, max(1, POINTS[setting.figure] // setting.epochs))
    done = engine.run(steps, every=-(-len(samples) // looks), watch=see)
    if done.stopped == "interrupted":
        raise KeyboardInterrupt
    return Outcome(
        setting, len(samples), samples.d, problem.entries, not samples.dense, problem.least,
        "diverged" if done.stopped == "watch" else "done",
        wire_bits(setting.rule, samples) if setting.figure == "bits" else None,
        tuple(_point(now) for now in done.snapshots if now.loss < LARGEST),
    )  # fmt: skip


def _point(now: Snapshot) -> Point:
    return Point(now.step, round(now.seconds, 6), now.written, float(f"{now.loss:.7g}"))

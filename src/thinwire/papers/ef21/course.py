"""The course of a run: its measure round by round, and when it first reached each tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from thinwire.engines.simulate import Instant
from thinwire.papers.ef21.bits import honest_bits, paper_bits
from thinwire.papers.ef21.settings import Setting
from thinwire.problems import FiniteSum

POINTS = 240
"""Of a curve, at most: evenly spaced rounds."""
LARGEST = 1e12
"""The measure beyond which a run counts as diverged."""


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


class Course:
    """What is noted of a run, round by round; `least` is f* where f(x) − f* is the measure."""

    def __init__(self, setting: Setting, problem: FiniteSum, least: float, watch: Callable[[int], None] | None) -> None:
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
                self._first[tolerance] = (now.step, _wire_bytes(now.ledger.summary()))
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
        d = self._problem.d
        return Reached(
            tolerance,
            rounds,
            paper_bits(self._setting, d, rounds),
            honest_bits(self._setting, d, rounds),
            int(8 * sent),
        )

    def curve(self) -> tuple[tuple[int, float], ...]:
        """Every so many-th point, and the last."""
        stride = -(-len(self._points) // POINTS) or 1
        kept = self._points[::stride]
        last = self._points[-1:] if self._points and kept[-1] != self._points[-1] else []
        return tuple((step, float(f"{value:.4g}")) for step, value in (*kept, *last))


def _wire_bytes(totals: Mapping[str, float]) -> float:
    return totals["message_bytes"] + totals["broadcast_bytes"]

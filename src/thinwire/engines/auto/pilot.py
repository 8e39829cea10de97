"""Pilot: which way every bucket travels, decided by seconds on which all ranks agree."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Iterable, Mapping
from itertools import product

from thinwire.engines.auto.forecast import Forecast, probe_is_near
from thinwire.engines.auto.modes import BucketFacts, Mode, Plan, Probe, Report, Rows, Talk, Tell, Window, show_plan
from thinwire.ledger import Switch

FIRST, SETTLING = 3, 1
"""Steps that do not count: of a run (buckets are cut anew, kernels compile), and after a switch (what a memory holds is
sent)."""
WINDOW, KEPT_WINDOW = 5, 8
"""Steps of which a look takes the median: while plans are tried, and afterwards. Twice as many where steps are short:
they vary by more, and the round in which ranks tell each other is a larger share of them."""
EARLY = 2
"""Steps after which a new plan is looked at for the first time, by the shorter of them."""
SHORT = 0.03
"""Seconds of a short step."""
PLAUSIBLE = 1.5
"""A way is tried if the forecast is no longer than so many times the best: forecasts do not know how collectives and
computing get in each other's way."""
NEAR, LOOKS = 1.1, 3
"""Two ways this near each other are looked at again, up to so many times."""
TIE = 1.03
"""Within so much dense goes before 16 bits, and those before compressed: nothing is lost or late there."""
BAND, SHORT_BAND, FAR, MISSES = 1.2, 1.35, 2.0, 2
"""A step that takes so many times as long, or as little, in so many looks one after the other, or once that far: the
wire or the computing is not what it was. Short steps on cores that others use vary by a third."""
WIDER, WIDEST = 1.1, 1.6
"""Where such a change was a false alarm, steps vary by more than was thought."""
BETTER = 1.1
"""By how much another way must have been faster before it is taken again without a reason from outside."""
LISTEN, SHARE, LEAST_PROBE = 16, 0.16, 6e-3
"""While anything is not dense: steps between two probes of the wire, and how much of a step each may take: 1 % in all.
A probe of fewer milliseconds says nothing: with steps of less than 40 ms they take more, 2 % of those of 20."""
SURPRISE, LEAST = 1.6, 2e-3
"""A probe that differs by this factor, and by so many seconds, is no noise."""
RETRY = 500
"""Steps after which ways that were nearly as fast are tried again."""
SMALL, FIRST_PROBE, LARGEST = 4, 1 << 14, 1 << 22
LONG, AGAIN = 0.01, 2
"""Seconds of a probe from which on the wire's rate is known well enough, and how often it is then made again: a rank
may have been away for a moment."""
ORDER = (Mode.DENSE, Mode.HALF, Mode.COMPRESSED)
MOST_MIXED = 12
"""Buckets for which mixtures are looked for: the forecasts of more would take long."""


class Pilot:
    """Tries the plans that are plausible, for some steps each, and keeps the fastest until circumstances change.

    All ranks hold one and feed it with the same numbers, so that all decide the same: whatever a clock says goes
    through a request that every rank's answer comes back to (`Tell`, `Probe`).
    """

    def __init__(self, workers: int, note: Callable[[Switch], None] = lambda _: None) -> None:
        self._workers, self._note = workers, note
        self._modes: dict[str, Mode] = {}
        self._buckets: tuple[BucketFacts, ...] = ()
        self.plan: Plan = ()
        self.step = 0
        self._settle(FIRST)
        self._forecast = Forecast(workers, ())
        self._seconds: dict[Plan, list[float]] = {}
        self._queue: list[Plan] = []
        self._trying, self._misses, self._kept_since, self._listened = True, 0, 0, 0
        self._cold: Plan | None = None
        """What was looked at when a run began, while caches were cold: 31 ms a step where it then took 17."""
        self._reference, self._band = 0.0, BAND
        self._before: Plan = ()
        self._why = self._because = "the start"
        self.switches: list[Switch] = []

    # --------------------------------------------------------------------------------------------------- what is asked

    def mode(self, names: Iterable[str]) -> Mode:
        """How a bucket of these parameters travels now."""
        modes = {self._modes.get(name, Mode.COMPRESSED) for name in names}
        return modes.pop() if len(modes) == 1 else Mode.COMPRESSED

    def modes(self) -> Mapping[str, Mode]:
        """How each parameter travels, as a checkpoint keeps it."""
        return self._modes

    def resume(self, modes: Mapping[str, Mode]) -> None:
        """Go on from a checkpoint: with its choices, until new ones are measured."""
        self._modes, self._buckets = dict(modes), ()

    def words(self) -> list[str]:
        """What was chosen, and why."""
        if not self._buckets:
            return ["nothing was exchanged yet"]
        state = "trying" if self._trying else "chosen"
        lines = [f"{state} {show_plan(self.plan)}: {self._why}", self._forecast.words()]
        return [*lines, *map(self._told, self._known()), *map(str, self.switches)]

    def _known(self) -> list[Plan]:
        return sorted({*self._uniform(), *self._seconds, self.plan}, key=show_plan)

    def _told(self, plan: Plan) -> str:
        if plan in self._seconds:
            return f"{show_plan(plan)}: {1e3 * self._mean(plan):.4g} ms a step, measured"
        if self._forecast.wire is None:
            return f"{show_plan(plan)}: not tried"
        return f"{show_plan(plan)}: {1e3 * self._forecast(plan):.4g} ms a step by forecast, not tried"

    # ------------------------------------------------------------------------------------------------------- each step

    def after(self, report: Report) -> Talk:
        """Take in a step; what is asked of all ranks at its end, if anything."""
        self.step += 1
        if report.buckets != self._buckets:
            self._recut(report.buckets)
        elif self._unsettled > 0:
            self._unsettled -= 1
        else:
            self._window.append(report.numbers())
            if self._is_due():
                yield from self._look()

    def _recut(self, buckets: tuple[BucketFacts, ...]) -> None:
        """Buckets were cut anew: what was known of the old ones is no use."""
        self._buckets, self._forecast = buckets, Forecast(self._workers, buckets)
        self.plan = tuple(self.mode(facts.names) for facts in buckets)
        self._modes = {name: mode for facts, mode in zip(buckets, self.plan, strict=True) for name in facts.names}
        self._seconds, self._queue, self._trying, self._cold = {}, [], True, self.plan
        self._settle(FIRST - 1)

    def _settle(self, steps: int) -> None:
        """Let so many steps pass."""
        self._unsettled = steps
        self._window: list[list[int]] = []

    def _is_due(self) -> bool:
        """After a window of steps; where a plan is new, early too, lest it be far too slow. (After a single step, one
        that the machine had held up ruled a plan out for good.)"""
        is_new = self._trying and bool(self._seconds) and self.plan not in self._seconds
        return len(self._window) >= self._length or (is_new and len(self._window) == EARLY)

    @property
    def _length(self) -> int:
        seconds = min(map(self._mean, self._seconds), default=SHORT) if self._trying else self._reference
        return (WINDOW if self._trying else KEPT_WINDOW) * (2 if seconds < SHORT else 1)

    def _look(self) -> Talk:
        rows = yield Tell([statistics.median_low(column) for column in zip(*self._window, strict=True)])
        window = Window.of([statistics.median_low(column) for column in zip(*rows, strict=True)])
        early = len(self._window) < self._length
        if early and window.period <= FAR * min(map(self._mean, self._seconds)):
            return
        self._window = []
        self._forecast.learn(window, self.plan)
        yield from self._tried(window.period) if self._trying else self._kept(window.period)

    # ------------------------------------------------------------------------------------------------------ the search

    def _tried(self, seconds: float) -> Talk:
        if self.plan == self._cold and self.plan in self._seconds:
            self._cold, self._seconds[self.plan] = None, []
        self._seconds.setdefault(self.plan, []).append(seconds)
        if self._forecast.wire is None:
            yield from self._calibrate()
            self._queue = self._plausible()
        self._next()

    def _calibrate(self) -> Talk:
        """Find the wire's rate by sums of growing size, until one takes long enough to tell."""
        alpha = min((yield from self._probe(SMALL)), (yield from self._probe(SMALL)))
        nbytes, seconds = FIRST_PROBE, 0.0
        while True:
            seconds = yield from self._probe(nbytes)
            for _ in range(AGAIN if seconds > max(LONG, 3 * alpha) else 0):
                seconds = min(seconds, (yield from self._probe(nbytes)))
            if seconds > max(LONG, 3 * alpha) or nbytes >= LARGEST:
                break
            nbytes *= 4
        self._forecast.probed(alpha, nbytes, seconds)

    def _probe(self, nbytes: int) -> Generator[Tell | Probe, Rows, float]:
        rows = yield Probe(nbytes)
        return min(row[0] for row in rows) / 1e6  # who came last has not waited for the others

    def _plausible(self) -> list[Plan]:
        """The plans that are worth trying, the most promising first: beside what was measured, where anything was, for
        a forecast may be too good."""
        forecasts = {plan: self._forecast(plan) for plan in self._candidates() if plan not in self._seconds}
        best = min([*forecasts.values(), *map(self._mean, self._seconds)])
        return sorted((plan for plan, each in forecasts.items() if each <= PLAUSIBLE * best), key=forecasts.__getitem__)

    def _candidates(self) -> list[Plan]:
        """The plans of one mode for all, and the best mixture where it promises more than those."""
        uniform = self._uniform()
        if not 1 < len(self._buckets) <= MOST_MIXED:
            return uniform
        best = min(uniform, key=self._forecast)
        mixed = self._improved(best)
        return [*uniform, mixed] if self._forecast(mixed) < self._forecast(best) / TIE else uniform

    def _uniform(self) -> list[Plan]:
        count = len(self._buckets)
        halves = any(facts.halves for facts in self._buckets)
        return [self._allowed((mode,) * count) for mode in ORDER if halves or mode is not Mode.HALF]

    def _allowed(self, plan: Plan) -> Plan:
        """No 16 bits where a number has no more."""
        return tuple(
            Mode.DENSE if mode is Mode.HALF and not facts.halves else mode
            for mode, facts in zip(plan, self._buckets, strict=True)
        )

    def _improved(self, plan: Plan) -> Plan:
        """One bucket changed after the other, as long as the forecast falls."""
        for place, mode in product(range(len(plan)), ORDER):
            other = self._allowed((*plan[:place], mode, *plan[place + 1 :]))
            if self._forecast(other) < self._forecast(plan):
                plan = other
        return plan

    def _next(self) -> None:
        """Try the next plan, look again at two that are near each other, or keep the best."""
        queue = [plan for plan in self._queue if plan not in self._seconds] or self._plausible()
        again = [] if queue else self._doubtful()
        self._queue = queue[1:]
        if queue or again:
            plan = (queue or again)[0]
            self._take(plan, self._tried_why(plan))
        else:
            self._keep()

    def _tried_why(self, plan: Plan) -> str:
        if plan in self._seconds:
            return "another look at two that are nearly as fast"
        return f"on trial, forecast {1e3 * self._forecast(plan):.3g} ms a step; set off by {self._because}"

    def _doubtful(self) -> list[Plan]:
        """What was looked at cold, if it may be the fastest; else the one of the two fastest that was looked at least,
        where they are near each other."""
        first, *others = sorted(self._seconds, key=self._mean)
        if self._cold in others and self._mean(self._cold) <= FAR * self._mean(first):
            return [self._cold]
        near = [first, *(plan for plan in others[:1] if self._mean(plan) <= NEAR * self._mean(first))]
        if len(near) < 2:
            return []
        least = min(near, key=lambda plan: (len(self._seconds[plan]), plan != self.plan))
        return [least] if len(self._seconds[least]) < LOOKS else []

    def _keep(self) -> None:
        fastest = min(map(self._mean, self._seconds))
        near = [plan for plan in self._seconds if self._mean(plan) <= TIE * fastest]
        plan = min(near, key=lambda plan: sum(ORDER.index(mode) for mode in plan) / len(plan))
        self._trying, self._misses, self._reference = False, 0, self._mean(plan)
        narrow = BAND if self._reference >= SHORT else SHORT_BAND
        self._band = max(narrow, min(self._band * WIDER, WIDEST)) if plan == self._before else narrow
        self._kept_since = self._listened = self.step
        self._take(plan, self._measured_why(plan))

    def _measured_why(self, plan: Plan) -> str:
        others = [f"{show_plan(other)} {1e3 * self._mean(other):.4g}" for other in self._seconds if other != plan]
        beside = f", beside {', '.join(others)}" if others else ", and nothing else promises to come near"
        return f"{1e3 * self._mean(plan):.4g} ms a step{beside}"

    def _mean(self, plan: Plan) -> float:
        return statistics.fmean(self._seconds[plan])

    def _take(self, plan: Plan, why: str) -> None:
        """Go over to a plan from the next step on."""
        self._why = why
        if plan == self.plan:
            return
        switch = Switch(self.step, show_plan(self.plan), show_plan(plan), why)
        self.switches.append(switch)
        self._note(switch)
        self.plan = plan
        self._modes = {name: m for facts, m in zip(self._buckets, plan, strict=True) for name in facts.names}
        self._settle(SETTLING)

    # --------------------------------------------------------------------------------------------------------- keeping

    def _kept(self, seconds: float) -> Talk:
        ratio = seconds / self._reference
        self._misses = 0 if 1 / self._band < ratio < self._band else self._misses + 1
        if self._misses >= MISSES or not 1 / FAR < ratio < FAR:
            yield from self._begin_anew(
                f"steps that take {1e3 * seconds:.4g} ms in place of {1e3 * self._reference:.4g}", seconds
            )
        elif self._is_time_to_listen():
            yield from self._listen(seconds)
        else:
            self._reconsider(seconds)

    def _reconsider(self, seconds: float) -> None:
        """Follow slow changes; try again, after a long time, what was nearly as fast."""
        self._reference += 0.2 * (seconds - self._reference)
        self._seconds[self.plan] = [self._reference]
        if self.step - self._kept_since >= RETRY:
            near = [plan for plan in self._seconds if self._mean(plan) <= NEAR * self._reference]
            self._seconds = {self.plan: [self._reference]}
            self._queue, self._trying = [plan for plan in near if plan != self.plan], True
            self._because = "a look, now and then, at what was nearly as fast"
            self._next()
        elif min(map(self._mean, self._seconds)) < self._reference / BETTER:
            self._keep()

    def _is_time_to_listen(self) -> bool:
        return set(self.plan) != {Mode.DENSE} and self.step - self._listened >= LISTEN

    def _listen(self, seconds: float) -> Talk:
        """Probe the wire, which short messages say little of; twice where the first answer is a surprise."""
        self._listened = self.step
        nbytes = min(max(self._forecast.probe_bytes(max(SHARE * seconds, LEAST_PROBE)), FIRST_PROBE // 4), LARGEST // 4)
        expected = self._forecast.probe_seconds(nbytes)
        found = yield from self._probe(nbytes)
        if not probe_is_near(found, expected, SURPRISE, LEAST):
            again = yield from self._probe(nbytes)
            if not probe_is_near(again, expected, SURPRISE, LEAST):
                took = f"{1e3 * min(found, again):.3g} ms in place of {1e3 * expected:.3g}"
                why = f"a sum of {nbytes:,} bytes that takes {took}"
                yield from self._begin_anew(why, seconds)
                return
        self._reconsider(seconds)

    def _begin_anew(self, why: str, seconds: float) -> Talk:
        """Forget how long plans took, probe the wire, and try again what is plausible."""
        self._forecast.wire, self._seconds = None, {}
        self._trying, self._because, self._before, self._cold = True, why, self.plan, None
        yield from self._tried(seconds)

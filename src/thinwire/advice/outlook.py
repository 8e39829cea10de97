"""The outlook: what steps take by each method over one wire, forecast with an interval, and what is to be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from thinwire.advice.candidates import FULL, TORCHS, outer_of
from thinwire.advice.rehearsal import Rehearsal
from thinwire.lab.sections import show_ms
from thinwire.lab.setting import ALONE, DENSE, Cable
from thinwire.link import show_rate
from thinwire.report.page import Section
from thinwire.timeline import Collective, StepTime, Wire
from thinwire.training.formatting import NOTHING, plural, show_bytes, show_count

HOP, LAUNCH = 2e-4, 2e-4
"""Seconds of one message between two hosts of a wired network, and of beginning a collective on gloo, where neither
was measured."""
SHARES = {"sum": 0.88, "gather": 0.9, "tell": 0.9}
"""What is left of a rate for the bytes that are counted: headers and acknowledgements take 0.07, and the hops of a ring
wait for each other."""
BELOW, ABOVE = 0.15, 0.25
"""How far from the forecast a measured step may be, as a share: beside how much the rounds of computing differed."""
WORTH = 0.95
"""Of the time of what sends everything: what saves less is not worth its noise."""


WORKERS, PARAMETERS, RATES = (2, 4), (55_018, 3_307_264), (2e7, 1e9)
"""What forecasts were held against: see docs/advisor.md."""
LOSS = "Time is not loss: what each method does to it, by optimizer, is in docs/choosing.md."
HEAD = [
    "method",
    "ms\na step",
    "from –\nto",
    "speed /\ndense",
    "encode +\ndecode",
    "wire +\nwaiting",
    "bytes\na step",
    "state, bytes\na parameter",
]
NOTES = (
    "ms a step are FORECAST, from what computing and encoding take and from what the wire would carry beside them; "
    "docs/advisor.md says how often what was measured lay between from and to.",
    "wire + waiting is what is not hidden behind the backward pass. torch's hooks encode out of sight. State is what a "
    "method remembers beside model, gradients and optimizer.",
)


def usual_wire(workers: int, latency: float = HOP) -> Wire:
    """A wired network that nobody has measured, without a rate."""
    ring = 2 * (workers - 1)
    return Wire(
        workers,
        sum=Collective(alpha=LAUNCH + ring * latency),
        gather=Collective(alpha=LAUNCH + ring / 2 * latency),
        tell=Collective(alpha=LAUNCH + latency),
    )


def tcp(wire: Wire) -> Wire:
    """A wire whose rates are those of cables, of which TCP leaves a share."""
    return replace(
        wire,
        sum=replace(wire.sum, share=SHARES["sum"]),
        gather=replace(wire.gather, share=SHARES["gather"]),
        tell=replace(wire.tell, share=SHARES["tell"]),
    )


@dataclass(frozen=True)
class Prospect:
    """One method over one wire; seconds."""

    method: str
    step: StepTime
    low: float
    high: float
    state: float | None
    """Bytes a parameter that it remembers."""

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.step.total


@dataclass(frozen=True)
class Advice:
    """Forecasts of every method over one wire: `rows`, the `best` of them, a `verdict`; `str()` of it shows all.

    >>> import torch
    >>> import torch.distributed as dist
    >>> from torch.nn.parallel import DistributedDataParallel
    >>> from thinwire import advise
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> ddp = DistributedDataParallel(torch.nn.Linear(100, 100))
    >>> loss, asked = lambda model: model(torch.ones(4, 100)).sum(), {"workers": 2, "rounds": 1}
    >>> advice = advise(ddp, loss, "1mbit", methods="plain(qsgd(15))", **asked)
    >>> [row.method for row in advice.rows if not row.method.startswith("powersgd")]
    ['alone', 'dense', 'fp16', 'plain(qsgd(15))']
    >>> dist.destroy_process_group()
    """

    rehearsal: Rehearsal
    wire: Wire

    @cached_property
    def rows(self) -> tuple[Prospect, ...]:
        """No exchange at all, then every method."""
        return tuple(self._row(method) for method in (ALONE, *self.rehearsal.found.burdens))

    def _row(self, method: str) -> Prospect:
        found = self.rehearsal.found
        if method == ALONE:
            compute = self.rehearsal.compute.total
            nothing = StepTime(compute, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
            return Prospect(ALONE, nothing, compute * found.low, compute * found.high, 0.0)
        step = self.rehearsal.step(method, self.wire)
        wire = step.exposed + step.verdict
        low = min((1 - BELOW) * step.total, wire + found.low * (step.total - wire))
        high = max((1 + ABOVE) * step.total, wire + found.high * (step.total - wire))
        return Prospect(method, step, low, high, found.burdens[method].state)

    def row(self, method: str) -> Prospect:
        """Of a method."""
        return next(row for row in self.rows if row.method == method)

    @property
    def full(self) -> Prospect:
        """The faster of dense float32 and torch's 16-bit hook."""
        return min((self.row(method) for method in FULL), key=_seconds)

    @property
    def rivals(self) -> list[Prospect]:
        """What compresses, and exchanges at every step."""
        return [row for row in self.rows if row.method not in (ALONE, *FULL) and outer_of(row.method) is None]

    @property
    def fastest(self) -> Prospect:
        """Of those that compress and exchange at every step."""
        return min(self.rivals, key=_seconds, default=self.full)

    @property
    def best(self) -> Prospect:
        """What is advised: the method of the optimizer (or named first) where it pays, else the fastest that does; and
        where none does, the faster of those that send everything."""
        own = [row for row in self.rivals if row.method not in TORCHS][:1]
        return next((row for row in (*own, self.fastest) if pays(row, self.full)), self.full)

    @property
    def compresses(self) -> bool:
        """Whether it is advised to."""
        return self.best.method not in FULL

    @property
    def verdict(self) -> str:
        """What to do, in a sentence."""
        full, best, fastest = self.full, self.best, self.fastest
        ms = {row.method: f"{row.method} takes {show_ms(1e3 * row.seconds)} ms a step" for row in self.rows}
        if self.compresses:
            sooner = "" if best is fastest else f" Fastest: {ms[fastest.method]}."
            beside = (
                f"{full.method} {show_ms(1e3 * full.seconds)}, {show_count(full.seconds / best.seconds)} times as long"
            )
            return f"Compress: {ms[best.method]}, {beside}.{sooner}"
        words = f"{ms[fastest.method]}, {full.method} {show_ms(1e3 * full.seconds)}"
        if fastest.seconds < WORTH * full.seconds:
            return f"Do not compress unless a measurement says so: {words}, and their intervals overlap."
        return f"Do not compress: {words}."

    @property
    def outside(self) -> list[str]:
        """In what this question goes beyond all that forecasts were ever held against."""
        found, rate = self.rehearsal.found, self.wire.rate
        asked = {
            "workers": (self.wire.workers, WORKERS),
            "parameters": (found.parameters, PARAMETERS),
            "bits a second": (rate, RATES),
        }
        return [
            f"{value:,.0f} {what}: forecasts were held against measurements of {low:,.0f} to {high:,.0f} alone"
            for what, (value, (low, high)) in asked.items()
            if value is not None and not low <= value <= high
        ]

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        rows = [
            {"method": row.method, "seconds": row.seconds, "low": row.low, "high": row.high, "state": row.state}
            | {f"{part.name}": getattr(row.step, part.name) for part in fields(row.step)}
            for row in self.rows
        ]
        asked = {"workers": self.wire.workers, "up": self.wire.up, "down": self.wire.down}
        answer = {"best": self.best.method, "verdict": self.verdict, "outside": self.outside}
        return {**asked, "model": self.rehearsal.model, **answer, "rows": rows}

    @property
    def section(self) -> Section:
        """For a page, and for the terminal."""
        return Section(
            title=f"{self.rehearsal.model} · {plural(self.wire.workers, 'worker')} · {self._cable}",
            facts=self._facts,
            sentences=[self.verdict, *(f"OUTSIDE of what was ever checked: {each}." for each in self.outside), LOSS],
            table=[HEAD, *map(self._cells, self.rows)],
            charts=(),
            notes=NOTES,
        )

    @property
    def _cable(self) -> str:
        if self.rehearsal.known and self.wire.rate is None:
            goodput = 8 / self.wire.sum.least if self.wire.sum.least else None
            return "the network as measured" + ("" if goodput is None else f", {show_rate(goodput)} around a ring")
        return str(Cable(self.wire.up, self.wire.up if self.wire.down is None else self.wire.down))

    @property
    def _facts(self) -> list[str]:
        one = self.rehearsal
        crowd = f", {one.here} at once" if one.here > 1 else ""
        batch = [] if one.batch is None else [f"{plural(one.batch, 'sample')} a worker and step"]
        measured = f"computing and encoding measured on {one.machine}, {plural(one.cores, 'core')}{crowd}"
        latency = "latencies measured" if one.known else f"{1e3 * HOP:g} ms a message ASSUMED"
        return [f"{one.found.parameters:,} parameters", *batch, measured, latency]

    def _cells(self, row: Prospect) -> list[str]:
        step = row.step
        return [
            row.method,
            show_ms(1e3 * row.seconds),
            f"{show_ms(1e3 * row.low)} – {show_ms(1e3 * row.high)}",
            f"{show_count(self.row(DENSE).seconds / row.seconds)}×",
            NOTHING if row.method in TORCHS or row.method == ALONE else show_ms(1e3 * (step.encode + step.decode)),
            show_ms(1e3 * (step.exposed + step.verdict)),
            show_bytes(step.sent),
            NOTHING if row.state is None else f"{row.state:g}",
        ]

    def __str__(self) -> str:
        section = self.section
        lines = [f"{section.title}: {', '.join(section.facts)}", *_aligned(section.table), *section.sentences]
        return "\n".join(lines)


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Cells under each other: the first column to the left, numbers to the right."""
    rows = [[cell.replace("\n", " ") for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def _seconds(row: Prospect) -> float:
    return row.seconds


def pays(rival: Prospect, full: Prospect) -> bool:
    """Whether a method is faster even if it is as slow as may be, and what sends everything as fast as may be."""
    return rival.high < full.low

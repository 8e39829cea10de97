"""Forecasts held against measurements that had no part in them: steps of the laboratory, by every method at every rate.

What a forecast knows of a trial is what computing and encoding take of the same machine, and what collectives take
there where nothing limits the rate. No step that exchanged anything, and no wire that was shaped, is among it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire.advice.candidates import FULL
from thinwire.advice.outlook import Advice, Prospect, pays
from thinwire.advice.rehearsal import Rehearsal
from thinwire.lab.block import Block
from thinwire.lab.sections import show_ms
from thinwire.lab.setting import ALONE
from thinwire.report.page import Section
from thinwire.report.record_file import Experiment, one_line_each
from thinwire.training.formatting import plural

ADVISOR = "advisor"


@dataclass(frozen=True)
class Trialled:
    """One method of one block: what was forecast, and what the laboratory measured."""

    setting: str
    forecast: Prospect
    measured: float
    """Seconds a step."""
    compresses: bool | None
    """Whether the forecast says that it pays; None where it sends everything."""
    paid: bool
    """Whether it was faster than whatever sends everything."""

    @property
    def error(self) -> float:
        """Of the forecast, as a share of what was measured; below 0 where it was too fast."""
        return self.forecast.seconds / self.measured - 1

    @property
    def within(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.forecast.low <= self.measured <= self.forecast.high


@dataclass(frozen=True)
class HeldOut:
    """A rehearsal, and the laboratory's blocks of the same model, machine and number of workers."""

    rehearsal: Rehearsal
    blocks: tuple[Block, ...]

    def plain(self) -> dict[str, Any]:
        """As a record has it; `of_plain` is the inverse."""
        return {"rehearsal": self.rehearsal.plain(), "blocks": [block.plain() for block in self.blocks]}

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> HeldOut:
        return HeldOut(Rehearsal.of_plain(plain["rehearsal"]), tuple(map(Block.of_plain, plain["blocks"])))

    @property
    def trials(self) -> list[Trialled]:
        """Every method at every rate, forecast anew from the rehearsal."""
        return [trial for block in self.blocks for trial in self._of(block)]

    def _of(self, block: Block) -> list[Trialled]:
        cable = block.cable
        advice = Advice(self.rehearsal, self.rehearsal.wire.shaped(cable.up, cable.down))
        full = min(block.trial(method).median for method in FULL)
        setting = f"{block.task} · {plural(block.hosts, 'host')} · {cable}"
        return [
            Trialled(
                setting,
                row,
                block.trial(row.method).median / 1e3,
                None if row.method in FULL else pays(row, advice.full),
                block.trial(row.method).median < full,
            )
            for row in advice.rows
            if row.method != ALONE and any(trial.method == row.method for trial in block.trials)
        ]


def sections(checks: Sequence[HeldOut]) -> list[Section]:
    """One table of all, with what comes of it."""
    trials = [trial for check in checks for trial in check.trials]
    return [
        Section(
            title="Forecasts beside measurements",
            facts=[plural(len(trials), "combination"), "none of them used to make a forecast"],
            sentences=verdicts(trials),
            table=[
                ["setting", "method", "forecast,\nms a step", "from –\nto", "measured", "error"],
                *map(_cells, trials),
            ],
            charts=(),
            notes=("error: the forecast beside the measured median, below zero where the forecast was too fast.",),
        )
    ]


def verdicts(trials: Sequence[Trialled]) -> list[str]:
    """How far off forecasts are, and how often their advice was wrong."""
    errors = [abs(trial.error) for trial in trials]
    worst = max(trials, key=lambda trial: abs(trial.error))
    within = sum(trial.within for trial in trials)
    said = [trial for trial in trials if trial.compresses]
    asked = [trial for trial in trials if trial.compresses is not None]
    wrong = sum(not trial.paid for trial in said)
    missed = sum(trial.paid for trial in asked if not trial.compresses)
    return [
        f"Median error {statistics.median(errors):.0%}; {sum(error <= 0.4 for error in errors)} of {len(errors)} are "
        f"within 40 %. The worst is {worst.error:+.0%}: {worst.forecast.method}, {worst.setting}.",
        f"The interval holds {within} of {len(trials)} measurements.",
        f"Of {len(asked)} questions whether a method pays, {len(said)} were answered by yes, {wrong} of them wrongly "
        f"({wrong / max(len(asked), 1):.1%} of all); {missed} methods paid of which it was not said.",
    ]


def _cells(trial: Trialled) -> list[str]:
    row = trial.forecast
    return [
        trial.setting,
        row.method,
        show_ms(1e3 * row.seconds),
        f"{show_ms(1e3 * row.low)} – {show_ms(1e3 * row.high)}",
        show_ms(1e3 * trial.measured),
        f"{trial.error:+.0%}",
    ]


ADVISOR_EXPERIMENT = Experiment(ADVISOR, one_line_each(ADVISOR, HeldOut.of_plain), sections)

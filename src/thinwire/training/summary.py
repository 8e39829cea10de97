"""The summary: runs that differ in their seed alone, taken together as one row of a table."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

from thinwire.link import show_rate
from thinwire.training.config import RunConfig
from thinwire.training.records import CUT_OFF, RunRecord

ACCURACY = "accuracy"


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; the deviation of one seed is unknown."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Over the values that are there; None when there are none."""
        there = [value for value in values if value is not None and math.isfinite(value)]
        if not there:
            return None
        return cls(statistics.fmean(there), statistics.stdev(there) if len(there) > 1 else None)


@final
class _Total:
    """A total of the runs' `end` lines, over the seeds."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, row: Row | None, owner: type) -> Spread | None:
        return Spread.of(run.end.get(self._name) for run in (row.runs if row else ()))


@dataclasses.dataclass(frozen=True)
class Row:
    """One method at one setting, over its seeds."""

    label: str
    config: RunConfig
    """The first seed's."""
    runs: tuple[RunRecord, ...]

    seconds = _Total()
    sent_bytes = _Total()
    ratio_fp32 = _Total()
    ratio_fp16 = _Total()
    ratio_elements = _Total()
    ratio_message = _Total()
    ratio_effective = _Total()

    @property
    def seeds(self) -> list[int]:
        return [run.config.seed for run in self.runs]

    @property
    def diverged(self) -> int:
        """How many of the runs ended early with a loss that was no number."""
        return sum(run.end["status"] not in ("done", CUT_OFF) for run in self.runs)

    @property
    def cut_off(self) -> bool:
        """Whether the record breaks off within these runs."""
        return all(run.cut_off for run in self.runs)

    @property
    def metric(self) -> Spread | None:
        return Spread.of(run.metric for run in self.runs)

    @property
    def accuracy(self) -> Spread | None:
        """Of the runs that came to their end, where the task's metric is another one."""
        ended = [run for run in self.runs if run.metric is not None and run.task["metric"] != ACCURACY]
        return Spread.of(run.end["values"].get(ACCURACY) for run in ended)

    @property
    def warm_up(self) -> float | None:
        """Seconds that went into compiling and warming up before any of the runs; None in a record that has none."""
        known = [run.end["warm_up_seconds"] for run in self.runs if "warm_up_seconds" in run.end]
        return sum(known) if known else None


def summarise(runs: Sequence[RunRecord]) -> list[Row]:
    """One row for each configuration up to its seed, in order of appearance; runs that were cut off have their own."""
    groups: dict[tuple[RunConfig, bool], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault((dataclasses.replace(run.config, seed=0), run.cut_off), []).append(run)
    labels = _labels([config for config, _ in groups])
    return [
        Row(label + (f" · {CUT_OFF}" if cut_off else ""), group[0].config, tuple(group))
        for label, ((_, cut_off), group) in zip(labels, groups.items(), strict=True)
    ]


_DISTINCTIONS: tuple[tuple[str, Callable[[RunConfig], Any]], ...] = (
    ("lr", lambda config: f"{config.lr:g}"),
    ("optimizer", lambda config: config.optimizer),
    ("schedule", lambda config: config.schedule),
    ("workers", lambda config: config.workers),
    ("engine", lambda config: config.engine),
    ("batch", lambda config: config.batch),
    ("steps", lambda config: config.steps),
    ("link", lambda config: "none" if config.rate is None else show_rate(config.rate)),
)


def _labels(configs: Sequence[RunConfig]) -> list[str]:
    """The methods' texts; where one method stands in several rows, with the settings in which they differ."""
    shared = Counter(config.method for config in configs)
    return [
        config.method if shared[config.method] == 1 else config.method + _distinction(config, configs)
        for config in configs
    ]


def _distinction(config: RunConfig, configs: Sequence[RunConfig]) -> str:
    twins = [other for other in configs if other.method == config.method]
    moving = [(name, show) for name, show in _DISTINCTIONS if len({show(twin) for twin in twins}) > 1]
    return "".join(f" · {name} {show(config)}" for name, show in moving)

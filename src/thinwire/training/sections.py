"""The sections of training runs: for each task a table of its methods, charts, and in plain sentences what compression
saved, what it cost and whether it paid in time."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from thinwire.link import seconds_on, show_rate
from thinwire.report.page import Axis, Chart, Look, Section, Series, looks, section_for_each
from thinwire.report.record_file import TRAINING, Experiment
from thinwire.training.config import TORCH_METHODS, RunConfig
from thinwire.training.formatting import (
    NOTHING,
    metric_name,
    plural,
    show_bytes,
    show_count,
    show_fewer,
    show_metric,
    show_seconds,
    show_spread,
    times_fewer,
)
from thinwire.training.records import Point, RunRecord, runs_of_lines
from thinwire.training.summary import Row, summarise

NOTES = ("Wall time is the time of training steps on rank 0; bytes are what leaves one worker.",)
LINK_NOTES = (
    "An emulated link hands out what a collective gives no sooner than a link of that rate would have carried its "
    "bytes, first in, first out: real processes, real collectives, but no packets, no headers and no losses. Time to "
    "dense: seconds until the test metric was first within 1 % of the dense run's last.",
)
BYTES = Axis("bytes sent by a worker", log=True, unit="B")
STEPS = Axis("steps", zero=True, noun="steps")
SECONDS = Axis("seconds", zero=True, noun="seconds")
LOSS = Axis("", log=True)
NEAR = 0.01
"""A metric counts as near the dense one within this share of it."""
SMOOTH_SHARE = 0.08
"""Width of the running mean over training losses, as a share of the curve: single batches are noisy."""


def sections(runs: Sequence[RunRecord]) -> list[Section]:
    """A section for each task, its data, and the emulated link between the workers."""
    linked = any(run.config.rate is not None for run in runs)
    key = attrgetter("config.task", "config.data", "config.rate")
    return section_for_each(runs, key, partial(_section, linked))


def _section(linked: bool, runs: Sequence[RunRecord]) -> Section:
    """Of runs behind one link, or of none; `linked` says whether there is a link in any of the page's."""
    rows = summarise(runs)
    columns, styles = _timed_columns(rows) if linked else _columns(rows), looks_of(rows)
    labels = [row.label for row in rows]
    return Section(
        title=" · ".join(_title(runs[0].config, linked)),
        facts=_facts(rows),
        sentences=verdict(rows, timed=linked),
        table=[list(columns), *([cell(row) for cell in columns.values()] for row in rows)],
        charts=[
            *([race(rows, styles, labels)] if runs[0].config.rate is not None else []),
            *charts(rows, styles, labels),
        ],
        looks=styles,
        provenance=origins(runs),
        notes=[*NOTES, *LINK_NOTES] if linked else NOTES,
    )


def _title(config: RunConfig, linked: bool) -> list[str]:
    data = [Path(config.data).name] if config.data else []
    return [config.task, *data, *([link_words(config.rate)] if linked else [])]


def link_words(rate: float | None) -> str:
    """What joins the workers.

    >>> link_words(1e8), link_words(None)
    ('emulated link, 100 Mbit/s', 'no link, bare loopback')
    """
    return "no link, bare loopback" if rate is None else f"emulated link, {show_rate(rate)}"


# ---------------------------------------------------------------------------------------------------------------- table


def looks_of(rows: Sequence[Row]) -> list[Look]:
    """Colours for our methods, grey for torch's own: they are the ground that ours stand on."""
    return looks([row.config.method in TORCH_METHODS for row in rows])


def _facts(rows: Sequence[Row]) -> list[str]:
    """Settings that all runs share, as short phrases."""
    shown = [set(phrases) for phrases in zip(*(_phrases(row, run) for row in rows for run in row.runs), strict=True)]
    return [phrase for each in shown if len(each) == 1 for phrase in each if phrase]


def _phrases(row: Row, run: RunRecord) -> tuple[str, ...]:
    config = run.config
    return (
        plural(config.workers, "worker"),
        "real processes on gloo" if config.engine == "ddp" else "simulated in one process",
        f"{run.task['parameters']:,} parameters",
        f"{config.steps:,} steps",
        f"{config.batch} samples a worker and step",
        f"{config.optimizer}, {config.schedule} learning rate",
        f"lr {config.lr:g}",
        plural(len(row.runs), "seed"),
        str(run.task["data"].get("source", "")),
    )


def _columns(rows: Sequence[Row]) -> dict[str, Callable[[Row], str]]:
    """The table's columns: its head, and what stands in a row; what all rows share is among the facts."""
    columns: dict[str, Callable[[Row], str]] = {"method": lambda row: row.label}
    if len({row.config.lr for row in rows}) > 1:
        columns["lr"] = lambda row: f"{row.config.lr:g}"
    if len({len(row.runs) for row in rows}) > 1:
        columns["seeds"] = lambda row: str(len(row.runs))
    columns[metric_name(rows[0]).replace(" ", "\n", 1)] = show_metric
    if any(row.accuracy for row in rows):
        columns["test\naccuracy"] = lambda row: show_spread(row.accuracy, percent=True)
    return columns | {
        "a worker\nsent": lambda row: show_bytes(row.sent_bytes.mean) if row.sent_bytes else NOTHING,
        "fewer bytes\nthan fp32": lambda row: show_fewer(row.ratio_fp32),
        "fewer bytes\nthan fp16": lambda row: show_fewer(row.ratio_fp16),
        "wall\ntime": lambda row: show_seconds(row.seconds.mean) if row.seconds else NOTHING,
    }


def _timed_columns(rows: Sequence[Row]) -> dict[str, Callable[[Row], str]]:
    """The same where time is what is asked for: of a step, of the run, and until the dense run's metric is reached."""
    columns = _columns(rows)
    for left_out in ("test\naccuracy", "fewer bytes\nthan fp16"):
        if left_out != metric_name(rows[0]).replace(" ", "\n", 1):
            columns.pop(left_out, None)
    wall = columns.pop("wall\ntime")
    goal = _goal(rows)
    columns |= {
        "ms\na step": lambda row: f"{1e3 * row.seconds.mean / row.config.steps:.0f}" if row.seconds else NOTHING,
        "wall\ntime": wall,
    }
    if goal is not None and rows[0].config.rate is not None:
        columns["time to\ndense"] = lambda row: _show_reached(reached(row, goal))
    return columns


def _show_reached(seconds: float | None) -> str:
    return "not reached" if seconds is None else show_seconds(seconds)


def _goal(rows: Sequence[Row]) -> float | None:
    """The last test metric of dense training: a mean over its seeds."""
    dense = _dense(rows)
    return None if dense is None or dense.metric is None else dense.metric.mean


def _dense(rows: Sequence[Row]) -> Row | None:
    return next((row for row in rows if row.config.method == "dense" and not row.cut_off), None)


def reached(row: Row, goal: float) -> float | None:
    """Seconds of training steps until the test metric is first near a goal, a mean over seeds; None if any is not."""
    higher = bool(row.runs[0].task["higher_is_better"])
    first = [
        next((point.seconds for point in run.metrics if is_near(point.value, goal, higher=higher)), None)
        for run in row.runs
    ]
    found = [seconds for seconds in first if seconds is not None]
    return statistics.fmean(found) if len(found) == len(first) else None


def origins(runs: Sequence[RunRecord]) -> list[dict[str, str]]:
    """Where each run comes from, as the foot of a section tells it."""
    return [_origin(run) for run in runs]


def _origin(run: RunRecord) -> dict[str, str]:
    about = {"config": run.config.asdict(), "task": run.task, "provenance": run.provenance, "end": run.end}
    return {
        "title": " · ".join([run.config.method, *_link(run.config), f"seed {run.config.seed}"]),
        "json": json.dumps(about, indent=2, ensure_ascii=False),
    }


def _link(config: RunConfig) -> list[str]:
    return [] if config.rate is None else [link_words(config.rate)]


# --------------------------------------------------------------------------------------------------------------- charts


def race(rows: Sequence[Row], looks: Sequence[Look], labels: Sequence[str]) -> Chart:
    """The test metric against seconds."""
    name, task = metric_name(rows[0]), rows[0].runs[0].task
    courses = [curves(row)["metric"] for row in rows]
    series = [
        Series(label, course["seconds"], course["mean"], look, course["low"], course["high"])
        for label, course, look in zip(labels, courses, looks, strict=True)
    ]
    y = Axis("", log=not task["percent"], percent=task["percent"])
    note = f"{link_words(rows[0].config.rate)}; time in training steps, on data that training never sees"
    return Chart(f"{name[0].upper()}{name[1:]} against seconds", note, SECONDS, y, series)


def charts(rows: Sequence[Row], looks: Sequence[Look], labels: Sequence[str]) -> list[Chart]:
    """Training loss against bytes, steps and seconds, and the test metric against bytes."""
    courses = [curves(row) for row in rows]

    def chart(title: str, note: str, x: tuple[str, Axis], y: tuple[str, Axis]) -> Chart:
        series = [
            Series(label, course[y[0]][x[0]], course[y[0]]["mean"], look, course[y[0]]["low"], course[y[0]]["high"])
            for label, course, look in zip(labels, courses, looks, strict=True)
        ]
        return Chart(title, note, x[1], y[1], series)

    name = metric_name(rows[0])
    sent, loss = ("bytes", BYTES), ("loss", LOSS)
    metric = ("metric", Axis("", percent=rows[0].runs[0].task["percent"]))
    return [
        chart("Training loss against bytes", "what one worker has sent so far, logarithmic", sent, loss),
        chart("Training loss against steps", "running mean over batches; bands span the seeds", ("steps", STEPS), loss),
        chart(
            "Training loss against seconds", "time in training steps, evaluation left out", ("seconds", SECONDS), loss
        ),
        chart(f"{name[0].upper()}{name[1:]} against bytes", "on data that training never sees", sent, metric),
    ]


def curves(row: Row) -> dict[str, Any]:
    """The mean course of training loss and test metric, with the range over seeds where there are several."""
    return {
        "loss": _course([run.losses for run in row.runs], SMOOTH_SHARE),
        "metric": _course([run.metrics for run in row.runs], 0.0),
    }


def _course(runs: Sequence[Sequence[Point]], share: float) -> dict[str, list[float]]:
    """Point by point over the runs, as far as all of them got."""
    length = min((_finite_length(points) for points in runs), default=0)
    values = [smooth([point.value or 0.0 for point in points[:length]], share) for points in runs]
    columns = list(zip(*values, strict=True))
    points = [column[:length] for column in runs]
    return {
        "steps": [float(point.step) for point in points[0]] if points else [],
        "bytes": _means([[point.sent_bytes for point in run] for run in points]),
        "seconds": _means([[point.seconds for point in run] for run in points]),
        "mean": [statistics.fmean(column) for column in columns],
        "low": [min(column) for column in columns],
        "high": [max(column) for column in columns],
    }


def _means(runs: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.fmean(column) for column in zip(*runs, strict=True)]


def _finite_length(points: Sequence[Point]) -> int:
    """How many points come before the first value that is no number."""
    return next((place for place, point in enumerate(points) if point.value is None), len(points))


def smooth(values: Sequence[float], share: float) -> list[float]:
    """The centred running mean over a window of `share` of the values, cut off at both ends.

    >>> smooth([0.0, 3.0, 0.0, 3.0, 0.0], 0.6)
    [1.5, 1.0, 2.0, 1.0, 1.5]
    """
    reach = int(share * len(values)) // 2
    return [statistics.fmean(values[max(0, place - reach) : place + reach + 1]) for place in range(len(values))]


# -------------------------------------------------------------------------------------------------------------- verdict


def verdict(rows: Sequence[Row], *, timed: bool = False) -> list[str]:
    """Sentences about the rows of one task: against its `dense` row, if there is one, and what times do not count.

    `timed`: the rows stand beside others behind a link, so that without one only their times are of interest.
    """
    whole = [row for row in rows if not row.cut_off]
    dense = _dense(whole)
    ours = [row for row in whole if _is_ours(row)]
    found = [_warm_up(whole)]
    if dense is not None and not dense.diverged and ours and dense.config.workers > 1:
        bare = dense.config.rate is None
        saved = [] if timed and bare else [_saving(dense, ours)]
        found = [*saved, *([] if bare else [_sooner(dense, whole)]), _time(dense, ours), *found]
    return [sentence for sentence in found if sentence]


def _warm_up(rows: Sequence[Row]) -> str | None:
    """What went before the clocks started: the first steps of a method hold its compilation."""
    took = {row.label: row.warm_up for row in rows if row.warm_up is not None}
    if not took:
        return None
    longest = max(took, key=lambda label: took[label])
    of = "" if len(took) == 1 else f" ({longest} {show_seconds(took[longest])})"
    return (
        "Times are of training steps alone; compiling and warming up took "
        f"{show_seconds(sum(took.values()))}{of} before them."
    )


def _saving(dense: Row, ours: Sequence[Row]) -> str | None:
    if dense.metric is None:
        return None
    near = [row for row in ours if _is_near(row, dense)]
    if not near:
        return f"No compressed method came within {NEAR:.0%} of dense ({show_metric(dense)}) at these settings."
    best = max(near, key=lambda row: row.ratio_fp32.mean if row.ratio_fp32 else 0.0)
    if best.ratio_fp32 is None or best.ratio_fp16 is None:
        return None
    return (
        f"{best.label} sent {times_fewer(best.ratio_fp32.mean)} bytes than float32 all-reduce "
        f"({times_fewer(best.ratio_fp16.mean)} than float16) and reached {show_metric(best)}, "
        f"dense {show_metric(dense)}."
    )


def _is_near(row: Row, dense: Row) -> bool:
    if row.metric is None or dense.metric is None or row.diverged:
        return False
    return is_near(row.metric.mean, dense.metric.mean, higher=bool(row.runs[0].task["higher_is_better"]))


def is_near(value: float | None, goal: float, *, higher: bool) -> bool:
    """Whether a metric is as good as a goal, or within a share of it.

    >>> is_near(3.43, 3.4, higher=False), is_near(0.95, 0.97, higher=True), is_near(None, 1.0, higher=True)
    (True, False, False)
    """
    if value is None:
        return False
    return (goal - value if higher else value - goal) <= NEAR * abs(goal)


def _sooner(dense: Row, rows: Sequence[Row]) -> str | None:
    """Who reached the dense run's metric first, beside dense itself and torch's best."""
    goal = _goal([dense])
    if goal is None:
        return None
    times = [(seconds, row) for row in rows if not row.diverged and (seconds := reached(row, goal)) is not None]
    ours, hooks, theirs = (
        sorted((each for each in times if kind(each[1])), key=itemgetter(0))
        for kind in (_is_ours, _is_hook, lambda row: row is dense)
    )
    if not theirs:
        return None
    what = f"within {NEAR:.0%} of the dense run's last {metric_name(dense)}"
    if not ours:
        return f"Of thinwire's methods none came {what} over this link; dense needed {show_seconds(theirs[0][0])}."
    first, best = ours[0]
    compared = "; ".join(
        f"{row.label} after {show_seconds(seconds)}, {show_count(seconds / first)} times as long"
        for seconds, row in (*theirs, *hooks[:1])
    )
    return f"{best.label} came {what} after {show_seconds(first)}; {compared}."


def _is_ours(row: Row) -> bool:
    return row.config.method not in TORCH_METHODS


def _is_hook(row: Row) -> bool:
    """Whether torch brings it along, beside dense training."""
    return row.config.method in TORCH_METHODS and row.config.method != "dense"


def _time(dense: Row, ours: Sequence[Row]) -> str | None:
    """Whether any compressed method was faster; on one machine's loopback the wire is seldom the bottleneck."""
    timed = [row for row in ours if row.seconds and not row.diverged]
    if dense.seconds is None or not timed:
        return None
    fastest = min(timed, key=lambda row: row.seconds.mean if row.seconds else 0.0)
    assert fastest.seconds is not None
    figures = f"{fastest.label} {show_seconds(fastest.seconds.mean)}, dense {show_seconds(dense.seconds.mean)}"
    if dense.config.rate is not None and dense.sent_bytes is not None:
        return _time_over(dense.config.rate, dense.sent_bytes.mean, fastest.seconds.mean, figures)
    if dense.config.engine == "sim":
        return f"Workers were simulated, so times say nothing about a network: {figures}."
    if fastest.seconds.mean >= dense.seconds.mean:
        return (
            f"Compression did not pay in wall time here: {figures}. "
            "All workers share one machine, whose loopback is no bottleneck; fewer bytes pay on a thin wire."
        )
    if _apart(fastest, dense):
        return f"Compression paid in wall time here: {figures}, and every seed was faster than every dense one."
    return f"Whether compression pays in wall time is not settled: {figures}; more seeds on a quiet machine would tell."


def _time_over(rate: float, dense_sent: float, fastest: float, figures: str) -> str:
    """Whether it was faster than the dense run's bytes alone are carried: then it was no noise of the machine."""
    least = f"the dense run's bytes alone take {show_seconds(seconds_on(rate, dense_sent))} on this link"
    if fastest < seconds_on(rate, dense_sent):
        return f"Compression paid over this emulated link: {figures}; {least}."
    return f"Whether compression pays over this emulated link is not settled: {figures}; {least}."


def _apart(fast: Row, slow: Row) -> bool:
    """Whether all runs of one row, at least two, were faster than all runs of the other: one timing is only noise."""
    times = [[run.end["seconds"] for run in row.runs] for row in (fast, slow)]
    return min(map(len, times)) > 1 and max(times[0]) < min(times[1])


TRAINING_EXPERIMENT = Experiment(TRAINING, runs_of_lines, sections)

"""The sections of training runs: for each task a table of its methods, charts, and in plain sentences what compression
saved, what it cost and whether it paid in time."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from thinwire.report.page import Axis, Chart, Look, Section, Series, looks, section_for_each
from thinwire.report.record_file import TRAINING, Experiment
from thinwire.training.config import TORCH_METHODS
from thinwire.training.formatting import (
    NOTHING,
    metric_name,
    plural,
    show_bytes,
    show_fewer,
    show_metric,
    show_seconds,
    show_spread,
    times_fewer,
)
from thinwire.training.records import Point, RunRecord, runs_of_lines
from thinwire.training.summary import Row, summarise

NOTES = ("Wall time is the time of training steps on rank 0; bytes are what leaves one worker.",)
BYTES = Axis("bytes sent by a worker", log=True, unit="B")
STEPS = Axis("steps", zero=True, noun="steps")
SECONDS = Axis("seconds", zero=True, noun="seconds")
LOSS = Axis("", log=True)
NEAR = 0.01
"""A metric counts as near the dense one within this share of it."""
SMOOTH_SHARE = 0.08
"""Width of the running mean over training losses, as a share of the curve: single batches are noisy."""


def sections(runs: Sequence[RunRecord]) -> list[Section]:
    """A section for each task and its data."""
    return section_for_each(runs, lambda run: (run.config.task, run.config.data), _section)


def _section(runs: Sequence[RunRecord]) -> Section:
    rows, data = summarise(runs), runs[0].config.data
    columns, styles = _columns(rows), looks_of(rows)
    return Section(
        title=runs[0].config.task + (f" · {Path(data).name}" if data else ""),
        facts=_facts(rows),
        sentences=verdict(rows),
        table=[list(columns), *([cell(row) for cell in columns.values()] for row in rows)],
        charts=charts(rows, styles, [row.label for row in rows]),
        looks=styles,
        provenance=origins(runs),
        notes=NOTES,
    )


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


def origins(runs: Sequence[RunRecord]) -> list[dict[str, str]]:
    """Where each run comes from, as the foot of a section tells it."""
    return [_origin(run) for run in runs]


def _origin(run: RunRecord) -> dict[str, str]:
    about = {"config": run.config.asdict(), "task": run.task, "provenance": run.provenance, "end": run.end}
    return {
        "title": f"{run.config.method} · seed {run.config.seed}",
        "json": json.dumps(about, indent=2, ensure_ascii=False),
    }


# --------------------------------------------------------------------------------------------------------------- charts


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


def verdict(rows: Sequence[Row]) -> list[str]:
    """Sentences about the rows of one task: against its `dense` row, if there is one, and what times do not count."""
    whole = [row for row in rows if not row.cut_off]
    dense = next((row for row in whole if row.config.method == "dense"), None)
    ours = [row for row in whole if row.config.method not in TORCH_METHODS]
    found = [_warm_up(whole)]
    if dense is not None and not dense.diverged and ours and dense.config.workers > 1:
        found = [_saving(dense, ours), _time(dense, ours), *found]
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
    gap = dense.metric.mean - row.metric.mean
    gap = gap if row.runs[0].task["higher_is_better"] else -gap
    return gap <= NEAR * abs(dense.metric.mean)


def _time(dense: Row, ours: Sequence[Row]) -> str | None:
    """Whether any compressed method was faster; on one machine's loopback the wire is seldom the bottleneck."""
    timed = [row for row in ours if row.seconds and not row.diverged]
    if dense.seconds is None or not timed:
        return None
    fastest = min(timed, key=lambda row: row.seconds.mean if row.seconds else 0.0)
    assert fastest.seconds is not None
    figures = f"{fastest.label} {show_seconds(fastest.seconds.mean)}, dense {show_seconds(dense.seconds.mean)}"
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


def _apart(fast: Row, slow: Row) -> bool:
    """Whether all runs of one row, at least two, were faster than all runs of the other: one timing is only noise."""
    times = [[run.end["seconds"] for run in row.runs] for row in (fast, slow)]
    return min(map(len, times)) > 1 and max(times[0]) < min(times[1])


TRAINING_EXPERIMENT = Experiment(TRAINING, runs_of_lines, sections)

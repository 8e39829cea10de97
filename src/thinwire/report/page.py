"""The page of training runs: one self-contained HTML file, made from records alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from thinwire.report.curves import curves
from thinwire.report.figures import Axis, Chart, Section, Series, page_text
from thinwire.report.palette import Look, styles
from thinwire.report.template import write_text
from thinwire.training.formatting import (
    NOTHING,
    metric_name,
    plural,
    show_bytes,
    show_fewer,
    show_metric,
    show_seconds,
)
from thinwire.training.records import RunRecord
from thinwire.training.summary import Row, summarise
from thinwire.training.verdict import verdict

FOOTER = (
    "Made by thinwire from the run's record alone. Wall time is the time of training steps on rank 0; bytes are what "
    "leaves one worker."
)
BYTES = Axis("bytes sent by a worker", log=True, unit="B")
STEPS = Axis("steps", zero=True, noun="steps")
SECONDS = Axis("seconds", zero=True, noun="seconds")
LOSS = Axis("", log=True)


def write_page(runs: Sequence[RunRecord], path: Path) -> None:
    """Write the page of the runs to `path`."""
    write_text(render(runs), path)


def render(runs: Sequence[RunRecord]) -> str:
    """The page's HTML: template, style, script and data in one text."""
    return page_text([_section(task, group) for task, group in _by_task(runs).items()], FOOTER)


def _by_task(runs: Sequence[RunRecord]) -> dict[tuple[str, str | None], list[RunRecord]]:
    groups: dict[tuple[str, str | None], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault((run.config.task, run.config.data), []).append(run)
    return groups


def _section(task: tuple[str, str | None], runs: Sequence[RunRecord]) -> Section:
    """What the page shows of one task."""
    rows = summarise(runs)
    looks = styles(rows)
    return Section(
        title=task[0] + (f" · {Path(task[1]).name}" if task[1] else ""),
        facts=_facts(runs),
        sentences=verdict(rows),
        table=[_head(rows), *map(_cells, rows)],
        charts=_charts(rows, looks),
        looks=looks,
        provenance=[_provenance(run) for run in runs],
    )


def _facts(runs: Sequence[RunRecord]) -> list[str]:
    """Settings that all runs share, as short phrases."""
    shown = [set(phrases) for phrases in zip(*(_phrases(run) for run in runs), strict=True)]
    return [phrase for each in shown if len(each) == 1 for phrase in each if phrase]


def _phrases(run: RunRecord) -> tuple[str, ...]:
    config = run.config
    return (
        plural(config.workers, "worker"),
        "real processes on gloo" if config.engine == "ddp" else "simulated in one process",
        f"{run.task['parameters']:,} parameters",
        f"{config.steps:,} steps",
        f"{config.batch} samples a worker and step",
        f"{config.optimizer}, {config.schedule} learning rate",
        str(run.task["data"].get("source", "")),
    )


def _head(rows: Sequence[Row]) -> list[str]:
    ratios = ["fewer bytes\nthan fp32", "fewer bytes\nthan fp16"]
    return ["method", "lr", metric_name(rows[0]), "seeds", "a worker sent", *ratios, "wall time"]


def _cells(row: Row) -> list[str]:
    return [
        row.label,
        f"{row.config.lr:g}",
        show_metric(row),
        str(len(row.runs)),
        show_bytes(row.sent_bytes.mean) if row.sent_bytes else NOTHING,
        show_fewer(row.ratio_fp32),
        show_fewer(row.ratio_fp16),
        show_seconds(row.seconds.mean) if row.seconds else NOTHING,
    ]


def _provenance(run: RunRecord) -> dict[str, str]:
    about = {"config": run.config.asdict(), "task": run.task, "provenance": run.provenance, "end": run.end}
    return {
        "title": f"{run.config.method} · seed {run.config.seed}",
        "json": json.dumps(about, indent=2, ensure_ascii=False),
    }


def _charts(rows: Sequence[Row], looks: Sequence[Look]) -> list[Chart]:
    def chart(title: str, note: str, x: tuple[str, Axis], y: tuple[str, Axis]) -> Chart:
        return Chart(title, note, x[1], y[1], [_series(*each, x[0], y[0]) for each in zip(rows, looks, strict=True)])

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


def _series(row: Row, look: Look, x: str, y: str) -> Series:
    course = curves(row)[y]
    return Series(row.label, course[x], course["mean"], look, course["low"], course["high"])

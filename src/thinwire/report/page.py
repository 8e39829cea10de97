"""The page: one self-contained HTML file, made from records alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thinwire.experiments.numbers import (
    NOTHING,
    metric_name,
    plural,
    show_bytes,
    show_metric,
    show_ratio,
    show_seconds,
)
from thinwire.experiments.peers import PEERS
from thinwire.experiments.records import RunRecord
from thinwire.experiments.summary import Row, summarise
from thinwire.experiments.verdict import verdict
from thinwire.report.curves import curves
from thinwire.report.palette import styles
from thinwire.report.template import check_report_packages as check_report_packages
from thinwire.report.template import fill, write_text


def write_page(runs: Sequence[RunRecord], path: Path) -> None:
    """Write the page of the runs to `path`."""
    write_text(render(runs), path)


def render(runs: Sequence[RunRecord]) -> str:
    """The page's HTML: template, style, plotly's script and data in one text."""
    sections = [_section(task, group) for task, group in _by_task(runs).items()]
    return fill("page.html.j2", sections, [section["chart"] for section in sections])


def _by_task(runs: Sequence[RunRecord]) -> dict[tuple[str, str | None], list[RunRecord]]:
    groups: dict[tuple[str, str | None], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault((run.config.task, run.config.data), []).append(run)
    return groups


def _section(task: tuple[str, str | None], runs: Sequence[RunRecord]) -> dict[str, Any]:
    """What the template shows of one task."""
    rows = summarise(runs)
    looks = styles(rows)
    return {
        "title": task[0] + (f" · {Path(task[1]).name}" if task[1] else ""),
        "facts": _facts(runs),
        "metric": metric_name(rows[0]),
        "rows": [_row(row, look) for row, look in zip(rows, looks, strict=True)],
        "sentences": verdict(rows),
        "provenance": [_provenance(run) for run in runs],
        "chart": _chart(rows, looks),
    }


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


def _row(row: Row, look: dict[str, str]) -> dict[str, Any]:
    return {
        "label": row.label,
        **look,
        "peer": row.config.method in PEERS,
        "lr": f"{row.config.lr:g}",
        "metric": show_metric(row),
        "seeds": len(row.runs),
        "sent": show_bytes(row.sent_bytes.mean) if row.sent_bytes else NOTHING,
        "ratio_fp32": show_ratio(row.ratio_fp32),
        "ratio_fp16": show_ratio(row.ratio_fp16),
        "seconds": show_seconds(row.seconds.mean) if row.seconds else NOTHING,
    }


def _provenance(run: RunRecord) -> dict[str, Any]:
    return {
        "title": f"{run.config.method} · seed {run.config.seed}",
        "command": run.provenance.get("command", ""),
        "json": json.dumps(
            {"config": run.config.asdict(), "task": run.task, "provenance": run.provenance, "end": run.end},
            indent=2,
            ensure_ascii=False,
        ),
    }


def _chart(rows: Sequence[Row], looks: Sequence[dict[str, str]]) -> dict[str, Any]:
    about = rows[0].runs[0].task
    return {
        "metric": metric_name(rows[0]),
        "percent": about["percent"],
        "series": [{"label": row.label, **look, **curves(row)} for row, look in zip(rows, looks, strict=True)],
    }

"""The table: one row a method, as the commands print it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

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
)
from thinwire.training.summary import Row


def result_table(rows: Sequence[Row]) -> Table:
    """Test metric, bytes that a worker sent, ratios to dense all-reduce, and wall time."""
    one_rate = len({row.config.lr for row in rows}) == 1
    accuracy = any(row.accuracy for row in rows)
    table = Table(
        title=_title(rows, one_rate), title_style="bold", title_justify="left", box=SIMPLE_HEAD, pad_edge=False
    )
    table.add_column("\nmethod", overflow="fold")
    metric = metric_name(rows[0]).replace(" ", "\n", 1)
    for head in (
        *([] if one_rate else ["\nlr"]),
        metric,
        *(["test\naccuracy"] if accuracy else []),
        "a worker\nsent",
        "fewer\nvs fp32",
        "fewer\nvs fp16",
        "wall\ntime",
    ):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        style = "dim" if row.config.method in TORCH_METHODS else ""
        table.add_row(*(Text(cell, style=style) for cell in _cells(row, one_rate, accuracy)))
    return table


def _title(rows: Sequence[Row], one_rate: bool) -> str:
    first = rows[0].config
    settings = [
        first.task,
        f"{plural(first.workers, 'worker')} ({first.engine})",
        plural(first.steps, "step"),
        first.optimizer + (f" at {first.lr:g}" if one_rate else ""),
        plural(len(rows[0].runs), "seed"),
    ]
    return " · ".join(settings)


def _cells(row: Row, one_rate: bool, accuracy: bool) -> list[str]:
    return [
        row.label,
        *([] if one_rate else [f"{row.config.lr:g}"]),
        show_metric(row),
        *([show_spread(row.accuracy, percent=True)] if accuracy else []),
        show_bytes(row.sent_bytes.mean) if row.sent_bytes else NOTHING,
        show_fewer(row.ratio_fp32),
        show_fewer(row.ratio_fp16),
        show_seconds(row.seconds.mean) if row.seconds else NOTHING,
    ]

"""The tables of `thinwire bench lockfree`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from thinwire.training.formatting import NOTHING, show_count

if TYPE_CHECKING:
    from thinwire.bench.lockfree import SpeedRow
    from thinwire.bench.reach import ReachRow

SPEED_HEAD = ("data", "method", "threads", "thousand steps/s", "slowest – fastest", "over 1 thread", "written a step")
REACH_HEAD = ("loss", "times", "method", "threads", "ms", "epochs", "sklearn's time / ours", "fewer writes")


def speed_table(rows: Sequence[SpeedRow]) -> Table:
    """One row a method, a number of threads and a set of data."""
    return _table(SPEED_HEAD, (_speed_cells(row) for row in rows))


def reach_table(rows: Sequence[ReachRow]) -> Table:
    """One row a loss, a method and a number of threads."""
    return _table(REACH_HEAD, (_reach_cells(row) for row in rows))


def _table(head: Sequence[str], rows: Iterable[list[str]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in head:
        table.add_column(name, justify="left" if name in ("data", "method") else "right", no_wrap=True)
    for cells in rows:
        table.add_row(*cells)
    return table


def _speed_cells(row: SpeedRow) -> list[str]:
    slowest, fastest = row.spread
    return [
        row.data,
        row.method,
        str(row.threads),
        f"{row.per_second / 1e3:,.0f}",
        f"{slowest / 1e3:,.0f} – {fastest / 1e3:,.0f}",
        f"{row.speedup:.2f}",
        NOTHING if row.written is None else f"{row.written:.1f}",
    ]


def _reach_cells(row: ReachRow) -> list[str]:
    return [
        f"{row.loss:.6f}",
        f"{row.factor:g}",
        row.method,
        str(row.threads),
        "never" if row.seconds is None else f"{1e3 * row.seconds:.1f}",
        NOTHING if row.epochs is None else f"{row.epochs:.2f}",
        NOTHING if row.over_sklearn is None else f"{row.over_sklearn:.2f}",
        NOTHING if row.fewer is None else show_count(row.fewer),
    ]

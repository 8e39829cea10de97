"""The table and the plot of `thinwire bench simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from thinwire.bench.simulation import SimulationRow
from thinwire.report.figures import Axis, Chart, Section, lines, write_figures
from thinwire.training.formatting import NOTHING, show_bytes, show_seconds

HEAD = (
    "data", "samples", "d", "workers", "rounds", "ours", "ms a round", "numpy", "numpy / ours", "apart", "worker holds"
)  # fmt: skip


def simulation_table(rows: Sequence[SimulationRow]) -> Table:
    """One row a data set and number of workers."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(HEAD):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*cells(row))
    return table


def cells(row: SimulationRow) -> list[str]:
    return [
        row.dataset,
        f"{row.samples:,}",
        str(row.d),
        f"{row.workers:,}",
        f"{row.rounds:,}",
        show_seconds(row.ours_s),
        f"{row.ours_ms:.2f}",
        NOTHING if row.numpy_s is None else show_seconds(row.numpy_s),
        NOTHING if row.speedup is None else f"{row.speedup:.1f}",
        NOTHING if row.apart is None else f"{row.apart:.0e}",
        show_bytes(row.worker_bytes),
    ]


def growth_page(rows: Sequence[SimulationRow], path: Path) -> None:
    """The table, and time and memory against the number of workers."""
    names = list(dict.fromkeys(row.dataset for row in rows))
    of = {name: [row for row in rows if row.dataset == name] for name in names}
    time = [(name, [row.workers for row in of[name]], [row.ours_ms for row in of[name]]) for name in names]
    held = [
        (name, [row.workers for row in of[name]], [row.workers * row.worker_bytes for row in of[name]])
        for name in names
    ]
    workers = Axis("workers", log=True, unit="", noun="workers")
    milliseconds, memory = Axis("milliseconds", log=True), Axis("", log=True, unit="B")
    charts = [
        Chart("Time of a round", "EF21, top-1, exact gradients", workers, milliseconds, lines(time)),
        Chart("Memory", "data, state and gradients of all workers", workers, memory, lines(held)),
    ]
    facts = ["EF21", "top-1", "float64", "logistic regression"]
    write_figures([Section("Simulation", facts, [], [HEAD, *map(cells, rows)], charts)], path)

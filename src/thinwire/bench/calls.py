"""Calls on few numbers: microseconds of each operation where dispatch and Python are all there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from rich.table import Table

from thinwire.bench.contests import OPERATIONS, Call
from thinwire.bench.grid import grid, show_times
from thinwire.bench.inputs import draw_inputs, one_piece
from thinwire.bench.timing import Timing, side_by_side

AT_A_TIME = 100
"""Calls of one measured turn."""
DENSITY = 0.01
ADD = "in-place add"


@dataclass(frozen=True)
class CallRow:
    """One operation on so many normal numbers: microseconds a call."""

    op: str
    numel: int
    ours: Timing
    torch: Timing
    """The usual torch code of the operation; for the add, the add itself."""

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def bench_calls(numel: int, operations: Sequence[str], repeats: int) -> Iterator[CallRow]:
    """An add in place first, as the least that a call of torch takes; then each operation beside torch's code."""
    given = draw_inputs("normal", one_piece(numel), DENSITY, torch.device("cpu"))
    add = _microseconds({"add": lambda work: work.add_(given.second)}, given.first, repeats)["add"]
    yield CallRow(ADD, numel, add, add)
    for name in operations:
        contest = OPERATIONS[name].contest(given)
        taken = _microseconds({"ours": contest.ours, "torch": contest.torch}, given.first, repeats)
        yield CallRow(name, numel, taken["ours"], taken["torch"])


def _microseconds(calls: dict[str, Call], first: torch.Tensor, repeats: int) -> dict[str, Timing]:
    """Of one call among a hundred, which all change the same vector; every turn begins with it as it was."""
    work = first.clone()
    many = {name: partial(_many, call, work) for name, call in calls.items()}
    times = side_by_side(many, partial(work.copy_, first), repeats)
    return {name: time.scaled(1e3 / AT_A_TIME) for name, time in times.items()}


def _many(call: Callable[[torch.Tensor], object], work: torch.Tensor) -> None:
    for _ in range(AT_A_TIME):
        call(work)


def call_table(rows: Sequence[CallRow]) -> Table:
    """One row an operation."""
    return grid(
        ("op", "µs a call", "least - most", "torch", "torch / ours"),
        (
            (
                row.op,
                f"{row.ours.median:.1f}",
                f"{row.ours.least:.1f} - {row.ours.most:.1f}",
                f"{row.torch.median:.1f}",
                show_times(row.torch.median / row.ours.median),
            )
            for row in rows
        ),
    )

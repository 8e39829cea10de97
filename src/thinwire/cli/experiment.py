"""A paper's experiment on the command line: its runs one after the other with bars, its record, tables and page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from thinwire.cli.console import INTERRUPTED, console, say
from thinwire.training.outcomes import Outcome, Writer


class Setting(Protocol):
    """One run to do."""

    @property
    def title(self) -> str:
        """What its bar is called."""

    def __hash__(self) -> int: ...


Asked = TypeVar("Asked", bound=Setting)
Done = TypeVar("Done", bound=Outcome)
Run = Callable[[Asked, Callable[[int], None]], Done]
"""Does a run; the second argument is told how far it is."""


def run_all(
    wanted: Mapping[Asked, int], done: dict[Asked, Done], run: Run[Asked, Done], writer: Writer, *, quiet: bool
) -> tuple[list[Done], bool]:
    """The runs that came to their end, and whether those are all; `wanted` says how long each bar is."""
    out = Console(stderr=True, highlight=False) if quiet else console()
    name = TextColumn("{task.description}", table_column=Column(overflow="fold"))
    columns = (name, BarColumn(bar_width=14), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    bars = Progress(*columns, console=out, disable=not out.is_terminal, transient=True)
    try:
        with closing(writer), bars:
            overall = bars.add_task("runs", total=len(wanted))
            for setting, length in wanted.items():
                if setting not in done:
                    bar = bars.add_task(setting.title, total=length)
                    done[setting] = run(setting, partial(_advance, bars, bar))
                    writer.add(done[setting])
                    bars.remove_task(bar)
                bars.advance(overall)
    except KeyboardInterrupt:
        pass
    finished = [done[setting] for setting in wanted if setting in done]
    return finished, len(finished) == len(wanted)


def _advance(bars: Progress, bar: TaskID, step: int) -> None:
    bars.update(bar, completed=step)


def print_lines(outcomes: Sequence[Outcome]) -> None:
    """One JSON object a run, without its curve."""
    for one in outcomes:
        print(json.dumps(one.plain() | {"curve": None}, ensure_ascii=False))


def figure_table(heading: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A figure's table under its heading; only the first column may be folded."""
    table = Table(title=heading, title_style="bold", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(head):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=place > 0)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def finish(
    paths: Mapping[str, Path | None], record: Path, outcomes: Sequence[Any], *, whole: bool, quiet: bool
) -> None:
    """Say where the files are; where not all runs were done, how to go on, and exit so."""
    for what, path in paths.items():
        if outcomes and path is not None and not quiet:
            say(console(), f"{what}: {path}")
    if not whole:
        say(Console(stderr=True), f"finished runs are kept; go on with --resume --out {record}")
        raise typer.Exit(INTERRUPTED)

"""Progress: a bar for each run with loss, bytes and time left; few plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from thinwire.cli.console import say
from thinwire.link import show_rate
from thinwire.training.formatting import plural, show_bytes, show_seconds, show_value, times_fewer
from thinwire.training.recorder import Listener

ROOM_FOR_BAR, ROOM_FOR_BYTES = 96, 76
"""Columns of a terminal from which on they are shown: a name then has 33 or more."""


@contextmanager
def progress(out: Console, runs: int, workers: int, engine: str) -> Iterator[Listener]:
    """A listener to a record's lines that draws them while the context is open."""
    how = plural(workers, "simulated worker") if engine == "sim" else plural(workers, "gloo worker")
    if not out.is_terminal:
        say(out, f"{plural(runs, 'run')} with {how}")
        yield _Lines(out, runs).hear
        return
    with Progress(*_columns(out.width), console=out) as bars:
        yield _Bars(bars, f"starting {how}").hear


def _columns(width: int) -> Iterator[ProgressColumn]:
    """All columns keep their width but the method's name, which is folded in a narrow terminal.

    What a narrow one has no room for beside a name: first the bar, which the count of steps repeats, then the bytes.
    """
    yield SpinnerColumn(finished_text="[green]✓[/]", table_column=Column(no_wrap=True))
    yield TextColumn("{task.description}", table_column=Column(overflow="fold"))
    if width >= ROOM_FOR_BAR:
        yield BarColumn(bar_width=14, table_column=Column(no_wrap=True, min_width=14))
    yield MofNCompleteColumn(table_column=Column(no_wrap=True))
    yield TextColumn("{task.fields[loss]}", justify="right")
    if width >= ROOM_FOR_BYTES:
        yield TextColumn("{task.fields[sent]}", justify="right")
    yield TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=Column(no_wrap=True, min_width=5))


def _title(line: Mapping[str, Any]) -> str:
    config = line["config"]
    link = f" · {show_rate(config['rate'])}" if config.get("rate") else ""
    return f"{config['method']}{link} · seed {config['seed']}"


def _result(run: Mapping[str, Any], line: Mapping[str, Any]) -> str:
    """A run's final metric, or that it diverged."""
    value = line["values"].get(run["task"]["metric"])
    if line["status"] != "done" or value is None:
        return f"diverged after {line['steps']} steps"
    return f"{run['task']['metric'].replace('_', ' ')} {show_value(value, run['task']['percent'])}"


@final
class _Bars:
    """One bar a run; the first waits for the workers."""

    def __init__(self, bars: Progress, waiting: str) -> None:
        self._bars = bars
        self._run: Mapping[str, Any] = {}
        self._waiting: TaskID | None = bars.add_task(waiting, total=None, loss="", sent="")
        self._bar = self._waiting

    def hear(self, line: Mapping[str, Any]) -> None:
        if line["kind"] == "run":
            self._begin(line)
        elif line["kind"] == "step":
            loss = "loss   nan" if line["loss"] is None else f"loss {line['loss']:.3f}"
            self._bars.update(
                self._bar, completed=line["step"], loss=loss, sent=f"{show_bytes(line['sent_bytes'])} sent"
            )
        elif line["kind"] == "end":
            self._bars.update(self._bar, completed=self._run["config"]["steps"], loss=_result(self._run, line))

    def _begin(self, line: Mapping[str, Any]) -> None:
        if self._waiting is not None:
            self._bars.remove_task(self._waiting)
            self._waiting = None
        self._run = line
        self._bar = self._bars.add_task(escape(_title(line)), total=line["config"]["steps"], loss="", sent="")


@final
class _Lines:
    """One plain line when a run ends."""

    def __init__(self, out: Console, runs: int) -> None:
        self._out, self._runs = out, runs
        self._run: Mapping[str, Any] = {}
        self._ended = 0

    def hear(self, line: Mapping[str, Any]) -> None:
        if line["kind"] == "run":
            self._run = line
        elif line["kind"] == "end":
            self._ended += 1
            ratio = f" ({times_fewer(line['ratio_fp32'])} than fp32)" if line["sent_bytes"] else ""
            say(
                self._out,
                f"[{self._ended}/{self._runs}] {_title(self._run)}: {_result(self._run, line)}, "
                f"{show_bytes(line['sent_bytes'])} sent{ratio}, {show_seconds(line['seconds'])}",
            )

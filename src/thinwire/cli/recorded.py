"""Commands that do runs: checked outputs, bars, a record, tables and a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from thinwire.cli.console import INTERRUPTED, check_outputs, console, noted, say
from thinwire.cli.options import check_command, record_path
from thinwire.cli.progress import progress
from thinwire.errors import ConfigError
from thinwire.papers import read_sections
from thinwire.report.page import Section, write_page
from thinwire.report.record_file import Experiment, Finished, Writer
from thinwire.training.config import RunConfig
from thinwire.training.records import RunRecord, finished_runs
from thinwire.training.sections import sections
from thinwire.training.summary import summarise
from thinwire.training.tasks import TASKS
from thinwire.training.train import train


@dataclass(frozen=True)
class Outputs:
    """What a `reproduce` command leaves, and what becomes of what is there."""

    record: Path
    page: Path | None
    resume: bool
    force: bool
    as_json: bool
    command: Sequence[str]

    @classmethod
    def of(cls, context: typer.Context, name: str, out: Path | None, page: Path | None, **how: bool) -> Outputs:
        """Checked before any work is done."""
        if how["resume"] and out is None:
            raise ConfigError("--resume goes on with the record that --out names; give --out as well")
        record = record_path(out, name)
        check_outputs(record, page, force=how["force"], resume=how["resume"])
        return cls(record, page, command=["thinwire", *context.obj], **how)

    @property
    def console(self) -> Console:
        """Where bars are drawn: not among lines of JSON."""
        return Console(stderr=True, highlight=False) if self.as_json else console()

    def conclude(self, sections: Sequence[Section], lines: Iterable[Mapping[str, Any]], *, whole: bool) -> None:
        """Show what was found, write the page and say where the files are; where not all was done, how to go on."""
        if self.as_json:
            for line in lines:
                print(json.dumps(line, ensure_ascii=False))
        else:
            show_sections(sections)
        if self.page is not None and sections:
            write_page(read_sections([self.record])[0], self.page)
        for what, path in {"record": self.record, "report": self.page}.items():
            if sections and path is not None and not self.as_json:
                say(console(), f"{what}: {path}")
        if not whole:
            say(Console(stderr=True), f"finished runs are kept; go on with --resume --out {self.record}")
            raise typer.Exit(INTERRUPTED)


# ------------------------------------------------------------------------------------------------------------- sections


def show_sections(sections: Sequence[Section]) -> None:
    """Each section's table and sentences, then the notes of all, each once."""
    out = console()
    for section in sections:
        out.print(section_table(section))
        for sentence in section.sentences:
            say(out, f"• {sentence}" if len(section.sentences) > 1 else sentence)
        say(out, "")
    for note in dict.fromkeys(note for section in sections for note in section.notes):
        say(out, note, "dim")


def section_table(section: Section) -> Table:
    """A section's table under its heading; only the first column may be folded, and peers are dim."""
    heading = " · ".join((section.title, *section.facts))
    table = Table(title=heading, title_style="bold", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    head, *rows = section.table
    high = max(name.count("\n") for name in head)
    for place, name in enumerate(head):
        name = "\n" * (high - name.count("\n")) + name
        table.add_column(name, justify="right" if place else "left", no_wrap=place > 0, overflow="fold")
    for place, row in enumerate(rows):
        style = "dim" if section.looks and section.looks[place].peer else ""
        table.add_row(*(Text(cell, style=style) for cell in row))
    return table


# ------------------------------------------------------------------------------------------------- a paper's experiment


class Asked(Protocol):
    """One run to do."""

    @property
    def title(self) -> str:
        """What its bar is called."""

    def __hash__(self) -> int: ...


class Done(Finished, Protocol):
    """One that was done, and what was asked."""

    @property
    def setting(self) -> Any: ...


AskedT = TypeVar("AskedT", bound=Asked)
DoneT = TypeVar("DoneT", bound=Done)


def run_experiment(
    experiment: Experiment[DoneT],
    wanted: Mapping[AskedT, int],
    run: Callable[[AskedT, Callable[[int], None]], DoneT],
    outputs: Outputs,
) -> None:
    """Every run that the record does not hold yet, then tables and page; `wanted` says how long each bar is."""
    with noted():
        held = experiment.runs(outputs.record) if outputs.resume and outputs.record.exists() else []
    done = {one.setting: one for one in held}
    writer = Writer(outputs.record, experiment.name, outputs.command, resume=outputs.resume, force=outputs.force)
    whole = _run_all(wanted, done, run, writer, outputs.console)
    finished = [done[setting] for setting in wanted if setting in done]
    found = experiment.sections(finished) if finished else []
    outputs.conclude(found, (one.plain() | {"curve": None} for one in finished), whole=whole)


def _run_all(
    wanted: Mapping[AskedT, int],
    done: dict[AskedT, DoneT],
    run: Callable[[AskedT, Callable[[int], None]], DoneT],
    writer: Writer,
    out: Console,
) -> bool:
    """Add what is not done yet to `done`, each with a bar; whether all came to their end."""
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
        return False
    return True


def _advance(bars: Progress, bar: TaskID, step: int) -> None:
    bars.update(bar, completed=step)


# ------------------------------------------------------------------------------------------------------------- training


def train_all(configs: Sequence[RunConfig], outputs: Outputs, experiment: str) -> tuple[list[RunRecord], bool]:
    """The training runs that came to their end, and whether those are all."""
    try:
        with progress(outputs.console, len(configs), configs[0].workers, configs[0].engine) as listener:
            runs = train(
                configs,
                outputs.record,
                outputs.command,
                listener,
                resume=outputs.resume,
                force=outputs.force,
                experiment=experiment,
            )
        return runs, True
    except KeyboardInterrupt:
        return finished_runs(outputs.record), False


def run_and_show(
    context: typer.Context, configs: Sequence[RunConfig], record: Path, page: Path | None, *, force: bool
) -> None:
    """What train, compare and demo do alike once their runs are known."""
    check_command(TASKS[configs[0].task].packages, page=page)
    check_outputs(record, page, force=force)
    out = console()
    with progress(out, len(configs), configs[0].workers, configs[0].engine) as listener:
        runs = train(configs, record, command=["thinwire", *context.obj], listener=listener, force=force)
    found = sections(runs)
    show_sections(found)
    say(out, f"record: {record}")
    if page is not None:
        write_page(found, page)
        say(out, f"report: {page}")
    if all(row.diverged for row in summarise(runs)):
        raise typer.Exit(1)

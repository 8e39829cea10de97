"""`thinwire reproduce ef21`: the figures of the EF21 paper and its successors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from thinwire.cli import options
from thinwire.cli.console import INTERRUPTED, console, say
from thinwire.errors import ConfigError
from thinwire.experiments.ef21.figures import cells, facts, grouped, head, measure, title
from thinwire.experiments.ef21.records import Writer, read_outcomes
from thinwire.experiments.ef21.run import Outcome, dataset_of, run
from thinwire.experiments.ef21.settings import FIGURES, QUICK_ROUNDS, ROUNDS, Setting, settings
from thinwire.problems.data_folder import data_folder
from thinwire.problems.datasets import BREAST_CANCER
from thinwire.report.ef21 import COUNTS, write_ef21_page
from thinwire.report.template import check_report_packages

QUICK_FIGURES = ("tuned", "tolerance")


def ef21(
    context: typer.Context,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            help="Data sets, with commas between (default: phishing,a9a where there is data, else breast_cancer).",
            show_default=False,
        ),
    ] = None,
    figures: Annotated[
        str | None,
        typer.Option("--figures", help=f"Some of (default: all) {', '.join(FIGURES)}.", show_default=False),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help=f"At most (default: {ROUNDS:,}).", show_default=False)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"{QUICK_ROUNDS} rounds, {' and '.join(QUICK_FIGURES)}: a minute.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option("--data", help="The folder of LIBSVM files (default: THINWIRE_DATA).", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a run instead of the tables.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the record of --out.")] = False,
    out: options.Out = None,
    page: options.Page = None,
    debug: options.Debug = False,
) -> None:
    """EF21, EF, EF21+ and gradient descent on LIBSVM data (Richtárik, Sokolov and Fatkhullin 2021), and successors.

    Logistic regression with the nonconvex regulariser, λ = 0.1, and least squares; 20 workers with the file's rows in
    order; x⁰ from numpy's default_rng(0); steps are multiples of theory's, as the paper tuned them. The record is
    written run by run: Ctrl-C keeps what was done, and --resume goes on.

    **Examples**

      thinwire reproduce ef21 --quick

      thinwire reproduce ef21 --dataset phishing,a9a,mushrooms,w8a --figures tuned --data ~/libsvm --page ef21.html
    """
    if resume and out is None:
        raise ConfigError("--resume goes on with the record that --out names; give --out as well")
    wanted = settings(
        _names(dataset, data),
        (figures.split(",") if figures else QUICK_FIGURES if quick else tuple(FIGURES)),
        rounds if rounds is not None else QUICK_ROUNDS if quick else ROUNDS,
    )
    for name in {setting.dataset for setting in wanted}:
        dataset_of(name, data)  # an unknown one is an error now
    if page is not None:
        check_report_packages()
    record = options.record_path(out, "ef21")
    outcomes, whole = _run_all(context, wanted, record, data, resume, quiet=as_json)
    _show(outcomes, as_json)
    if page is not None and outcomes:
        write_ef21_page(outcomes, page)
    for path, what in ((record, "record"), (page, "report")):
        if outcomes and path is not None and not as_json:
            say(console(), f"{what}: {path}")
    if not whole:
        say(Console(stderr=True), f"finished runs are kept; go on with --resume --out {record}")
        raise typer.Exit(INTERRUPTED)


def _names(dataset: str | None, data: str | None) -> list[str]:
    if dataset is not None:
        return [name.strip() for name in dataset.split(",")]
    return ["phishing", "a9a"] if data_folder(data) else [BREAST_CANCER]


def _advance(bars: Progress, bar: TaskID, step: int) -> None:
    bars.update(bar, completed=step)


def _run_all(
    context: typer.Context, wanted: Sequence[Setting], record: Path, data: str | None, resume: bool, quiet: bool
) -> tuple[list[Outcome], bool]:
    """The runs that came to their end, and whether those are all."""
    done = {one.setting: one for one in (read_outcomes(record) if resume and record.exists() else ())}
    writer = Writer(record, ["thinwire", *context.obj])
    out = Console(stderr=True, highlight=False) if quiet else console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    try:
        with Progress(*columns, console=out, disable=not out.is_terminal, transient=True) as bars:
            overall = bars.add_task("runs", total=len(wanted))
            for setting in wanted:
                if setting not in done:
                    bar = bars.add_task(setting.title, total=setting.rounds)
                    done[setting] = run(setting, data, partial(_advance, bars, bar))
                    writer.add(done[setting])
                    bars.remove_task(bar)
                bars.advance(overall)
    except KeyboardInterrupt:
        return [done[setting] for setting in wanted if setting in done], False
    finally:
        writer.close()
    return [done[setting] for setting in wanted], True


def _show(outcomes: Sequence[Outcome], as_json: bool) -> None:
    if as_json:
        for one in outcomes:
            print(json.dumps(one.plain() | {"curve": None}, ensure_ascii=False))
        return
    out = console()
    for group, runs in grouped(outcomes):
        out.print(_table(group, runs))
    if outcomes:
        say(out, COUNTS)


def _table(group: tuple[str, str], runs: Sequence[Outcome]) -> Table:
    heading = f"{title(*group)}: {measure(runs)}; {', '.join(facts(runs))}"
    table = Table(title=heading, title_style="bold", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(head(runs)):
        left = place == 0
        table.add_column(name.replace(" to ", "\nto "), justify="left" if left else "right", no_wrap=not left)
    for one in runs:
        table.add_row(*(Text(cell) for cell in cells(one)))
    return table

"""The outcome: what train, compare and demo do alike once their runs are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from thinwire.cli.console import console, say
from thinwire.cli.options import check_command
from thinwire.cli.outputs import check_outputs
from thinwire.cli.progress import progress
from thinwire.cli.table import result_table
from thinwire.report.page import write_page
from thinwire.training.config import RunConfig
from thinwire.training.summary import summarise
from thinwire.training.tasks import TASKS
from thinwire.training.train import train
from thinwire.training.verdict import verdict


def run_and_show(
    context: typer.Context, configs: Sequence[RunConfig], record: Path, page: Path | None, *, force: bool
) -> None:
    """Train with a progress display, print the table and the verdict, write the page if one is wanted."""
    check_command(TASKS[configs[0].task].packages, page=page)
    check_outputs(record, page, force=force)
    out = console()
    with progress(out, len(configs), configs[0].workers, configs[0].engine) as listener:
        runs = train(configs, record, command=["thinwire", *context.obj], listener=listener, force=force)
    rows = summarise(runs)
    out.print(result_table(rows))
    for sentence in verdict(rows):
        say(out, sentence)
    say(out, f"record: {record}")
    if page is not None:
        write_page(runs, page)
        say(out, f"report: {page}")
    if all(row.diverged for row in rows):
        raise typer.Exit(1)

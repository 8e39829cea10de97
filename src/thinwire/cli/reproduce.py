"""`thinwire reproduce`: a paper's experiment, beside what the paper prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from thinwire.cli import options
from thinwire.cli.console import INTERRUPTED, console, say
from thinwire.cli.options import check_command
from thinwire.cli.outputs import check_outputs
from thinwire.cli.progress import progress
from thinwire.cli.reproduce_ef21 import ef21
from thinwire.cli.reproduce_memsgd import memsgd
from thinwire.cli.vgc_table import NOTES, vgc_table
from thinwire.errors import ConfigError
from thinwire.papers.vgc.result import claim, results
from thinwire.papers.vgc.runs import CIFAR10, SMALL, split_methods, vgc_configs
from thinwire.report.page import write_page
from thinwire.training.config import RunConfig
from thinwire.training.records import RunRecord
from thinwire.training.resume import finished_runs
from thinwire.training.summary import summarise
from thinwire.training.tasks import TASKS
from thinwire.training.train import train

reproduce = typer.Typer(no_args_is_help=True, help="Repeat a paper's experiment and set it beside the paper's figures.")


@reproduce.callback()
def _group() -> None:
    """Repeat a paper's experiment and set it beside the paper's figures."""


reproduce.command("ef21")(ef21)
reproduce.command("memsgd")(memsgd)


@reproduce.command("vgc")
def vgc(
    context: typer.Context,
    optimizer: Annotated[
        str, typer.Option("--optimizer", help="adam or momentum, the halves of the table, or adamw.")
    ] = "adam",
    methods: Annotated[
        str | None,
        typer.Option("--methods", help="Methods, with commas between (default: the paper's).", show_default=False),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Epochs of each run (default: the paper's 300).", show_default=False)
    ] = None,
    seeds: options.Seeds = "0",
    data: Annotated[
        str | None,
        typer.Option("--data", help="The folder of CIFAR-10 (default: THINWIRE_DATA).", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda; all workers share it.")] = "cpu",
    small: Annotated[bool, typer.Option("--small", help="Digits in place of CIFAR-10: two cores, minutes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row instead of the table.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the record of --out.")] = False,
    out: options.Out = None,
    page: options.Page = None,
    force: options.Force = False,
    debug: options.Debug = False,
) -> None:
    """Variance-based gradient compression on CIFAR-10 (Tsuzuku, Imachi and Akiba 2018).

    A VGG-like network, no augmentation, 8 simulated workers of 64 images each, every worker with its own gradient,
    second moments and batch norm. The record is written run by run: Ctrl-C keeps what was done, and --resume goes on.

    **Examples**

      thinwire reproduce vgc --small

      thinwire reproduce vgc --data cifar-10-batches-py --device cuda --epochs 20 --page vgc.html

      thinwire reproduce vgc --optimizer momentum --methods "none, vgc(1.5), hybrid(0.1, alpha=2)" --device cuda
    """
    if small and data is not None:
        raise ConfigError(f"--small brings its own data, got --data {data}; leave one of them out")
    if resume and out is None:
        raise ConfigError("--resume goes on with the record that --out names; give --out as well")
    configs = vgc_configs(
        SMALL if small else CIFAR10,
        optimizer,
        methods=split_methods(methods) if methods is not None else (),
        epochs=epochs,
        seeds=options.integers(seeds, "--seeds"),
        data=data,
        device=device,
    )
    check_command(TASKS[configs[0].task].packages, page=page)
    record = options.record_path(out, "vgc")
    check_outputs(record, page, force=force, resume=resume)
    runs, whole = _train(context, configs, record, resume, force, quiet=as_json)
    if runs:
        _show(runs, as_json)
    if page is not None and runs:
        write_page(runs, page)
    for path, what in ((record, "record"), (page, "report")):
        if runs and path is not None and not as_json:
            say(console(), f"{what}: {path}")
    if not whole:
        say(Console(stderr=True), f"finished runs are kept; go on with --resume --out {record}")
        raise typer.Exit(INTERRUPTED)


def _train(
    context: typer.Context, configs: Sequence[RunConfig], record: Path, resume: bool, force: bool, quiet: bool
) -> tuple[list[RunRecord], bool]:
    """The runs that came to their end, and whether those are all."""
    out = Console(stderr=True, highlight=False) if quiet else console()
    try:
        with progress(out, len(configs), configs[0].workers, "sim") as listener:
            return train(configs, record, ["thinwire", *context.obj], listener, resume=resume, force=force), True
    except KeyboardInterrupt:
        return finished_runs(record), False


def _show(runs: Sequence[RunRecord], as_json: bool) -> None:
    found = results(summarise(runs))
    if as_json:
        for one in found:
            print(json.dumps(one.plain()))
        return
    out = console()
    out.print(vgc_table(found))
    for sentence in (*claim(found), *NOTES):
        say(out, sentence)

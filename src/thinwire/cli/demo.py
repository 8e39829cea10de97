"""`thinwire demo`: the whole thing with one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli import options
from thinwire.cli.recorded import run_and_show
from thinwire.training.config import DEMO_STEPS, demo_configs


def demo(
    context: typer.Context,
    workers: options.Workers = 4,
    engine: options.Engine = "ddp",
    steps: Annotated[int, typer.Option("--steps", help="Training steps of each method.")] = DEMO_STEPS,
    seeds: options.Seeds = "0,1",
    out: options.Out = None,
    page: Annotated[
        Path | None, options.optional("--page", help="Where the page goes (default: beside the record).")
    ] = None,
    force: options.Force = False,
    debug: options.Debug = False,
) -> None:
    """Train digits with 4 real workers under five methods; table and report page.

    Two cores and two minutes are enough. Every method gets the same model, data, optimizer, learning rate and
    number of steps.

    **Example**

      thinwire demo
    """
    record = options.record_path(out, "demo")
    configs = demo_configs(workers, engine, steps, options.integers(seeds, "--seeds"))
    run_and_show(context, configs, record, page or record.with_suffix(".html"), force=force)

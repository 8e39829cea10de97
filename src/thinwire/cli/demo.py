"""`thinwire demo`: the whole thing with one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli import options
from thinwire.cli.recorded import run_and_show
from thinwire.training.config import DEMO_RATE, DEMO_STEPS, demo_configs


def demo(
    context: typer.Context,
    workers: options.Workers = 4,
    engine: options.Engine = "ddp",
    steps: Annotated[int, typer.Option("--steps", help="Training steps of each method.")] = DEMO_STEPS,
    seeds: options.Seeds = "0",
    rate: Annotated[
        str | None,
        options.optional(
            "--rate", help=f"Of the emulated link before each worker; none: no link (default: {DEMO_RATE})."
        ),
    ] = None,
    out: options.Out = None,
    page: Annotated[
        Path | None, options.optional("--page", help="Where the page goes (default: beside the record).")
    ] = None,
    force: options.Force = False,
    debug: options.Debug = False,
) -> None:
    """Train a small transformer with 4 real workers, each behind an emulated link of 100 Mbit/s; table and page.

    Dense AdamW, torch's fp16 and PowerSGD hooks, and MemAdam in AdamW's place: the same model, data, learning rate and
    number of steps. Then three of them without a link. Two cores and two minutes are enough; it takes no root.
    (Simulated workers, --engine sim, have no link.)

    **Example**

      thinwire demo

      thinwire demo --rate 20mbit --steps 100
    """
    record = options.record_path(out, "demo")
    words = rate if rate is not None or engine == "sim" else DEMO_RATE
    configs = demo_configs(workers, engine, steps, options.integers(seeds, "--seeds"), options.link_rate(words))
    run_and_show(context, configs, record, page or record.with_suffix(".html"), force=force)

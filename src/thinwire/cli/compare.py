"""`thinwire compare`: several methods on one task, over several seeds."""

from __future__ import annotations

from typing import Annotated

import typer

from thinwire.cli import options
from thinwire.cli.recorded import run_and_show
from thinwire.training.config import TORCH_METHODS, comparison


def compare(
    context: typer.Context,
    task: options.TaskName,
    methods: Annotated[
        list[str], typer.Argument(metavar="SPEC...", help=f"Methods: rules' texts, or {options.one_of(TORCH_METHODS)}.")
    ],
    seeds: options.Seeds = "0",
    workers: options.Workers = 4,
    engine: options.Engine = "ddp",
    steps: options.Steps = None,
    batch: options.Batch = None,
    lr: Annotated[
        str | None,
        options.optional(
            "--lr", help="Learning rate: one for all, or one for each SPEC with commas between (default: the task's)."
        ),
    ] = None,
    optimizer: options.Optimizer = None,
    schedule: options.Schedule = None,
    data: options.Data = None,
    evaluations: options.Evaluations = 10,
    rate: options.Rate = None,
    out: options.Out = None,
    page: options.Page = None,
    force: options.Force = False,
    plugin: options.Plugin = None,
    debug: options.Debug = False,
) -> None:
    """Train TASK with each SPEC and each seed, and print one table.

    All runs share one launch of workers and one record. Put dense first: the last lines then say what was saved
    against it and whether that paid in time.

    **Examples**

      thinwire compare digits dense fp16 'memsgd(topk(0.01))' --seeds 0,1,2

      thinwire compare text dense 'ef21sgdm(topk(0.01))' --engine sim --page it.html

      thinwire compare digits dense 'memsgd(sign())' --lr 0.2,0.1

      thinwire compare text dense fp16 'memadam(topk(0.01, values=power4))' --optimizer adamw --rate 100mbit
    """
    configs = comparison(
        task,
        methods,
        seeds=options.integers(seeds, "--seeds"),
        rates=options.decimals(lr, "--lr") if lr is not None else [],
        workers=workers,
        engine=engine,
        steps=steps,
        batch=batch,
        optimizer=optimizer,
        schedule=schedule,
        data=str(data) if data else None,
        evaluations=evaluations,
        rate=options.link_rate(rate),
    )
    run_and_show(context, configs, options.record_path(out, task), page, force=force)

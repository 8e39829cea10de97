"""`thinwire train`: one run of one method."""

from __future__ import annotations

from typing import Annotated

import typer

from thinwire.cli import options
from thinwire.cli.recorded import run_and_show
from thinwire.training.config import TORCH_METHODS, RunConfig


def train(
    context: typer.Context,
    task: options.TaskName,
    method: Annotated[
        str | None,
        options.optional(
            "--method",
            "-m",
            help=f"A rule such as 'memsgd(topk(0.01))', or {options.one_of(TORCH_METHODS)} (default: the task's).",
        ),
    ] = None,
    workers: options.Workers = 4,
    engine: options.Engine = "ddp",
    steps: options.Steps = None,
    batch: options.Batch = None,
    lr: Annotated[float | None, options.optional("--lr", help="Learning rate (default: the task's).")] = None,
    optimizer: options.Optimizer = None,
    schedule: options.Schedule = None,
    seed: Annotated[int, typer.Option("--seed", help="Decides initialisation, order of data and random masks.")] = 0,
    every: Annotated[
        int | None,
        typer.Option(
            "--every", help="Outer steps: exchange every so many steps how far parameters moved.", show_default=False
        ),
    ] = None,
    data: options.Data = None,
    evaluations: options.Evaluations = 10,
    rate: options.Rate = None,
    out: options.Out = None,
    page: options.Page = None,
    force: options.Force = False,
    plugin: options.Plugin = None,
    debug: options.Debug = False,
) -> None:
    """Train TASK with one method and leave a record.

    A method is a rule's text (**thinwire info** lists the names) or one of torch's own: dense (plain DDP),
    fp16 (its float16 hook), powersgd (its PowerSGD hook, ddp only). Without one the task's own is taken: memsgd(topk)
    under SGD, memadam for text, vgc for cifar10.

    **Examples**

      thinwire train digits --method 'memsgd(topk(0.01))' --workers 4

      thinwire train text --engine sim

      thinwire train text -m 'vgc(1.5)' --engine sim

      thinwire train text -m 'memsgd(chunktopk(0.015625, values=bins2), decay=0.95)' --optimizer adamw --every 30

      thinwire train logistic --data rcv1.bz2 -m 'memsgd(topk(count=10))' --lr 2
    """
    config = RunConfig.of(
        task,
        method,
        workers=workers,
        engine=engine,
        steps=steps,
        batch=batch,
        lr=lr,
        optimizer=optimizer,
        schedule=schedule,
        seed=seed,
        data=str(data) if data else None,
        evaluations=evaluations,
        rate=options.link_rate(rate),
        every=every,
    )
    run_and_show(context, [config], options.record_path(out, task), page, force=force)

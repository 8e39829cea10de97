"""`thinwire advise`: what a step takes by each method on a network, forecast; and whether to compress there."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from thinwire.advice.held_out import ADVISOR, ADVISOR_EXPERIMENT, HeldOut, sections
from thinwire.advice.inquiry import Inquiry, advice, on_launched_ranks, rehearsed
from thinwire.advice.outlook import Advice
from thinwire.cli import options
from thinwire.cli.console import check_outputs, console, noted, say
from thinwire.cli.options import check_command, optional, record_path
from thinwire.cli.recorded import show_sections
from thinwire.errors import ConfigError
from thinwire.lab.block import Block
from thinwire.lab.laboratory import measure
from thinwire.lab.namespaces import network
from thinwire.lab.requirements import check_fit, check_machine
from thinwire.lab.setting import cables
from thinwire.report.record_file import Writer
from thinwire.training.tasks import TASKS, load_task

WORLD = "WORLD_SIZE"
"""What torchrun sets."""


def advise(
    context: typer.Context,
    model: Annotated[
        str, typer.Option("--model", help=f"A task ({options.one_of(TASKS)}), or parameters: 124m.")
    ] = "text",
    workers: Annotated[int, typer.Option("--workers", "-n", help="Workers that exchange.")] = 4,
    rate: Annotated[str, typer.Option("--rate", help="Of every worker's wire, with commas between.")] = "100mbit,1gbit",
    methods: Annotated[
        str | None, optional("--methods", help="Semicolons between (default: the optimizer's, top-k, outer steps).")
    ] = None,
    optimizer: options.Optimizer = None,
    batch: options.Batch = None,
    data: options.Data = None,
    compute: Annotated[
        float | None, optional("--compute", help="Milliseconds of a step without exchange, in place of measuring it.")
    ] = None,
    every: Annotated[int, typer.Option("--every", help="Steps between two exchanges of outer steps.")] = 30,
    here: Annotated[int, typer.Option("--here", help="Workers that share a machine like this one.")] = 1,
    measured: Annotated[
        bool, typer.Option("--measure", help="Measure the network between torchrun's ranks; leaves --rate out.")
    ] = False,
    lab: Annotated[
        bool, typer.Option("--lab", help="Then measure it in the laboratory, and hold both together.")
    ] = False,
    check: Annotated[
        list[Path] | None, optional("--check", help="Show such a comparison again, from its record; several times.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds of measuring.")] = 3,
    steps: Annotated[int, typer.Option("--steps", help="Steps of a round.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Lines of JSON in place of tables.")] = False,
    out: options.Out = None,
    force: options.Force = False,
    plugin: options.Plugin = None,
    debug: options.Debug = False,
) -> None:
    """Forecast what a step takes by each method on a network, and say whether to compress there.

    Computing, encoding and decoding are measured on this machine, and what a wire of the rate would carry beside them
    is worked out. Under torchrun, --measure takes the network as it is in place of a rate. With --lab the forecast is
    held against the laboratory's hosts on this machine (root).

    **Examples**

      thinwire advise --model text --workers 16 --rate 100mbit,1gbit

      thinwire advise --model 124m --compute 350 --workers 8 --rate 1gbit --optimizer adamw

      torchrun --nnodes 4 --nproc-per-node 1 ... -m thinwire.cli.main advise --measure --model text

      thinwire advise --check docs/records/advisor.jsonl
    """
    if check:
        return _show_check(check)
    if measured:
        workers = _launched()
    inquiry = Inquiry(
        model=model,
        workers=workers,
        cables=() if measured else cables(rate),
        methods=methods,
        optimizer=optimizer,
        batch=batch,
        data=None if data is None else str(data),
        compute=compute,
        every=every,
        here=workers if lab else here,
        rounds=rounds,
        steps=steps,
    )
    check_command(inquiry.packages)
    if measured:
        rehearsal, rank = on_launched_ranks(inquiry, lambda what: None)
        if rank == 0:
            _show(advice(inquiry, rehearsal), as_json=as_json)
        return None
    if lab:
        return _hold_together(inquiry, record_path(out, ADVISOR), ["thinwire", *context.obj], force=force)
    _show(advice(inquiry, rehearsed(inquiry)), as_json=as_json)
    return None


def _launched() -> int:
    """How many ranks the launcher started."""
    size = os.environ.get(WORLD, "1")
    if not size.isdigit() or int(size) < 2:
        raise ConfigError(
            "--measure takes the network between ranks, and torchrun started no other: run `torchrun --nnodes N "
            "--nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m thinwire.cli.main advise --measure` "
            "on every host"
        )
    return int(size)


def _show(found: list[Advice], *, as_json: bool) -> None:
    if as_json:
        for each in found:
            print(json.dumps(each.plain(), ensure_ascii=False))
    else:
        show_sections([each.section for each in found])


def _show_check(records: list[Path]) -> None:
    with noted():
        show_sections(sections([run for record in records for run in ADVISOR_EXPERIMENT.runs(record)]))


def _hold_together(inquiry: Inquiry, record: Path, command: list[str], *, force: bool) -> None:
    """Forecast, measure, record, and show both."""
    check_machine(inquiry.setting)
    check_fit(inquiry.setting, load_task(inquiry.model, inquiry.data))
    check_outputs(record, None, force=force)
    blocks: list[Block] = []
    with closing(Writer(record, ADVISOR, command, force=force)) as writer:
        with network(inquiry.workers) as net:
            rehearsal = rehearsed(inquiry, [net.of(rank) for rank in range(inquiry.workers)])
        measure(inquiry.setting, blocks.append, lambda _: None)
        writer.add(HeldOut(rehearsal, tuple(blocks)))
    show_sections(sections([HeldOut(rehearsal, tuple(blocks))]))
    say(console(), f"record: {record}")

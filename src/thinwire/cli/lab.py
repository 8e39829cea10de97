"""`thinwire lab`: methods timed beside each other on hosts of this machine, joined by wires of any rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from thinwire.cli import options
from thinwire.cli.console import INTERRUPTED, check_outputs, console, say
from thinwire.cli.options import check_command, optional, record_path
from thinwire.cli.recorded import show_sections
from thinwire.lab.block import Block
from thinwire.lab.laboratory import measure, turns
from thinwire.lab.sections import LAB, sections
from thinwire.lab.setting import LabSetting, cables, lab_methods
from thinwire.papers import read_sections
from thinwire.report.page import write_page
from thinwire.report.record_file import Writer
from thinwire.training.tasks import check_task


def lab(
    context: typer.Context,
    hosts: Annotated[int, typer.Option("--hosts", "-n", help="Hosts, one rank each.")] = 4,
    rate: Annotated[
        str, typer.Option("--rate", help="Rates of every host's wire, with commas between; none: unshaped.")
    ] = "100mbit,1gbit,none",
    up: Annotated[str | None, optional("--up", help="Another rate for what a host sends.")] = None,
    down: Annotated[str | None, optional("--down", help="Another rate for what it hears.")] = None,
    task: Annotated[str, typer.Option("--task", help=f"{options.ABOUT}.")] = "text",
    methods: Annotated[
        str | None,
        optional("--methods", help="Semicolons between (default: the task's own, top-k with memory); powersgd4 too."),
    ] = None,
    batch: options.Batch = None,
    data: options.Data = None,
    steps: Annotated[int, typer.Option("--steps", help="Measured steps of a method's turn.")] = 5,
    rounds: Annotated[int, typer.Option("--rounds", help="Turns of each method at each rate.")] = 5,
    replay: Annotated[
        float | None, optional("--replay", help="Milliseconds that hosts sleep in place of computing.")
    ] = None,
    codec: Annotated[
        float | None, optional("--codec", help="With --replay: milliseconds to sleep in place of encoding, too.")
    ] = None,
    every: Annotated[int, typer.Option("--every", help="With --codec: steps of computing before an exchange.")] = 1,
    settle: Annotated[int, typer.Option("--settle", help="Steps in which auto chooses, at each rate.")] = 80,
    train: Annotated[
        int, typer.Option("--train", help="Train every method for so many steps: seconds to dense's loss.")
    ] = 0,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds that ranks wait for each other.")] = 300.0,
    emulated: Annotated[
        bool, typer.Option("--emulated", help="Plain processes behind emulated links: no root, no packets.")
    ] = False,
    out: options.Out = None,
    page: options.Page = None,
    force: options.Force = False,
    plugin: options.Plugin = None,
    debug: options.Debug = False,
) -> None:
    """Time methods on hosts of this machine whose wires have any rate: what pays, what does not, and where steps go.

    Every host is a network namespace with a wire to a bridge, shaped both ways by `tc`; all is gone afterwards. It
    takes root. With --emulated hosts are plain processes behind emulated links, which takes none. No exchange at all,
    DDP in float32, torch's fp16 hook and its PowerSGD are always measured too, by turns. With --replay hosts sleep in
    place of computing, so that more of them fit on few cores.

    **Examples**

      thinwire lab --hosts 4 --rate 100mbit,1gbit,none

      thinwire lab --emulated --rate 100mbit

      thinwire lab --hosts 4 --rate 10mbit,100mbit --train 600 --page lab.html

      thinwire lab --hosts 8 --rate 50mbit --replay 30 --methods "memsgd(topk(0.001)); powersgd4" --page lab.html
    """
    setting = LabSetting(
        hosts=hosts,
        cables=cables(rate, up, down),
        task=task,
        methods=lab_methods(methods, task, powersgd=codec is None),
        steps=steps,
        rounds=rounds,
        batch=batch,
        data=None if data is None else str(data),
        replay=replay,
        codec=codec,
        every=every,
        settle=settle,
        train=train,
        timeout=timeout,
        emulated=emulated,
    )
    check_command(check_task(task).packages, page=page)
    record = record_path(out, LAB)
    check_outputs(record, page, force=force)
    if not _measure_and_show(setting, record, ["thinwire", *context.obj], force=force):
        raise typer.Exit(INTERRUPTED)
    say(console(), f"record: {record}")
    if page is not None:
        write_page(read_sections([record])[0], page)
        say(console(), f"report: {page}")


def _measure_and_show(setting: LabSetting, record: Path, command: list[str], *, force: bool) -> bool:
    """Measure, record and show every rate that came to its end; whether all did."""
    blocks: list[Block] = []
    whole, writer = False, Writer(record, LAB, command, force=force)

    def keep(block: Block) -> None:
        writer.add(block)
        blocks.append(block)

    try:
        with closing(writer), _progress(console(), turns(setting)) as tell:
            measure(setting, keep, tell)
        whole = True
    except KeyboardInterrupt:
        pass
    finally:
        show_sections(sections(blocks))
    return whole


@contextmanager
def _progress(out: Console, length: int) -> Iterator[Callable[[str], None]]:
    """A bar of turns that says whose it is; on what is no terminal, nothing."""
    name = TextColumn("{task.description}", table_column=Column(overflow="fold"))
    columns = (name, BarColumn(bar_width=14), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=out, disable=not out.is_terminal, transient=True) as bars:
        bar = bars.add_task("starting the hosts", total=length)
        yield lambda words: bars.update(bar, advance=1, description=words)

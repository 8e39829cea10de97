"""`thinwire bench`: the speed of the kernels and the size of the wire format, beside peers and the floor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, TypeVar

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.progress import track
from rich.table import Table

from thinwire.cli.console import console, say
from thinwire.cli.options import decimals
from thinwire.cli.wire_tables import message_table, size_table, time_table
from thinwire.errors import ConfigError
from thinwire.experiments.bench.kernels import KernelRow, bench_kernels
from thinwire.experiments.bench.wire import WireRow, bench_wire, better_than_ours
from thinwire.experiments.provenance import cpu_model

Row = TypeVar("Row", KernelRow, WireRow)
bench = typer.Typer(no_args_is_help=True, help="Measure kernels and wire format on this machine.")

Numel = Annotated[int, typer.Option("--numel", help="Numbers in the vector.")]
Densities = Annotated[str, typer.Option("--densities", help="Shares of the numbers kept, with commas between them.")]
Repeats = Annotated[int, typer.Option("--repeats", help="Measured rounds; the table shows medians.")]
Threads = Annotated[int | None, typer.Option("--threads", help="Threads (default: torch's).", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a row instead of the table.")]


@bench.command("kernels")
def kernels(
    numel: Numel = 25_000_000,
    densities: Densities = "0.01,0.001",
    repeats: Repeats = 5,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Time exact top-k steps beside an in-place add (the floor), torch's own operations, and numpy's.

    **Example**

      thinwire bench kernels --numel 1000000
    """
    rows = list(_rows(bench_kernels(*_checked(numel, densities, repeats, threads)), as_json))
    if as_json:
        return
    table = _table("op", "pieces", "numbers", "kept", "ours", "least - most", "x floor", "torch / ours", "numpy / ours")
    for row in (row.plain() for row in rows):
        low, high = row["ours_spread_ms"]
        table.add_row(
            row["op"],
            str(row["pieces"]),
            row["distribution"],
            f"{row['density']:g}",
            f"{row['ours_ms']:.1f} ms",
            f"{low:.1f} - {high:.1f}",
            f"{row['over_floor']:.2f}",
            f"{row['torch_over_ours']:.1f}",
            f"{row['numpy_over_ours']:.1f}",
        )
    _show(table, f"{numel:,} float32, floor: in-place add, {rows[0].floor_ms:.1f} ms")


@bench.command("wire")
def wire(
    numel: Numel = 25_000_000,
    densities: Densities = "0.1,0.01,0.001,0.0001",
    repeats: Repeats = 5,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Bits a position takes beside its entropy and other codes, with the time of each, and the time of whole messages.

    The extra `bench` (pyroaring, zstandard) brings the libraries to compare with.

    **Example**

      thinwire bench wire --numel 1000000 --json
    """
    rows = list(_rows(bench_wire(*_checked(numel, densities, repeats, threads)), as_json))
    if as_json:
        return
    say(console(), _title(f"{numel:,} numbers of a normal distribution, medians of {repeats}"))
    for table in (size_table(rows), time_table(rows), message_table(rows)):
        console().print(table)
    for row in rows:
        better = ", ".join(better_than_ours(row)) or "none"
        say(console(), f"smaller than thinwire's positions at {row.density:g}: {better}")


def _checked(numel: int, densities: str, repeats: int, threads: int | None) -> tuple[int, list[float], int]:
    shares = decimals(densities, "--densities")
    if numel < 1 or repeats < 1 or not all(0 < share <= 1 for share in shares) or (threads is not None and threads < 1):
        raise ConfigError(
            "numel, repeats and threads must be at least 1 and densities in (0, 1], "
            f"got {numel}, {repeats}, {threads} and {densities}"
        )
    if threads is not None:
        torch.set_num_threads(threads)
    return numel, shares, repeats


def _rows(rows: Iterator[Row], as_json: bool) -> Iterator[Row]:
    out = console()
    for row in rows if as_json else track(rows, "measuring", console=out, transient=True, disable=not out.is_terminal):
        if as_json:
            say(out, json.dumps(row.plain()))
        yield row


def _table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _show(table: Table, title: str) -> None:
    out = console()
    say(out, _title(title))
    out.print(table)


def _title(title: str) -> str:
    return f"{title}; {cpu_model()}, {torch.get_num_threads()} threads"

"""`thinwire bench`: the speed of the kernels and the size of the wire format, beside peers and the floor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, TypeVar

import torch
import typer
from rich.progress import track

from thinwire.cli.console import console, say
from thinwire.cli.kernel_table import floor_line, kernel_table, machine
from thinwire.cli.options import decimals
from thinwire.cli.wire_tables import message_table, size_table, time_table
from thinwire.errors import ConfigError
from thinwire.experiments.bench.kernels import KernelRow, bench_kernels
from thinwire.experiments.bench.operations import OPERATIONS
from thinwire.experiments.bench.wire import WireRow, bench_wire, better_than_ours

Row = TypeVar("Row", KernelRow, WireRow)
bench = typer.Typer(no_args_is_help=True, help="Measure kernels and wire format on this machine.")

Numel = Annotated[int, typer.Option("--numel", help="Numbers in the vector.")]
KernelNumel = Annotated[
    int | None,
    typer.Option("--numel", help="Numbers in the vector (default: 25 million, on a GPU 100).", show_default=False),
]
Op = Annotated[
    str | None,
    typer.Option("--op", help=f"Some of (default: all) {', '.join(OPERATIONS)}.", show_default=False),
]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda.")]
DEFAULT_NUMEL = {"cpu": 25_000_000, "cuda": 100_000_000}
Densities = Annotated[str, typer.Option("--densities", help="Shares of the numbers kept, with commas between them.")]
Repeats = Annotated[int, typer.Option("--repeats", help="Measured rounds; the table shows medians.")]
Threads = Annotated[int | None, typer.Option("--threads", help="Threads (default: torch's).", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a row instead of the table.")]


@bench.command("kernels")
def kernels(
    numel: KernelNumel = None,
    densities: Densities = "0.01,0.001",
    op: Op = None,
    device: Device = "cpu",
    repeats: Repeats = 5,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Time every kernel beside the floor (an in-place add of as many numbers), plain torch, and numpy.

    On a GPU the floor is 12 bytes a number at the speed of a copy, "stream" is one of 20 calls back to back, and
    "busy" the time its kernels were at work, without the host.

    **Example**

      thinwire bench kernels --numel 1000000 --op "memory,memory + packing"
    """
    names = _operations(op)
    _check_device(device)
    checked = _checked(DEFAULT_NUMEL[device] if numel is None else numel, densities, repeats, threads)
    rows = list(_rows(bench_kernels(*checked, names, device), as_json))
    if as_json:
        return
    say(console(), f"{checked[0]:,} float32, medians of {repeats}; {machine(device)}")
    say(console(), floor_line(rows))
    console().print(kernel_table(rows))


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
    say(console(), f"{numel:,} numbers of a normal distribution, medians of {repeats}; {machine('cpu')}")
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


def _operations(text: str | None) -> list[str]:
    """The operations that are named, or all."""
    names = list(OPERATIONS) if text is None else [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in OPERATIONS]
    if unknown:
        raise ConfigError(f"unknown operation {unknown[0]!r}; known: {', '.join(OPERATIONS)}")
    return names


def _check_device(device: str) -> None:
    if device not in DEFAULT_NUMEL:
        raise ConfigError(f"device must be one of {', '.join(DEFAULT_NUMEL)}, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda: torch finds no GPU on this machine")

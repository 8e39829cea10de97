"""`thinwire bench`: the speed of kernels and simulation, and the size of the wire format, beside peers."""

from __future__ import annotations

from typing import Annotated

import torch
import typer

from thinwire.bench.kernels import bench_kernels
from thinwire.bench.operations import OPERATIONS
from thinwire.bench.simulation import bench_simulation
from thinwire.bench.wire import bench_wire, better_than_ours
from thinwire.cli.bench_lockfree import lockfree
from thinwire.cli.console import console, say
from thinwire.cli.kernel_table import floor_line, kernel_table, machine
from thinwire.cli.measured import Json, Repeats, measured
from thinwire.cli.options import Force, Page, decimals, integers
from thinwire.cli.outputs import check_page
from thinwire.cli.packages import DATA, check_command
from thinwire.cli.simulation_table import growth_page, simulation_table
from thinwire.cli.wire_tables import message_table, size_table, time_table
from thinwire.errors import ConfigError
from thinwire.problems import load_dataset
from thinwire.problems.datasets import BREAST_CANCER

bench = typer.Typer(no_args_is_help=True, help="Measure kernels, wire format, simulation and threads on this machine.")
bench.command("lockfree")(lockfree)

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
Threads = Annotated[int | None, typer.Option("--threads", help="Threads (default: torch's).", show_default=False)]


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
    rows = list(measured(bench_kernels(*checked, names, device), as_json))
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
    rows = list(measured(bench_wire(*_checked(numel, densities, repeats, threads)), as_json))
    if as_json:
        return
    say(console(), f"{numel:,} numbers of a normal distribution, medians of {repeats}; {machine('cpu')}")
    for table in (size_table(rows), time_table(rows), message_table(rows)):
        console().print(table)
    for row in rows:
        better = ", ".join(better_than_ours(row)) or "none"
        say(console(), f"smaller than thinwire's positions at {row.density:g}: {better}")


@bench.command("simulate")
def simulation(
    dataset: Annotated[str, typer.Option("--dataset", help="Data sets, with commas between.")] = BREAST_CANCER,
    workers: Annotated[int, typer.Option("--workers", "-n", help="Workers beside the numpy loop.")] = 20,
    growth: Annotated[
        str, typer.Option("--growth", help="Numbers of workers that ours alone is timed with; empty for none.")
    ] = "100,1000,10000",
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds beside numpy; a tenth as workers grow.")] = 3000,
    threads: Annotated[int, typer.Option("--threads", help="Threads of both sides.")] = 1,
    data: Annotated[
        str | None,
        typer.Option("--data", help="The folder of LIBSVM files (default: THINWIRE_DATA).", show_default=False),
    ] = None,
    as_json: Json = False,
    page: Page = None,
    force: Force = False,
) -> None:
    """Time EF21 with top-1 on logistic regression beside a plain numpy loop, then with more and more workers.

    The numpy loop has dense matrices, as the authors' scripts. Both sides run in float64 from the same point with the
    same steps; the table says how far apart they end.

    **Example**

      thinwire bench simulate --dataset a9a,w8a --data ~/libsvm --page simulate.html
    """
    if rounds < 1 or workers < 1 or threads < 1:
        raise ConfigError(f"rounds, workers and threads must be at least 1, got {rounds}, {workers} and {threads}")
    check_command(DATA, page=page)
    check_page(page, force=force)
    torch.set_num_threads(threads)
    loaded = [load_dataset(name.strip(), data) for name in dataset.split(",")]
    more = integers(growth, "--growth") if growth else []
    rows = list(measured(bench_simulation(loaded, workers, more, rounds, threads), as_json))
    if page is not None:
        growth_page(rows, page)
    if as_json:
        return
    say(console(), f"EF21, top-1, float64; {machine('cpu')} on both sides")
    console().print(simulation_table(rows))


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

"""`thinwire bench lockfree`: Mem-SGD on all cores, measured. It imports the engine, which needs numba, when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from thinwire.bench.linear_data import ENTRIES, SHAPES, SPARSE_D
from thinwire.cli.console import console, say
from thinwire.cli.kernel_table import machine
from thinwire.cli.lockfree_table import reach_table, speed_table
from thinwire.cli.measured import Json, Repeats, measured
from thinwire.cli.options import integers
from thinwire.cli.packages import DATA, THREADS, check_command
from thinwire.errors import ConfigError
from thinwire.problems import load_dataset


def lockfree(
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", help="Time to a loss on this data set, in place of speed.", show_default=False),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", help="With --dataset: methods beside SGD, with semicolons between.")
    ] = "memsgd(threshold(0.41));memsgd(topk(count=5));memsgd(topk(count=1))",
    units: Annotated[
        str,
        typer.Option("--units", help="With --dataset: how sparse features are compared, by popularity or as equal."),
    ] = "popularity",
    initial: Annotated[float, typer.Option("--initial", help="With --dataset: the first step size.")] = 1.0,
    samples: Annotated[int, typer.Option("--samples", help="Rows of the data that are made up.")] = 50_000,
    shapes: Annotated[str, typer.Option("--shapes", help=f"Some of {', '.join(SHAPES)}.")] = ",".join(SHAPES),
    threads: Annotated[str, typer.Option("--threads", help="Numbers of threads, with commas between.")] = "1,2",
    repeats: Repeats = 5,
    data: Annotated[
        str | None,
        typer.Option("--data", help="The folder of LIBSVM files (default: THINWIRE_DATA).", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Steps a second of the lock-free engine beside lock-free SGD and scikit-learn's SGDClassifier, by turns.

    The data are made up: sparse rows of the shape of RCV1 with columns equally popular (uniform) or as popular as
    words are (skewed), and dense rows. With --dataset: the time to reach the loss that SGDClassifier ends at.

    **Example**

      thinwire bench lockfree --dataset reuters21578_tfidf --data ~/data
    """
    counts, names = integers(threads, "--threads"), [name.strip() for name in shapes.split(",")]
    if repeats < 1 or samples < 1 or min(counts) < 1 or not set(names) <= set(SHAPES):
        raise ConfigError(
            f"repeats, samples and threads must be at least 1 and shapes among {', '.join(SHAPES)}, "
            f"got {repeats}, {samples}, {threads} and {shapes}"
        )
    if units not in ("popularity", "equal"):
        raise ConfigError(f"--units is popularity or equal, got {units}")
    check_command(THREADS, DATA)
    from thinwire.bench.lockfree import bench_lockfree
    from thinwire.bench.reach import bench_reach

    if dataset is not None:
        loaded = load_dataset(dataset, data)
        kind = None if units == "equal" else units
        ways = list(measured(bench_reach(loaded, method.split(";"), counts, repeats, initial, kind), as_json))
        if not as_json:
            say(console(), f"{dataset}: logistic loss, λ = 1/n, float32, η = γ/(1 + γλt), γ = {initial:g}; medians of")
            say(
                console(),
                f"{repeats}, of runs that do not stop to look at the loss; sparse units: {units}; {machine('cpu')}",
            )
            console().print(reach_table(ways))
        return
    rows = list(measured(bench_lockfree(names, samples, counts, repeats), as_json))
    if not as_json:
        say(
            console(), f"{samples:,} rows, float32; sparse: d = {SPARSE_D:,}, {ENTRIES} entries a row; {machine('cpu')}"
        )
        console().print(speed_table(rows))

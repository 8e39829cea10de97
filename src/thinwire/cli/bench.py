"""`thinwire bench`: kernels, wire format, DDP steps, simulation and threads of this machine, measured beside peers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, TypeVar

import torch
import typer
from rich.progress import track

from thinwire.bench import ddp_step, device_step, simulation
from thinwire.bench.contests import OPERATIONS
from thinwire.bench.grid import Measured, machine
from thinwire.bench.kernels import bench_calls, bench_kernels, call_table, floor_line, kernel_table
from thinwire.bench.models import TIMED_MODELS, TimedModel
from thinwire.bench.moments import bench_moments, moments_table
from thinwire.bench.wire import bench_wire, better_than_ours, message_table, size_table, time_table
from thinwire.cli import options
from thinwire.cli.console import check_page, console, say
from thinwire.cli.options import DATA, THREADS, at_least_one, check_command, decimals, integers, one_of, optional
from thinwire.errors import ConfigError
from thinwire.problems import load_dataset
from thinwire.problems.datasets import BREAST_CANCER

bench = typer.Typer(
    no_args_is_help=True,
    help="Measure kernels, wire format, DDP steps, simulation and threads on this machine, beside peers.",
)

DEFAULT_NUMEL = {"cpu": 25_000_000, "cuda": 100_000_000}
Repeats = Annotated[int, typer.Option("--repeats", help="Measured rounds; the table shows medians.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a row instead of the table.")]
Numel = Annotated[int, typer.Option("--numel", help="Numbers in the vector.")]
Op = Annotated[str | None, optional("--op", help=f"Some of (default: all) {', '.join(OPERATIONS)}.")]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda.")]
Densities = Annotated[str, typer.Option("--densities", help="Shares of the numbers kept, with commas between them.")]
Threads = Annotated[int | None, optional("--threads", help="Threads (default: torch's).")]
Rounds = Annotated[int, typer.Option("--rounds", help="Measured rounds; the table shows medians.")]
Row = TypeVar("Row", bound=Measured)


@bench.command("kernels")
def kernels(
    numel: Annotated[
        int | None, optional("--numel", help="Numbers in the vector (default: 25 million, on a GPU 100).")
    ] = None,
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
    rows = _measured(bench_kernels(*checked, names, device), as_json)
    if rows:
        say(console(), f"{checked[0]:,} float32, medians of {repeats}; {machine(device)}")
        say(console(), floor_line(rows))
        console().print(kernel_table(rows))


@bench.command("ops")
def ops(
    numel: Numel = 100,
    op: Op = None,
    repeats: Repeats = 20,
    threads: Threads = 1,
    as_json: Json = False,
) -> None:
    """Time a call of every operation on few numbers, in microseconds: the cost of dispatch and Python.

    Each figure is the mean of 100 calls; the first row is an in-place add, the least that a call of torch takes.

    **Example**

      thinwire bench ops --op topk,memory
    """
    at_least_one(numel=numel, repeats=repeats, threads=threads or 1)
    torch.set_num_threads(threads or torch.get_num_threads())
    rows = _measured(bench_calls(numel, _operations(op), repeats), as_json)
    if rows:
        say(console(), f"{numel:,} float32 in one piece, medians of {repeats} turns of 100 calls; {machine()}")
        console().print(call_table(rows))


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
    rows = _measured(bench_wire(*_checked(numel, densities, repeats, threads)), as_json)
    if rows:
        say(console(), f"{numel:,} numbers of a normal distribution, medians of {repeats}; {machine()}")
        for table in (size_table(rows), time_table(rows), message_table(rows)):
            console().print(table)
    for row in rows:
        better = ", ".join(better_than_ours(row)) or "none"
        say(console(), f"smaller than thinwire's positions at {row.density:g}: {better}")


@bench.command("step")
def step(
    device: Device = "cpu",
    model: Annotated[
        str | None, optional("--model", help="gpt2, resnet50 or mlp (default: mlp, on a GPU gpt2); the CPU takes mlp.")
    ] = None,
    batch: Annotated[
        int | None, optional("--batch", help="Samples of a batch (default: gpt2 16, resnet50 64, mlp 32).")
    ] = None,
    methods: Annotated[
        str | None,
        optional("--methods", help="With semicolons between: rules, bf16, fp16, powersgd; dense is always there."),
    ] = None,
    profile: Annotated[
        str | None, optional("--profile", help="On a GPU: say where a step of this method goes, beside dense alone.")
    ] = None,
    nonfinite: Annotated[
        str, optional("--nonfinite", help="On a GPU: when ours hear of NaN, at the end of backward (raise) or late.")
    ] = "raise",
    buckets: Annotated[int, optional("--bucket-cap-mb", help="On a GPU: DDP's buckets under our methods.")] = 100,
    rounds: Rounds = 15,
    as_json: Json = False,
) -> None:
    """Time a DDP step beside torch's own ways, all methods by turns, and take ours apart.

    On the CPU two gloo ranks of this machine train 10 million parameters; "alone" exchanges nothing: it is the floor.
    On a GPU one process trains GPT-2 (124 M), ResNet-50 (26 M) or the same MLP in a world of one; beside the time
    stand launches, synchronisations and memory. Either way this shows what compression costs, not what it saves.

    **Example**

      thinwire bench step --device cuda --model gpt2 --batch 16
    """
    at_least_one(rounds=rounds, **({} if batch is None else {"batch": batch}))
    _check_device(device)
    names = None if methods is None else [name.strip() for name in methods.split(";") if name.strip()]
    if device == "cuda":
        way = _way(nonfinite, buckets)
        _step_on_gpu(_timed_model(model or "gpt2"), batch, names, rounds, profile, way, as_json)
    else:
        _check_cpu_step(_timed_model(model or "mlp"), profile)
        _step_on_cpu(names, batch or ddp_step.BATCH, rounds, as_json)


def _way(nonfinite: str, buckets: int) -> device_step.Way:
    known: dict[str, ddp_step.Nonfinite] = {"raise": "raise", "late": "late"}
    if nonfinite not in known:
        raise ConfigError(f"--nonfinite must be {one_of(known)}, got {nonfinite!r}")
    if buckets < 1:
        raise ConfigError(f"--bucket-cap-mb must be at least 1, got {buckets}; DDP's default is 25")
    return device_step.Way(buckets, known[nonfinite])


def _timed_model(name: str) -> TimedModel:
    if name not in TIMED_MODELS:
        raise ConfigError(f"--model must be {one_of(TIMED_MODELS)}, got {name!r}")
    return TIMED_MODELS[name]


def _check_cpu_step(model: TimedModel, profile: str | None) -> None:
    if model.name != "mlp":
        raise ConfigError(
            f"--model {model.name} is for one GPU, and on the CPU two ranks train mlp: add --device cuda, or use "
            "--model mlp"
        )
    if profile is not None:
        raise ConfigError(
            "--profile needs --device cuda; on the CPU every one of our methods is taken apart: leave it out"
        )


def _step_on_cpu(methods: list[str] | None, batch: int, rounds: int, as_json: bool) -> None:
    chosen = ddp_step.STEP_METHODS if methods is None else methods
    rows = _measured(ddp_step.bench_step(rounds, chosen, batch), as_json)
    if rows:
        say(console(), f"2 ranks on gloo over the loopback, 1 thread each, 10.0 M parameters, batch {batch}")
        say(console(), f"medians of {rounds} steps taken in turns")
        console().print(ddp_step.step_table(rows), *(ddp_step.part_table(row) for row in rows if row.parts_ms))


def _step_on_gpu(
    model: TimedModel,
    batch: int | None,
    methods: list[str] | None,
    rounds: int,
    profile: str | None,
    way: device_step.Way,
    as_json: bool,
) -> None:
    """Which methods: those that were named; or what is to be taken apart, beside dense alone; or all of the table."""
    chosen = methods if methods is not None else [] if profile is not None else device_step.default_methods()
    samples = batch or model.samples
    rows = _measured(device_step.bench_device_step(model, samples, chosen, rounds, profile, way), as_json)
    if rows:
        about = f"{model.name}, {rows[0].parameters / 1e6:.1f} M parameters, batch {rows[0].batch}, bfloat16 autocast"
        say(console(), f"{about}; one process on NCCL, {rows[0].machine}")
        ours = f'ours with bucket_cap_mb={way.bucket_cap_mb} and nonfinite="{way.nonfinite}"'
        say(console(), f"medians of {rounds} rounds of {device_step.TURN} steps, all methods by turns; {ours}")
        console().print(*device_step.tables(rows))
    for row in rows:
        if row.absent is not None:
            say(console(), f"{row.method} is not measured: {row.absent}")


@bench.command("bytes")
def count_bytes(
    workers: Annotated[int, typer.Option("--workers", "-n", help="Number of gloo ranks.")] = 4,
    as_json: Json = False,
) -> None:
    """Hold the bytes that thinwire counts against those that the loopback interface carried.

    The interface counts packet headers and acknowledgements too, and whatever else travels on it: run this on a quiet
    machine.

    **Example**

      thinwire bench bytes --workers 2
    """
    at_least_one(workers=workers)
    rows = _measured(ddp_step.bench_traffic(workers), as_json)
    if rows:
        say(console(), f"{workers} workers, 2 M parameters, {ddp_step.BYTES_STEPS} steps, all workers together")
        console().print(ddp_step.traffic_table(rows))


@bench.command("memory")
def memory(
    parameters: Annotated[int, typer.Option("--parameters", help="Of the network.")] = 30_000_000,
    rules: Annotated[str, typer.Option("--rules", help="Rules, with semicolons between.")] = ";".join(ddp_step.RULES),
    as_json: Json = False,
) -> None:
    """Memory of a DDP step above dense training, in bytes a parameter, on two gloo ranks of this machine.

    "state" is what a rule keeps by its own account, "steady" is resident between steps, "peak" the most that was.

    **Example**

      thinwire bench memory --rules "memsgd(topk(0.01));ef21(topk(0.01))"
    """
    at_least_one(parameters=parameters)
    rows = _measured(ddp_step.bench_memory(parameters, [rule.strip() for rule in rules.split(";")]), as_json)
    if rows:
        say(console(), f"{rows[0].parameters:,} parameters, 2 ranks on gloo")
        console().print(ddp_step.memory_table(rows))


@bench.command("moments")
def moments(
    small: Annotated[bool, typer.Option("--small", help="Small networks and batches: under a minute.")] = False,
    only: Annotated[int | None, optional("--only", help="One of the networks: 0, 1 or 2.")] = None,
    device: Device = "cpu",
    repeats: Repeats = 7,
    as_json: Json = False,
) -> None:
    """The cost of second moments of per-sample gradients beside forward + backward, which is 1.

    BackPACK, Opacus and torch's vmap(grad) are measured beside it where they are installed and take the network.

    **Example**

      thinwire bench moments --small --repeats 3
    """
    at_least_one(repeats=repeats)
    _check_device(device)
    rows = _measured(bench_moments(small, torch.device(device), repeats, only), as_json)
    if rows:
        say(console(), f"torch {torch.__version__}, {machine(device)}")
        console().print(moments_table(rows))


@bench.command("simulate")
def simulate(
    dataset: Annotated[str, typer.Option("--dataset", help="Data sets, with commas between.")] = BREAST_CANCER,
    workers: Annotated[int, typer.Option("--workers", "-n", help="Workers beside the numpy loop.")] = 20,
    growth: Annotated[
        str, typer.Option("--growth", help="Numbers of workers that ours alone is timed with; empty for none.")
    ] = "100,1000,10000",
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds beside numpy; a tenth as workers grow.")] = 3000,
    threads: Annotated[int, typer.Option("--threads", help="Threads of both sides.")] = 1,
    data: options.Libsvm = None,
    as_json: Json = False,
    page: options.Page = None,
    force: options.Force = False,
) -> None:
    """Time EF21 with top-1 on logistic regression beside a plain numpy loop, then with more and more workers.

    The numpy loop has dense matrices, as the authors' scripts. Both sides run in float64 from the same point with the
    same steps; the table says how far apart they end.

    **Example**

      thinwire bench simulate --dataset a9a,w8a --data ~/libsvm --page simulate.html
    """
    at_least_one(rounds=rounds, workers=workers, threads=threads)
    check_command(DATA, page=page)
    check_page(page, force=force)
    loaded = [load_dataset(name.strip(), data) for name in dataset.split(",")]
    more = integers(growth, "--growth") if growth else []
    rows = list(_shown(simulation.bench_simulation(loaded, workers, more, rounds, threads), as_json))
    if page is not None:
        simulation.growth_page(rows, page)
    if not as_json:
        say(console(), f"EF21, top-1, float64; {machine()} on both sides")
        console().print(simulation.simulation_table(rows))


@bench.command("crowd")
def crowd(
    dataset: Annotated[str, typer.Option("--dataset", help="A data set.")] = BREAST_CANCER,
    workers: Annotated[
        str, typer.Option("--workers", "-n", help="Numbers of workers, with commas between.")
    ] = "20,500",
    methods: Annotated[str, typer.Option("--methods", help="Methods, with semicolons between.")] = ";".join(
        simulation.CROWD_METHODS
    ),
    rounds: Rounds = 60,
    data: options.Libsvm = None,
    as_json: Json = False,
    plugin: options.Plugin = None,
) -> None:
    """Time a simulated round of logistic regression as workers grow, method by method, on one thread.

    The first row is the floor: all workers' gradients at one point.

    **Example**

      thinwire bench crowd --dataset w8a --data ~/libsvm --workers 20,1000,10000
    """
    counts = integers(workers, "--workers")
    at_least_one(rounds=rounds, workers=min(counts))
    check_command(DATA)
    names = [method.strip() for method in methods.split(";")]
    rows = _measured(simulation.bench_crowd(load_dataset(dataset, data), counts, names, rounds), as_json)
    if rows:
        say(console(), machine())
        console().print(simulation.crowd_table(rows))


@bench.command("lockfree")
def lockfree(
    dataset: Annotated[
        str | None, optional("--dataset", help="Time to a loss on this data set, in place of speed.")
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
    shapes: Annotated[str, typer.Option("--shapes", help="Shapes of those data.")] = "uniform,skewed,dense",
    threads: Annotated[str, typer.Option("--threads", help="Numbers of threads, with commas between.")] = "1,2",
    repeats: Repeats = 5,
    data: options.Libsvm = None,
    as_json: Json = False,
) -> None:
    """Steps a second of the lock-free engine beside lock-free SGD and scikit-learn's SGDClassifier, by turns.

    The data are made up: sparse rows of the shape of RCV1 with columns equally popular (uniform) or as popular as
    words are (skewed), and dense rows. With --dataset: the time to reach the loss that SGDClassifier ends at.

    **Example**

      thinwire bench lockfree --dataset reuters21578_tfidf --data ~/data
    """
    counts = integers(threads, "--threads")
    check_command(THREADS, DATA)
    from thinwire.bench import lockfree as measure  # it needs numba

    names = measure.check(shapes.split(","), samples, counts, repeats, units)
    if dataset is None:
        speeds = _measured(measure.bench_lockfree(names, samples, counts, repeats), as_json)
        if speeds:
            say(console(), f"{measure.about(samples)}; {machine()}")
            console().print(measure.speed_table(speeds))
        return
    loaded, kind = load_dataset(dataset, data), None if units == "equal" else units
    ways = _measured(measure.bench_reach(loaded, method.split(";"), counts, repeats, initial, kind), as_json)
    if ways:
        say(console(), f"{dataset}: logistic loss, λ = 1/n, float32, η = γ/(1 + γλt), γ = {initial:g}; medians of")
        say(console(), f"{repeats}, of runs that do not stop to look at the loss; sparse units: {units}; {machine()}")
        console().print(measure.reach_table(ways))


# ---------------------------------------------------------------------------------------------- what the commands share


def _measured(rows: Iterable[Row], as_json: bool) -> Sequence[Row]:
    """The rows for a table; none where they went out as JSON."""
    found = list(_shown(rows, as_json))
    return [] if as_json else found


def _shown(rows: Iterable[Row], as_json: bool) -> Iterator[Row]:
    """The rows, with a progress bar, or with a line of JSON for each."""
    out = console()
    for row in rows if as_json else track(rows, "measuring", console=out, transient=True, disable=not out.is_terminal):
        if as_json:
            say(out, json.dumps(row.plain()))
        yield row


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
        raise ConfigError("device cuda: torch finds no GPU on this machine; use --device cpu, or a machine with a GPU")

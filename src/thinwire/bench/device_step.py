"""A DDP step on one GPU in a world of one: its time, and what a method adds to it for the host, the GPU and the memory.

Nothing travels, so this is what compression costs and not what it saves. Every method has a model of its own, built
alike, and all take turns; what it adds is counted outside the timed rounds, where counting slows nothing down.
"""

from __future__ import annotations

import cProfile
import gc
import re
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from rich.table import Table
from torch.nn.parallel import DistributedDataParallel

from thinwire import parse
from thinwire.bench.ddp_step import (
    DENSE,
    HOOKS,
    PACKAGE,
    POWERSGD,
    Nonfinite,
    Step,
    alone_in_group,
    connect,
    is_ours,
    largest_parts,
)
from thinwire.bench.grid import Measured, grid, machine, show_ms, show_times
from thinwire.bench.models import Batch, TimedModel
from thinwire.bench.timing import gpu_clock, wall_clock
from thinwire.engines.ddp import Handle
from thinwire.errors import ConfigError
from thinwire.feedback import Feedback
from thinwire.training.formatting import NOTHING

Result = TypeVar("Result")
DENSE_SGD = "dense sgd"
"""Dense training with the optimizer of the rules that bring their own momentum; `dense` itself has AdamW."""
DEVICE_METHODS = (
    *(DENSE, *HOOKS, POWERSGD),
    *("plain(identity())", "memsgd(topk(0.01))", "memsgd(topk(0.001))", "ef21(topk(0.01))", "ef21sgdm(topk(0.01))"),
    *("memsgd(sign())", "memsgd(topk(0.01, values=exponent4))", "memsgd(topk(0.01, values=power4))"),
    *("memsgd(randk(0.01, shared=True))", "memadam(topk(0.01, values=exponent4))"),
)
WARM_UP = 12
"""Steps before anything is measured: kernels compile, buckets are cut anew, PowerSGD begins, the ledger has measured
norms once."""
TURN = 5
"""Steps of a turn."""
LOOKED_AT = 10
"""Steps that are counted or taken apart: the ledger measures norms in one of ten."""
GPU = torch.device("cuda", 0)
RATE = 1e-4
MIB = 2**20
LARGEST_KERNELS = 16
LONGEST_NAME = 100
"""Of a GPU's kernel; C++ writes some of a thousand letters."""


# ----------------------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True)
class Memory:
    """Bytes above what was allocated before the method's model was built."""

    peak: int
    """The most in two steps."""
    held: int
    """Between steps."""
    reserved: int
    """Held by torch's allocator between steps, with what CUDA graphs keep for themselves."""


@dataclass(frozen=True)
class Trace:
    """What a step calls of CUDA, and how long each kernel or copy is at work on the GPU: means of ten steps."""

    calls: dict[str, float]
    kernel_ms: dict[str, float]
    kernel_counts: dict[str, float]

    def total(self, *begins: str) -> float:
        """Calls whose names begin so: CUDA has several of most, and adds to them."""
        return sum(count for name, count in self.calls.items() if name.startswith(begins))

    def figures(self) -> dict[str, float]:
        """What the table shows."""
        return {
            "launches": self.total("cudaLaunch", "cuLaunch"),
            "graph_launches": self.total("cudaGraphLaunch", "cuGraphLaunch"),
            "synchronisations": sum(count for name, count in self.calls.items() if "Synchronize" in name),
            "copies": self.total("cudaMemcpy", "cuMemcpy"),
            "kernels": sum(self.kernel_counts.values()),
            "busy_ms": sum(self.kernel_ms.values()),
        }


@dataclass(frozen=True)
class Costs:
    """What a method's step costs, outside the timed rounds."""

    memory: Memory
    host_ms: float
    """Until the host has issued a step that began on an idle GPU; where it waits for the GPU, that too."""
    hook_ms: float | None
    """The share of our hook in it, without what it leaves to the end of the backward pass."""
    trace: Trace


@dataclass(frozen=True)
class DeviceRow(Measured):
    """One method: milliseconds of a step in each round and the ratios to dense in that round, or why there are none."""

    machine: str
    model: str
    batch: int
    parameters: int
    method: str
    optimizer: str
    step_ms: list[float]
    ratios: list[float]
    costs: Costs | None
    functions_ms: dict[str, float] | None = None
    """Of our hook on the host, where they were asked for; none where the hook is torch's."""
    absent: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.step_ms) if self.step_ms else None

    @property
    def ratio(self) -> float | None:
        """The median one."""
        return statistics.median(self.ratios) if self.ratios else None

    def figures(self) -> dict[str, float]:
        """What is compared with dense training, by name."""
        if self.costs is None:
            return {}
        return self.costs.trace.figures() | {"peak_mib": self.costs.memory.peak / MIB, "vectors": self.vectors}

    @property
    def vectors(self) -> float:
        """The peak in vectors of float32 parameters."""
        return 0.0 if self.costs is None else self.costs.memory.peak / (4 * self.parameters)

    def plain(self) -> dict[str, Any]:
        return super().plain() | {"median_ms": self.median, "ratio": self.ratio} | self.figures()


# -------------------------------------------------------------------------------------------------------------- methods


def default_methods() -> list[str]:
    """Those of the table that this version can read."""
    return [method for method in DEVICE_METHODS if _is_readable(method)]


def _is_readable(method: str) -> bool:
    try:
        check_methods([method])
    except ConfigError:
        return False
    return True


def check_methods(methods: Sequence[str]) -> None:
    """Refuse a method that is neither torch's nor one of our rules."""
    for method in methods:
        if method != DENSE_SGD and is_ours(method):
            parse(method)


def brings_momentum(method: str) -> bool:
    """Whether a method wants SGD: `attach` refuses momentum in the rule and in the optimizer."""
    rule = parse(method) if method != DENSE_SGD and is_ours(method) else None
    return method == DENSE_SGD or (isinstance(rule, Feedback) and rule.has_momentum)


def together_with_dense(methods: Sequence[str]) -> list[str]:
    """Every method once, after dense training with each optimizer that is used."""
    dense = [DENSE, *([DENSE_SGD] if any(map(brings_momentum, methods)) else [])]
    return list(dict.fromkeys((*dense, *methods)))


@dataclass(frozen=True)
class Entrant:
    """A method's model, ready to take steps."""

    optimizer: str
    step: Step
    handle: Handle | None
    """Of one of our rules."""


@dataclass(frozen=True)
class Way:
    """How our methods are attached. torch's own have DDP's default buckets, which overlap best with the backward pass;
    `gradient_as_bucket_view` saves all of them a copy of every gradient."""

    bucket_cap_mb: int = 100
    """DDP's buckets: each costs the host some 0.6 ms under ours, and is some 60 launches for the GPU."""
    nonfinite: Nonfinite = "raise"


DEFAULT = Way()


def entrant(work: TimedModel, method: str, batch: Batch, way: Way = DEFAULT) -> Entrant:
    """A model, its optimizer and its way to exchange gradients, as a user's loop has them."""
    device, ours = batch.inputs.device, method != DENSE_SGD and is_ours(method)
    cap = way.bucket_cap_mb if ours else None
    ddp = DistributedDataParallel(work.built(device), bucket_cap_mb=cap, gradient_as_bucket_view=True)
    optimizer = _optimizer(ddp, sgd=brings_momentum(method))
    handle = connect(ddp, DENSE if method == DENSE_SGD else method, optimizer, way.nonfinite)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = work.loss(ddp(batch.inputs), batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return Entrant(type(optimizer).__name__, step, handle)


def _optimizer(ddp: torch.nn.Module, *, sgd: bool) -> torch.optim.Optimizer:
    if sgd:
        return torch.optim.SGD(ddp.parameters(), lr=RATE, fused=True)
    return torch.optim.AdamW(ddp.parameters(), lr=RATE, fused=True)


# ------------------------------------------------------------------------------------------------------------ the bench


def bench_device_step(
    work: TimedModel,
    samples: int,
    methods: Sequence[str],
    rounds: int,
    profiled: str | None = None,
    way: Way = DEFAULT,
) -> list[DeviceRow]:
    """Every method on this machine's GPU; `profiled` names one whose host functions are taken apart too."""
    names = together_with_dense([*methods, *([] if profiled is None else [profiled])])
    with alone_in_group(GPU):
        return _Race(work, work.batch(samples, GPU), samples, names, way).run(rounds, profiled)


class _Race:
    """All methods, side by side in one process."""

    def __init__(self, work: TimedModel, batch: Batch, samples: int, names: Sequence[str], way: Way) -> None:
        self.work, self.batch, self.samples, self.names, self.way = work, batch, samples, names, way
        self.entrants: dict[str, Entrant] = {}
        self.memory: dict[str, Memory] = {}
        self.absent: dict[str, str] = {}

    def run(self, rounds: int, profiled: str | None) -> list[DeviceRow]:
        """Build all, time all, then count."""
        _several(entrant(self.work, DENSE, self.batch).step, 2)  # cuBLAS's and cuDNN's own memory is nobody's
        for name in self.names:
            self._prepare(name)
        if DENSE in self.absent:
            raise ConfigError(f"{self.work.name} does not run: {self.absent[DENSE]}. Try a smaller --batch")
        times = rounds_of({name: each.step for name, each in self.entrants.items()}, rounds)
        costs = self._costs()
        return [self._row(name, times, costs, profiled) for name in self.names]

    def _costs(self) -> dict[str, Costs]:
        """The host's times of all first: CUDA's tracer stays in the process once it was used, and may slow launches."""
        hosts = {name: host_times(made) for name, made in self.entrants.items()}
        traces = {name: traced(made.step) for name, made in self.entrants.items()}
        return {name: Costs(self.memory[name], *hosts[name], traces[name]) for name in self.entrants}

    def _prepare(self, name: str) -> None:
        """Build and warm up; a method that cannot is left out, and says why in its row."""
        before = _settled()
        try:
            made = entrant(self.work, name, self.batch, self.way)
            _several(made.step, WARM_UP)
            self.memory[name] = _memory(made.step, before)
        except Exception as error:  # whatever it is, it must not cost the others their figures
            place = traceback.extract_tb(error.__traceback__)[-1]
            self.absent[name] = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        else:
            self.entrants[name] = made

    def _row(
        self, name: str, times: Mapping[str, list[float]], costs: Mapping[str, Costs], profiled: str | None
    ) -> DeviceRow:
        """Of one that ran, or was to run."""
        parameters = sum(each.numel() for each in self.work.built(torch.device("meta")).parameters())
        about = (f"{machine(GPU.type)}, torch {torch.__version__}", self.work.name, self.samples, parameters, name)
        made = self.entrants.get(name)
        if made is None:
            return DeviceRow(*about, "", [], [], None, absent=self.absent[name])
        ratios = [mine / dense for mine, dense in zip(times[name], times[DENSE], strict=True)]
        functions = functions_of(made) if name == profiled else None
        return DeviceRow(*about, made.optimizer, times[name], ratios, costs[name], functions)


def rounds_of(steps: Mapping[str, Step], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a step in each round, by events on the GPU, after one round that is not measured.

    Each round begins with another method, or the one after a method that heats the chip would always pay for it.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for turn in range(rounds + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            taken = gpu_clock(partial(_several, steps[name], TURN)) / TURN
            times[name] += [taken] if turn else []
    return times


def _several(step: Step, times: int) -> None:
    for _ in range(times):
        step()


# --------------------------------------------------------------------------------------------------- memory and counts


def _settled() -> tuple[int, int]:
    """Bytes allocated and reserved on the GPU where nothing is under way."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def _memory(step: Step, before: tuple[int, int]) -> Memory:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    _several(step, 2)
    torch.cuda.synchronize()
    peak, after = torch.cuda.max_memory_allocated(), _settled()
    return Memory(peak - before[0], after[0] - before[0], after[1] - before[1])


def traced(step: Step) -> Trace:
    """CUDA's calls and the GPU's work, by torch's profiler; of the operations in between it keeps no account."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that one look at it is all there is
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            _several(step, LOOKED_AT)
            torch.cuda.synchronize()
        return _trace_of(profile.key_averages())


def _trace_of(averages: Sequence[Any]) -> Trace:
    """Of the profiler's lines, each with a name, a number of events and their time."""
    host = [line for line in averages if line.device_type.name == "CPU"]
    gpu = [line for line in averages if line.device_type.name == "CUDA" and not line.is_user_annotation]
    return Trace(
        {line.key: line.count / LOOKED_AT for line in host},
        {line.key: line.self_device_time_total / 1e3 / LOOKED_AT for line in gpu},
        {line.key: line.count / LOOKED_AT for line in gpu},
    )


# ------------------------------------------------------------------------------------------------------------- the host


Around = Callable[[Callable[[], Any]], Any]
"""Runs one call of our hook, and gives what it gives."""


@contextmanager
def _hooked(handle: Handle | None, around: Around) -> Iterator[None]:
    """Have every call of a handle's hook run within something; without a handle there is none."""
    if handle is None:
        yield
        return
    exchange = handle.exchange
    vars(handle)["exchange"] = lambda bucket: around(partial(exchange, bucket))  # DDP's hook asks the object by name
    try:
        yield
    finally:
        del vars(handle)["exchange"]


def host_times(made: Entrant) -> tuple[float, float | None]:
    """Milliseconds until the host has issued a step, and those that our hook has of them; medians of ten steps."""
    whole, shares = [], []
    for _ in range(LOOKED_AT):
        within: list[float] = []
        with _hooked(made.handle, partial(_timed, within)):
            torch.cuda.synchronize()
            whole.append(wall_clock(made.step))
        shares.append(sum(within))
    return statistics.median(whole), None if made.handle is None else statistics.median(shares)


def _timed(taken: list[float], call: Callable[[], Result]) -> Result:
    """Run it, and note the milliseconds."""
    start = time.perf_counter()
    try:
        return call()
    finally:
        taken.append(1e3 * (time.perf_counter() - start))


def functions_of(made: Entrant) -> dict[str, float]:
    """Milliseconds of a step by function within our hook, under a profiler, which makes Python slower.

    On a GPU autograd calls the hook in a thread of its own: the profiler is put on there, call by call.
    """
    if made.handle is None:
        return {}
    profile = cProfile.Profile()
    with _hooked(made.handle, profile.runcall):
        _several(made.step, LOOKED_AT)
    return largest_parts(profile, LOOKED_AT, function_name) if profile.getstats() else {}


def function_name(file: str, name: str) -> str:
    """`module: function` of ours; of another package its name alone."""
    inside = file.partition(f"{PACKAGE}/")[2]
    if inside:
        return f"{inside.removesuffix('.py')}: {name}"
    package = re.match(r".*(?:-packages|python[\d.]+)/(\w+)", file)  # the last such folder of the path
    return f"in {package[1]}" if package else "in Python itself"


# --------------------------------------------------------------------------------------------------------------- tables


def tables(rows: Sequence[DeviceRow]) -> list[Table]:
    """Time and costs of all, and where the step goes of the one that was taken apart."""
    dense = next(row for row in rows if row.method == DENSE)
    apart = [row for row in rows if row.functions_ms is not None]
    return [
        *(time_table(rows), cost_table(rows, dense)),
        *(kernel_table(row, dense) for row in apart),
        *(function_table(row) for row in apart if row.functions_ms),
    ]


def time_table(rows: Sequence[DeviceRow]) -> Table:
    """Time of a step, and what the host has of it."""
    head = ("method", "optimizer", "ms a step", "least - most", "x dense", "least - most", "host ms", "hook ms")
    return grid(head, (_time_cells(row) for row in rows), left=2)


def _time_cells(row: DeviceRow) -> Sequence[str]:
    if row.costs is None:
        return row.method, NOTHING, *(NOTHING for _ in range(6))
    return (
        *(row.method, row.optimizer, show_ms(row.median), _span(row.step_ms, show_ms)),
        *(f"{row.ratio:.3f}", _span(row.ratios, show_times), show_ms(row.costs.host_ms), show_ms(row.costs.hook_ms)),
    )


def _span(values: Sequence[float], show: Callable[[float], str]) -> str:
    return f"{show(min(values))} - {show(max(values))}"


SHOWN = {
    "launches": ".1f",
    "graph_launches": ".1f",
    "synchronisations": ".1f",
    "copies": ".1f",
    "kernels": ".1f",
    "busy_ms": ".3f",
    "peak_mib": ".0f",
    "vectors": ".2f",
}
"""Figures of the second table, and how each is written."""


def cost_table(rows: Sequence[DeviceRow], dense: DeviceRow) -> Table:
    """Dense training's own figures in the first row, and below them what each method adds."""
    head = ("a step of", *("launches", "graphs", "synchronised", "copies", "kernels", "GPU ms", "peak MiB", "vectors"))
    return grid(head, [[DENSE, *_figures(dense, {})], *_added(rows, dense)])


def _added(rows: Sequence[DeviceRow], dense: DeviceRow) -> Iterator[list[str]]:
    for row in rows:
        if row is not dense:
            yield [row.method, *(_figures(row, dense.figures()) if row.costs else [NOTHING] * len(SHOWN))]


def _figures(row: DeviceRow, base: Mapping[str, float]) -> list[str]:
    """As they are, or with a sign what is added to a base."""
    sign, figures = "+" if base else "", row.figures()
    return [f"{figures[name] - base.get(name, 0.0):{sign}{form}}" for name, form in SHOWN.items()]


def kernel_table(row: DeviceRow, dense: DeviceRow) -> Table:
    """What the GPU does in a method's step beyond a dense one: its largest kernels, and all others together."""
    beyond = beyond_dense(row, dense)
    head = (f"on the GPU in a step of {row.method}", "ms", "times")
    lines = [
        *((name[:LONGEST_NAME], *figures) for name, figures in beyond[:LARGEST_KERNELS]),
        ("all others", *_summed(beyond[LARGEST_KERNELS:])),
        ("beyond a dense step", *_summed(beyond)),
    ]
    return grid(head, ((name, f"{ms:+.4f}", f"{count:+.1f}") for name, ms, count in lines))


Beyond = Sequence[tuple[str, tuple[float, float]]]
"""Kernels, each with the milliseconds and the times that it runs more than in a dense step."""


def beyond_dense(row: DeviceRow, dense: DeviceRow) -> Beyond:
    """Largest first, whether more or less."""
    if row.costs is None or dense.costs is None:
        return []
    mine, theirs = row.costs.trace, dense.costs.trace
    ms, counts = _more(mine.kernel_ms, theirs.kernel_ms), _more(mine.kernel_counts, theirs.kernel_counts)
    return [(name, (ms[name], counts[name])) for name in sorted(ms, key=lambda name: -abs(ms[name]))]


def _more(mine: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, float]:
    return {name: mine.get(name, 0.0) - theirs.get(name, 0.0) for name in (*mine, *theirs)}


def _summed(beyond: Beyond) -> tuple[float, float]:
    return sum(ms for _, (ms, _) in beyond), sum(count for _, (_, count) in beyond)


def function_table(row: DeviceRow) -> Table:
    """What the host does within our hook; the part of a step, in milliseconds."""
    parts = row.functions_ms or {}
    whole = sum(parts.values())
    cells = ([name, f"{ms:.3f}", f"{ms / whole:.1%}"] for name, ms in (*parts.items(), ("our hook", whole)))
    return grid((f"on the host in a step of {row.method}", "ms", "of the hook"), cells)

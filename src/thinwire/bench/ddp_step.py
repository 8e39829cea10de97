"""A DDP step on ranks of this machine: its time, its bytes and its memory, beside dense training and torch's hooks."""

from __future__ import annotations

import cProfile
import multiprocessing
import pstats
import statistics
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from rich.table import Table
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from thinwire import Need, attach, parse
from thinwire.bench.grid import Measured, grid
from thinwire.bench.models import mlp
from thinwire.bench.timing import in_turns
from thinwire.engines.ddp import Handle
from thinwire.errors import ConfigError, OptimizerWarning
from thinwire.exchange import allreduce_bytes
from thinwire.feedback import Feedback
from thinwire.moments import watch
from thinwire.training.formatting import NOTHING
from thinwire.training.torch_hooks import ONE_BUCKET_MB, wrapped

Answer = TypeVar("Answer")
Nonfinite = Literal["raise", "late"]
Step = Callable[[], None]
LIMIT = timedelta(minutes=5)
"""How long ranks wait for each other: the first step compiles the kernels."""
DENSE = "dense"
POWERSGD = "powersgd"
HOOKS = {"bf16": bf16_compress_hook, "fp16": fp16_compress_hook}
"""torch's own, beside PowerSGD."""
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
WORKERS = 2
"""Ranks, where time and memory are measured."""


# ---------------------------------------------------------- ranks: processes on gloo over the loopback, one thread each


def on_ranks(workers: int, work: Callable[..., Answer], *arguments: Any) -> list[Answer]:
    """The answers of `work(rank, *arguments)` in so many fresh processes; a rank's error is raised here."""
    spawned = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(workers, spawned) as pool:
        answers = [pool.submit(_join, rank, workers, folder, work, arguments) for rank in range(workers)]
        return [answer.result() for answer in answers]


def _join(rank: int, workers: int, folder: str, work: Callable[..., Answer], arguments: tuple[Any, ...]) -> Answer:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=workers, timeout=LIMIT)
    try:
        answer = work(rank, *arguments)
        together()
        return answer
    finally:
        dist.destroy_process_group()


def together() -> None:
    """Return when every rank has come so far."""
    dist.barrier()


@contextmanager
def alone_in_group(device: torch.device) -> Iterator[None]:
    """A process group of this process alone, which moves what lies on the device."""
    bound = device if device.type == "cuda" else None  # or NCCL guesses which GPU is meant, and says so
    store, backend = dist.HashStore(), BACKENDS[device.type]  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=LIMIT, device_id=bound)
    try:
        yield
    finally:
        dist.destroy_process_group()


def connect(
    ddp: DistributedDataParallel, method: str, optimizer: torch.optim.Optimizer, nonfinite: Nonfinite = "raise"
) -> Handle | None:
    """Have a model's gradients travel by a method: DDP's own, one of torch's hooks, or ours, which has a handle.

    What we warn users of, such as a memory before an adaptive optimizer, is measured here all the same.
    """
    if method in HOOKS:
        ddp.register_comm_hook(None, HOOKS[method])
    elif method == POWERSGD:
        ddp.register_comm_hook(PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2), powerSGD_hook)
    elif is_ours(method):
        with warnings.catch_warnings(action="ignore", category=OptimizerWarning):
            return attach(ddp, parse(method), optimizer, nonfinite=nonfinite)
    return None


def is_ours(method: str) -> bool:
    """Whether a method is one of our rules, and neither plain DDP nor a hook of torch's."""
    return method not in (ALONE, DENSE, POWERSGD, *HOOKS)


# ----------------------------------------------------------------------------------------------------------------- time


ALONE = "alone"
OURS = ("memsgd(topk(0.01))", "ef21(topk(0.01))")
STEP_METHODS = (ALONE, DENSE, "fp16", POWERSGD, *OURS)
"""alone exchanges nothing: it is the floor."""
WARM_UP = 4
BATCH = 32
PACKAGE = Path(__file__).parents[1]
OTHERS, REST = "forward, backward, optimizer, DDP", "other functions of thinwire"
LARGEST = 12
"""Functions that the table of a step's parts names."""


@dataclass(frozen=True)
class StepRow(Measured):
    """One method's steps: milliseconds of each, and those of its parts where it is ours."""

    method: str
    step_ms: list[float]
    parts_ms: dict[str, float] | None

    @property
    def median(self) -> float:
        return statistics.median(self.step_ms)

    def plain(self) -> dict[str, Any]:
        return vars(self) | {"median_ms": self.median}


def bench_step(rounds: int, methods: Sequence[str] = STEP_METHODS, batch: int = BATCH) -> list[StepRow]:
    """Every method in the same two processes, step by step in turns, then ours taken apart; as rank 0 saw it.

    The loopback is no bottleneck: this shows what compression costs, not what it saves. The floor and dense training
    are always among them.
    """
    names = list(dict.fromkeys((ALONE, DENSE, *methods)))
    if "bf16" in names:
        raise ConfigError("torch's bf16 hook refuses gloo, which ranks on the CPU use: take fp16, or --device cuda")
    for method in filter(is_ours, names):
        parse(method)  # a mistake in it is told here, not by another process
    times, parts = on_ranks(WORKERS, _step_times, rounds, names, batch)[0]
    return [StepRow(method, times[method], parts.get(method)) for method in names]


def _step_times(
    rank: int, rounds: int, methods: Sequence[str], batch: int
) -> tuple[dict[str, list[float]], dict[str, dict[str, float]]]:
    steps = {method: _prepared(method, rank, batch) for method in methods}
    # no method may sit out a turn: the ranks would not agree on it
    times = in_turns(steps, together, rounds, warm_up=WARM_UP, enough=float("inf"))
    return times, {method: _taken_apart(steps[method], rounds) for method in filter(is_ours, methods)}


def _prepared(method: str, rank: int, batch: int) -> Step:
    """One step of training by that method."""
    torch.manual_seed(0)
    # torch's PowerSGD hook hangs on gloo with several buckets in flight: it gets one
    ddp = wrapped(mlp(), ONE_BUCKET_MB if method == POWERSGD else None)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    connect(ddp, method, optimizer)
    x = torch.randn(batch, 1000, generator=torch.Generator().manual_seed(rank))

    def step() -> None:
        with ddp.no_sync() if method == ALONE else nullcontext():
            ddp(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _taken_apart(step: Step, rounds: int) -> dict[str, float]:
    """Milliseconds of a step by function of the library."""
    profile = cProfile.Profile()
    for _ in range(rounds):
        together()
        profile.runcall(step)
    return largest_parts(profile, rounds)


def largest_parts(
    profile: cProfile.Profile, rounds: int, label: Callable[[str, str], str] | None = None
) -> dict[str, float]:
    """Milliseconds of a round by function as `label` names it, largest first; what is not ours is one part."""
    times = _own_times(pstats.Stats(profile).stats, label or _label)  # type: ignore[attr-defined]
    others = times.pop(OTHERS, 0.0)
    ours = sorted(times.items(), key=lambda part: -part[1])
    rest = sum(seconds for _, seconds in ours[LARGEST:])
    parts = ({OTHERS: others} if others else {}) | dict(ours[:LARGEST]) | {REST: rest}
    return {name: 1e3 * seconds / rounds for name, seconds in parts.items()}


def _own_times(stats: Mapping[Any, Any], label: Callable[[str, str], str]) -> dict[str, float]:
    """Seconds of each function without those it calls; the built-in ones, torch's operations too, count as its own."""
    own: dict[str, float] = defaultdict(float)
    for (file, _, name), (_, _, seconds, _, callers) in stats.items():
        if file == "~":
            for (calling_file, _, caller), (_, _, share, _) in callers.items():
                own[label(calling_file, caller)] += share
        else:
            own[label(file, name)] += seconds
    return own


def _label(file: str, name: str) -> str:
    """`module: function` of the library, or OTHERS."""
    path = Path(file)
    if PACKAGE not in path.parents or path.parent == Path(__file__).parent:
        return OTHERS
    return f"{path.relative_to(PACKAGE).with_suffix('').as_posix()}: {name}"


def step_table(rows: Sequence[StepRow]) -> Table:
    """Step times beside dense training; over "alone" is what the exchange costs."""
    median = {row.method: row.median for row in rows}
    alone, dense = median[ALONE], median[DENSE]
    return grid(
        ("method", "ms a step", "least - most", "exchange", "over dense", "x dense"),
        (
            (
                row.method,
                f"{row.median:.1f}",
                f"{min(row.step_ms):.1f} - {max(row.step_ms):.1f}",
                f"{row.median - alone:+.1f}",
                f"{row.median - dense:+.1f}",
                f"{row.median / dense:.2f}",
            )
            for row in rows
        ),
    )


def part_table(row: StepRow) -> Table:
    """Each part of one method's step, under a profiler, which makes Python a little slower."""
    parts = row.parts_ms or {}
    whole = sum(parts.values())
    cells = ([label, f"{ms:.2f}", f"{ms / whole:.1%}"] for label, ms in (*parts.items(), ("step", whole)))
    return grid((f"where a step of {row.method} goes", "ms", "of the step"), cells)


# ---------------------------------------------------------------------------------------------------------------- bytes


BYTES_METHODS = (
    DENSE,
    "memsgd(topk(0.01))",
    "memsgd(topk(0.01, values=exponent4))",
    "memsgd(randk(0.01, shared=True))",
    "memsgd(sign())",
)
BYTES_STEPS = 5
COUNTER = Path("/sys/class/net/lo/statistics/tx_bytes")


@dataclass(frozen=True)
class TrafficRow(Measured):
    """Bytes of all workers in BYTES_STEPS steps, by our account and by the interface."""

    method: str
    counted: float
    carried: float

    def plain(self) -> dict[str, Any]:
        return super().plain() | {"carried_over_counted": self.carried / self.counted}


def bench_traffic(workers: int, methods: Sequence[str] = BYTES_METHODS) -> list[TrafficRow]:
    """The ledger against the network card: bytes that thinwire counts, beside those that the loopback carried.

    The kernel's counter of the interface holds what all workers sent together, TCP and IP headers and acknowledgements
    included (a few per cent for large messages), and other traffic on the loopback too. torch's own all-reduce is
    measured in the same way, against 2 (n - 1) / n D.
    """
    return on_ranks(workers, _traffic, workers, methods)[0]


def _traffic(rank: int, workers: int, methods: Sequence[str]) -> list[TrafficRow]:
    return [_traffic_of(rank, workers, method) for method in methods]


def _traffic_of(rank: int, workers: int, method: str) -> TrafficRow:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 1000))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handle = None if method == DENSE else attach(ddp, parse(method), optimizer)
    x = torch.randn(4, 1000, generator=torch.Generator().manual_seed(rank))
    together()
    before = _carried()
    for _ in range(BYTES_STEPS):
        optimizer.zero_grad()
        ddp(x).square().mean().backward()
        optimizer.step()
    together()
    carried = _carried() - before
    numel = sum(p.numel() for p in model.parameters())
    mine = handle.ledger.summary()["sent_bytes"] if handle else BYTES_STEPS * allreduce_bytes(4 * numel, workers)
    return TrafficRow(method, workers * mine, carried)


def _carried() -> int:
    """Bytes that the loopback interface has sent since the machine started."""
    return int(COUNTER.read_text())


def traffic_table(rows: Sequence[TrafficRow]) -> Table:
    """One row a method."""
    return grid(
        ("method", "counted", "carried by the interface", "carried / counted"),
        (
            (r.method, f"{r.counted / 1e6:.3f} MB", f"{r.carried / 1e6:.3f} MB", f"{r.carried / r.counted:.3f}")
            for r in rows
        ),
    )


# --------------------------------------------------------------------------------------------------------------- memory


RULES = (
    "memsgd(topk(0.01))",
    "memsgd(sign())",
    "ef21(topk(0.01))",
    "ef21sgdm(topk(0.01))",
    "econtrol(topk(0.01))",
    "vgc(1.5)",
)
WIDTH, FEW = 1000, 4
"""Of each layer, and of a batch."""
MEMORY_STEPS, SETTLED = 8, 5
"""Steps of a run, and those before the peak is set back."""


@dataclass(frozen=True)
class MemoryRow(Measured):
    """One rule's bytes a parameter: of its state, and those resident; dense training's first, then above dense."""

    method: str
    parameters: int
    state: int | None
    steady: float
    peak: float


def bench_memory(parameters: int, rules: Sequence[str] = RULES) -> Iterator[MemoryRow]:
    """Dense training, then each rule above it.

    Each runs in processes of its own, with a model of a third of the parameters and with all of them: what grows from
    one to the other is what a parameter takes (imports and compiled code do not). `steady` is the resident memory
    between steps, `peak` the most that was resident in later steps (the kernel's high-water mark, set back before).
    """
    layers, states = max(3, parameters // WIDTH**2), [state_bytes(rule) for rule in rules]
    dense = _growth(None, layers)
    yield MemoryRow(DENSE, layers * WIDTH**2, None, *dense)
    for rule, state in zip(rules, states, strict=True):
        steady, peak = _growth(rule, layers)
        yield MemoryRow(rule, layers * WIDTH**2, state, steady - dense[0], peak - dense[1])


def state_bytes(rule: str) -> int:
    """Of the slots that hold a float32 or a byte for each number."""
    return sum(slot.bits // 8 for slot in _parsed(rule).slots if not (slot.single or slot.factored))


def _parsed(rule: str) -> Feedback:
    parsed = parse(rule)
    if not isinstance(parsed, Feedback):
        raise ConfigError(f"the memory of one rule is measured, got the route {rule}; name its rules one by one")
    return parsed


def _growth(rule: str | None, layers: int) -> tuple[float, float]:
    """Steady and peak bytes that one more parameter takes."""
    few, many = _resident(rule, layers // 3), _resident(rule, layers)
    added = (layers - layers // 3) * WIDTH**2
    return (many[0] - few[0]) / added, (many[1] - few[1]) / added


def _resident(rule: str | None, layers: int) -> tuple[int, int]:
    """Steady and peak bytes of the larger of two ranks."""
    steady, peak = zip(*on_ranks(WORKERS, _train, rule, layers), strict=True)
    return max(steady), max(peak)


def _train(rank: int, rule: str | None, layers: int) -> tuple[int, int]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if rule is not None:
        chosen = _parsed(rule)
        moments = watch(ddp, rule=chosen) if Need.MOMENTS in chosen.needs else None
        attach(ddp, chosen, optimizer, moments=moments)
    for step in range(MEMORY_STEPS):
        if step == SETTLED:
            Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back
        optimizer.zero_grad()
        ddp(torch.randn(FEW, WIDTH)).square().mean().backward()
        optimizer.step()
    return _status("VmRSS"), _status("VmHWM")


def _status(mark: str) -> int:
    """Bytes by the kernel's account: VmRSS now, VmHWM at most."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(mark))


def memory_table(rows: Sequence[MemoryRow]) -> Table:
    """One row a method."""
    return grid(
        ("bytes a parameter", "state", "steady", "peak"),
        (
            (
                row.method if row.method == DENSE else f"{row.method}, above dense",
                NOTHING if row.state is None else str(row.state),
                f"{row.steady:.1f}",
                f"{row.peak:.1f}",
            )
            for row in rows
        ),
    )

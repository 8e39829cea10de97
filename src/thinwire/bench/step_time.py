"""A DDP step: its time on two ranks of this machine beside torch's own ways, and where our part of it goes.

Every method has a model of its own in the same two processes, and they take turns step by step, so that whatever else
the machine does hits all of them alike. The loopback is no bottleneck: this shows what compression costs, not what it
saves. To take our step apart, functions of the library are wrapped from here with a stopwatch, which books each its own
time without that of what it calls.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.bench.grid import grid
from thinwire.bench.processes import on_ranks, together
from thinwire.bench.timing import in_turns

WORKERS = 2
ALONE, DENSE = "alone", "dense"
OURS = ("memsgd(topk(0.01))", "ef21(topk(0.01))")
METHODS = (ALONE, DENSE, "fp16", "powersgd", *OURS)
"""alone exchanges nothing: it is the floor."""
WARM_UP = 4
BATCH = 32
WHOLE = "step"

Step = Callable[[], None]


@dataclass(frozen=True)
class StepRow:
    """One method's steps: milliseconds of each, and those of its parts where it is ours."""

    method: str
    step_ms: list[float]
    parts_ms: dict[str, float] | None

    @property
    def median(self) -> float:
        return statistics.median(self.step_ms)

    def plain(self) -> dict[str, Any]:
        return vars(self) | {"median_ms": self.median}


def bench_step(rounds: int) -> list[StepRow]:
    """Every method in the two processes at once, then ours taken apart; as rank 0 saw it."""
    times, parts = on_ranks(WORKERS, _measured, rounds)[0]
    return [StepRow(method, times[method], parts.get(method)) for method in METHODS]


def _measured(rank: int, rounds: int) -> tuple[dict[str, list[float]], dict[str, dict[str, float]]]:
    steps = {method: _prepared(method, rank) for method in METHODS}
    # no method may sit out a turn: the ranks would not agree on it
    times = in_turns(steps, together, rounds, warm_up=WARM_UP, enough=float("inf"))
    return times, {method: _taken_apart(steps[method], rounds) for method in OURS}


def network() -> nn.Sequential:
    """10 million parameters in three layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1000, 2500), nn.ReLU(), nn.Linear(2500, 2500), nn.ReLU(), nn.Linear(2500, 500))


def _prepared(method: str, rank: int) -> Step:
    """One step of training by that method."""
    # torch's PowerSGD hook hangs on gloo with several buckets in flight: it gets one
    ddp = DistributedDataParallel(network(), bucket_cap_mb=1000 if method == "powersgd" else None)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    if method == "fp16":
        ddp.register_comm_hook(None, fp16_compress_hook)
    elif method == "powersgd":
        ddp.register_comm_hook(PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2), powerSGD_hook)
    elif method in OURS:
        thinwire.attach(ddp, thinwire.parse(method), optimizer)
    x = torch.randn(BATCH, 1000, generator=torch.Generator().manual_seed(rank))

    def step() -> None:
        with ddp.no_sync() if method == ALONE else nullcontext():
            ddp(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# -------------------------------------------------------------------------------------------------- where our time goes

PARTS: tuple[tuple[str, str, str], ...] = (
    ("thinwire.engines.ddp:Handle", "exchange", "the hook: python around all else"),
    ("thinwire.engines.ddp:Handle", "_end", "end of backward: python around all else"),
    ("thinwire.engines.ddp:Handle", "_finish", "finish the step"),
    ("thinwire.channel:Channel", "send", "send: python around the rest"),
    ("thinwire.channel:Channel", "receive", "receive: python around the rest"),
    ("thinwire.channel:Channel", "_measure", "norms for the ledger (each tenth step)"),
    ("thinwire.channel", "first_nonfinite", "finite check"),
    ("thinwire.step:Part", "take", "take the part out of the bucket"),
    ("thinwire.step:Part", "put", "put the part into the bucket"),
    ("thinwire.store:Store", "remember", "remember the state (undo copy)"),
    ("thinwire.feedback.memsgd:MemSGD", "send", "rule.send (kernel)"),
    ("thinwire.feedback.ef21:EF21", "send", "rule.send (kernel)"),
    ("thinwire.feedback.memsgd:MemSGD", "receive", "mean: zero and divide"),
    ("thinwire.feedback.ef21:EF21", "receive", "mean: copy into the bucket"),
    ("thinwire.payload.letter", "chunks_of", "pack"),
    ("thinwire.payload.letter", "join", "join the chunks"),
    ("thinwire.payload.letter", "checksum", "checksum"),
    ("thinwire.exchange:Group", "gather", "start the gather"),
    ("thinwire.exchange:Pending", "wait", "wait for the other rank and the wire"),
    ("thinwire.payload.letter", "unpack_payload", "unpack"),
    ("thinwire.payload.sparse:Sparse", "add_to", "add"),
)
"""Functions of the library, by owner and name, and what their own time is called."""


def owner_of(where: str) -> Any:
    """The module, or the class in it, that `module:Class` names."""
    module, _, kind = where.partition(":")
    owner = importlib.import_module(module)
    return getattr(owner, kind) if kind else owner


class Stopwatch:
    """Books the time of wrapped functions, each without that of the wrapped functions it calls."""

    def __init__(self) -> None:
        self.step: dict[str, float] = defaultdict(float)
        self._callers: list[str] = []
        self._since = 0.0

    def wrap(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._enter(label)
            try:
                return function(*args, **kwargs)
            finally:
                self._leave()

        return timed

    def _enter(self, label: str) -> None:
        now = time.perf_counter()
        caller = self._callers[-1] if self._callers else ""
        if caller:
            self.step[caller] += now - self._since
        side = caller.partition(":")[0]
        self._callers.append(f"{label} ({side})" if label in ("finite check", "checksum") else label)
        self._since = time.perf_counter()

    def _leave(self) -> None:
        now = time.perf_counter()
        self.step[self._callers.pop()] += now - self._since
        self._since = time.perf_counter()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Wrap the functions of PARTS for as long as the block runs."""
        originals = []
        for where, name, label in PARTS:
            owner = owner_of(where)
            originals.append((owner, name, getattr(owner, name), name in vars(owner)))
            setattr(owner, name, self.wrap(getattr(owner, name), label))
        try:
            yield
        finally:
            for owner, name, function, its_own in reversed(originals):
                setattr(owner, name, function) if its_own else delattr(owner, name)


def _taken_apart(step: Step, rounds: int) -> dict[str, float]:
    """Median milliseconds of each part of one method's step, WHOLE being all of it."""
    watch = Stopwatch()
    seen: list[dict[str, float]] = []
    with watch.installed():
        for _ in range(rounds + 1):
            watch.step = defaultdict(float)
            together()
            start = time.perf_counter()
            step()
            watch.step[WHOLE] = time.perf_counter() - start
            seen.append(watch.step)
    labels = {label for one in seen[1:] for label in one}
    return {label: 1e3 * statistics.median(one.get(label, 0.0) for one in seen[1:]) for label in labels}


# ----------------------------------------------------------------------------------------------------------- the tables


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
    """Each part of one method's step, largest first."""
    parts = dict(row.parts_ms or {})
    whole = parts.pop(WHOLE)
    parts["forward, backward, optimizer, DDP"] = whole - sum(parts.values())
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    cells = ([label, f"{ms:.2f}", f"{ms / whole:.1%}"] for label, ms in (*ordered, (WHOLE, whole)))
    return grid((f"where a step of {row.method} goes", "ms", "of the step"), cells)

"""The price of a DDP step: two ranks on the loopback, a network of 10 million parameters, ours beside torch's own ways.

    python benchmarks/bench_ddp.py [--rounds 15] [--json]

Every method has a model of its own in the same two processes (gloo, one thread each), and they take turns step by step,
so that whatever else the machine does hits all of them alike. "alone" exchanges nothing: it is the floor. The loopback
is no bottleneck, so this shows what compression costs, not what it saves. Afterwards our step is taken apart: functions
of the library are wrapped from here with a stopwatch, which books each its own time without that of what it calls.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import thinwire

WORKERS = 2
OURS = ("memsgd(topk(0.01))", "ef21(topk(0.01))")
METHODS = ("alone", "dense", "fp16", "powersgd", *OURS)
WARM_UP = 4
BATCH = 32

Step = Callable[[], None]


def network() -> nn.Sequential:
    """10 million parameters in three layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1000, 2500), nn.ReLU(), nn.Linear(2500, 2500), nn.ReLU(), nn.Linear(2500, 500))


def prepared(method: str, rank: int) -> Step:
    """A function that takes one step of training by that method."""
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
        with ddp.no_sync() if method == "alone" else nullcontext():
            ddp(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def race(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each method's steps, taken in turns; both ranks begin each together."""
    times: dict[str, list[float]] = {method: [] for method in steps}
    for turn in range(rounds + WARM_UP):
        for method, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            if turn >= WARM_UP:
                times[method].append(1e3 * (time.perf_counter() - start))
    return times


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


class Stopwatch:
    """Books the time of wrapped functions, each without that of the wrapped functions it calls."""

    def __init__(self) -> None:
        self.step: dict[str, float] = defaultdict(float)
        self._stack: list[tuple[str, float]] = []
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
        caller = self._stack[-1][0] if self._stack else ""
        if caller:
            self.step[caller] += now - self._since
        side = caller.partition(":")[0]
        self._stack.append((f"{label} ({side})" if label in ("finite check", "checksum") else label, now))
        self._since = time.perf_counter()

    def _leave(self) -> None:
        now = time.perf_counter()
        self.step[self._stack.pop()[0]] += now - self._since
        self._since = time.perf_counter()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Wrap the functions of PARTS for as long as the block runs."""
        originals = []
        for where, name, label in PARTS:
            module, _, kind = where.partition(":")
            owner: Any = importlib.import_module(module)
            owner = getattr(owner, kind) if kind else owner
            originals.append((owner, name, getattr(owner, name), name in vars(owner)))
            setattr(owner, name, self.wrap(getattr(owner, name), label))
        try:
            yield
        finally:
            for owner, name, function, its_own in reversed(originals):
                setattr(owner, name, function) if its_own else delattr(owner, name)


def take_apart(step: Step, rounds: int) -> dict[str, float]:
    """Median milliseconds of each part of one method's step, "step" being all of it."""
    watch = Stopwatch()
    seen: list[dict[str, float]] = []
    with watch.installed():
        for _ in range(rounds + 1):
            watch.step = defaultdict(float)
            dist.barrier()
            start = time.perf_counter()
            step()
            watch.step["step"] = time.perf_counter() - start
            seen.append(watch.step)
    labels = {label for one in seen[1:] for label in one}
    return {label: 1e3 * statistics.median(one.get(label, 0.0) for one in seen[1:]) for label in labels}


# ------------------------------------------------------------------------------------------------------------ processes


def work(rank: int, store: str, rounds: int, answers: multiprocessing.Queue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, WORKERS), rank=rank, world_size=WORKERS)
    steps = {method: prepared(method, rank) for method in METHODS}
    times = race(steps, rounds)
    parts = {method: take_apart(steps[method], rounds) for method in OURS}
    if rank == 0:
        answers.put((times, parts))
    dist.barrier()
    dist.destroy_process_group()


def measure(rounds: int) -> tuple[dict[str, list[float]], dict[str, dict[str, float]]]:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        args = (f"{folder}/store", rounds, answers)
        ranks = [context.Process(target=work, args=(rank, *args), daemon=True) for rank in range(WORKERS)]
        for rank in ranks:
            rank.start()
        result = answers.get(timeout=300)
        for rank in ranks:
            rank.join()
    return result


def step_table(times: dict[str, list[float]]) -> Table:
    """Step times beside dense training; over "alone" is what the exchange costs."""
    table = Table("method", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("ms a step", "least - most", "exchange", "over dense", "x dense"):
        table.add_column(name, justify="right", no_wrap=True)
    alone, dense = statistics.median(times["alone"]), statistics.median(times["dense"])
    for method, ms in times.items():
        median = statistics.median(ms)
        spread = f"{min(ms):.1f} - {max(ms):.1f}"
        cells = (f"{median:.1f}", spread, f"{median - alone:+.1f}", f"{median - dense:+.1f}", f"{median / dense:.2f}")
        table.add_row(method, *cells)
    return table


def part_table(method: str, parts: dict[str, float]) -> Table:
    """Each part of one method's step, largest first."""
    table = Table(f"where a step of {method} goes", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("ms", justify="right")
    table.add_column("of the step", justify="right")
    whole = parts["step"]
    ours = {label: ms for label, ms in parts.items() if label != "step"}
    named = {"forward, backward, optimizer, DDP": whole - sum(ours.values()), **ours}
    for label, ms in sorted(named.items(), key=lambda item: -item[1]):
        table.add_row(label, f"{ms:.2f}", f"{ms / whole:.1%}")
    table.add_row("step", f"{whole:.2f}", "100.0%", style="bold")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the tables")
    options = parser.parse_args()
    times, parts = measure(options.rounds)
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    if options.json:
        print(json.dumps({"step_ms": times, "parts_ms": parts}))
        return
    console.print(f"{WORKERS} ranks on gloo over the loopback, 1 thread each, 10.0 M parameters, batch {BATCH}")
    console.print(f"medians of {options.rounds} steps taken in turns")
    console.print(step_table(times), *(part_table(method, parts[method]) for method in OURS))


if __name__ == "__main__":
    main()

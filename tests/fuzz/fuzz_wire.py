"""A fuzz run over the wire format: damaged messages by the million, each refused or read without a doubt.

    python -m tests.fuzz.fuzz_wire --messages 1000000 [--seed 0] [--processes 2]

Real messages of every format are damaged (`mutations`), read (`Channel.receive` with the checksum made to fit again or
left wrong, and `unpack_payload`), and held to what must be so (`oracle`). Ends with status 1 if anything was found, and
prints the messages that show it. With NUMBA_BOUNDSCHECK=1 in the environment, and NUMBA_CACHE_DIR an empty folder, the
compiled kernels check every index. `guided` searches by coverage instead.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from multiprocessing.queues import Queue

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from tests.fuzz.campaign import ROUTES, Tally, tallies

BATCH = 2000
SHOWN = 20


def work(seed: int, count: int, answers: Queue[Tally]) -> None:
    """One process's share."""
    torch.set_num_threads(1)
    for tally in tallies(seed, count, BATCH):
        answers.put(tally)


def campaign(messages: int, seed: int, processes: int, console: Console) -> Tally:
    """All shares together, with a bar that moves."""
    context = multiprocessing.get_context("spawn")
    answers: Queue[Tally] = context.Queue()
    shares = [messages * (i + 1) // processes - messages * i // processes for i in range(processes)]
    workers = [
        context.Process(target=work, args=(1000 * seed + i, share, answers), daemon=True)
        for i, share in enumerate(shares)
    ]
    for worker in workers:
        worker.start()
    total = Tally()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("damaged messages", total=messages)
        while total.total < messages:
            total += answers.get(timeout=300)
            progress.update(bar, completed=total.total, description=f"{len(total.findings)} findings")
    for worker in workers:
        worker.join()
    return total


def show(tally: Tally, console: Console) -> None:
    """How many messages of which format, what became of them, and what was found."""
    console.print(_fared(tally, "unpack_payload", ROUTES[:1]))
    console.print(_fared(tally, "Channel.receive", ROUTES[1:]))
    reasons = Table("refused because", box=SIMPLE_HEAD, pad_edge=False)
    reasons.add_column("messages", justify="right")
    for reason, count in tally.refused.most_common():
        reasons.add_row(reason, f"{count:,}")
    console.print(reasons)
    console.print(
        f"{tally.total:,} damaged messages: {sum(tally.refused.values()):,} refused, "
        f"{sum(tally.accepted.values()):,} accepted, {len(tally.findings):,} findings"
    )
    show_findings(tally, console)


def _fared(tally: Tally, first: str, routes: tuple[str, ...]) -> Table:
    """One row a format or rule; for each way in how many messages there were and how many were accepted."""
    table = Table(first, box=SIMPLE_HEAD, pad_edge=False)
    for route in routes:
        table.add_column(route if len(routes) > 1 else "messages", justify="right", no_wrap=True)
        table.add_column("accepted", justify="right", no_wrap=True)
    for label in sorted({label for route, label in tally.messages if route in routes}):
        cells = [count[route, label] for route in routes for count in (tally.messages, tally.accepted)]
        table.add_row(label, *(f"{cell:,}" for cell in cells))
    return table


def show_findings(tally: Tally, console: Console) -> None:
    kinds = Counter(" | ".join(finding.split(" | ")[:3]) for finding in tally.findings)
    for kind, count in kinds.most_common():
        console.print(f"{count:,} x {kind}", markup=False, style="red")
    for finding in tally.findings[:SHOWN]:
        console.print(finding, markup=False, soft_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    start = time.perf_counter()
    tally = campaign(options.messages, options.seed, options.processes, console)
    show(tally, console)
    seconds = time.perf_counter() - start
    console.print(f"{seconds:.0f} s, {tally.total / seconds:,.0f} messages a second, seed {options.seed}")
    sys.exit(1 if tally.findings else 0)


if __name__ == "__main__":
    main()

"""The ledger against the network card: bytes that thinwire counts, beside those that the loopback interface carried.

    python benchmarks/bench_bytes.py [--workers 4]

Each worker is a process on gloo over TCP; the kernel's counter of the interface is read before and after the steps,
and holds what all workers sent together, TCP and IP headers and acknowledgements included (a few per cent for large
messages). Other traffic on the loopback would be counted too: run it on a quiet machine. torch's own all-reduce is
measured in the same way, against 2 (n - 1) / n D.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.exchange import allreduce_bytes

METHODS = (
    "dense",
    "memsgd(topk(0.01))",
    "memsgd(topk(0.01, values=exponent4))",
    "memsgd(randk(0.01, shared=True))",
    "memsgd(sign())",
)
STEPS = 5


def interface_bytes() -> int:
    """Bytes that the loopback interface has sent since the machine started."""
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


def measure(rank: int, workers: int, method: str) -> tuple[float, float]:
    """(counted, carried): bytes of all workers in STEPS steps, by our account and by the interface."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 1000))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handle = None if method == "dense" else thinwire.attach(ddp, thinwire.parse(method), optimizer)
    x = torch.randn(4, 1000, generator=torch.Generator().manual_seed(rank))
    dist.barrier()
    before = interface_bytes()
    for _ in range(STEPS):
        optimizer.zero_grad()
        ddp(x).square().mean().backward()
        optimizer.step()
    dist.barrier()
    carried = interface_bytes() - before
    numel = sum(p.numel() for p in model.parameters())
    mine = handle.ledger.summary()["sent_bytes"] if handle else STEPS * allreduce_bytes(4 * numel, workers)
    return workers * mine, carried


def work(rank: int, workers: int, store: str, answers: multiprocessing.Queue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, workers), rank=rank, world_size=workers)
    for method in METHODS:
        result = measure(rank, workers, method)
        if rank == 0:
            answers.put(result)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    workers = parser.parse_args().workers
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=work, args=(r, workers, f"{folder}/store", answers)) for r in range(workers)]
        for rank in ranks:
            rank.start()
        table = Table("method", "counted", "carried by the interface", "carried / counted")
        for method in METHODS:
            counted, carried = answers.get(timeout=120)
            table.add_row(method, f"{counted / 1e6:.3f} MB", f"{carried / 1e6:.3f} MB", f"{carried / counted:.3f}")
        for rank in ranks:
            rank.join()
    Console().print(f"{workers} workers, 2 M parameters, {STEPS} steps, all workers together", table)


if __name__ == "__main__":
    main()

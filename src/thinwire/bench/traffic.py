"""The ledger against the network card: bytes that thinwire counts, beside those that the loopback carried.

The kernel's counter of the interface holds what all workers sent together, TCP and IP headers and acknowledgements
included (a few per cent for large messages). Other traffic on the loopback would be counted too: run it on a quiet
machine. torch's own all-reduce is measured in the same way, against 2 (n - 1) / n D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.bench.grid import grid
from thinwire.bench.processes import on_ranks, together
from thinwire.exchange import allreduce_bytes

DENSE = "dense"
METHODS = (
    DENSE,
    "memsgd(topk(0.01))",
    "memsgd(topk(0.01, values=exponent4))",
    "memsgd(randk(0.01, shared=True))",
    "memsgd(sign())",
)
STEPS = 5
COUNTER = Path("/sys/class/net/lo/statistics/tx_bytes")


@dataclass(frozen=True)
class TrafficRow:
    """Bytes of all workers in STEPS steps, by our account and by the interface."""

    method: str
    counted: float
    carried: float

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"carried_over_counted": self.carried / self.counted}


def bench_traffic(workers: int, methods: Sequence[str] = METHODS) -> list[TrafficRow]:
    """Every method in turn, as rank 0 saw it."""
    return on_ranks(workers, _measured, workers, methods)[0]


def _measured(rank: int, workers: int, methods: Sequence[str]) -> list[TrafficRow]:
    return [_row(rank, workers, method) for method in methods]


def _row(rank: int, workers: int, method: str) -> TrafficRow:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 1000))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handle = None if method == DENSE else thinwire.attach(ddp, thinwire.parse(method), optimizer)
    x = torch.randn(4, 1000, generator=torch.Generator().manual_seed(rank))
    together()
    before = _carried()
    for _ in range(STEPS):
        optimizer.zero_grad()
        ddp(x).square().mean().backward()
        optimizer.step()
    together()
    carried = _carried() - before
    numel = sum(p.numel() for p in model.parameters())
    mine = handle.ledger.summary()["sent_bytes"] if handle else STEPS * allreduce_bytes(4 * numel, workers)
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

"""Memory of a DDP step above dense training, in bytes a parameter, on two ranks of this machine.

Each rule runs in processes of its own, with a model of a third of the parameters and with all of them: what grows from
one to the other is what a parameter takes (imports and compiled code do not). `steady` is the resident memory between
steps, `peak` the most that was resident in later steps (the kernel's high-water mark, set back after the first steps).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire import Need, attach, parse
from thinwire.bench.grid import grid
from thinwire.bench.processes import on_ranks
from thinwire.errors import ConfigError
from thinwire.feedback import Feedback
from thinwire.moments import watch
from thinwire.training.formatting import NOTHING

DENSE = "dense"
RULES = (
    "memsgd(topk(0.01))",
    "memsgd(sign())",
    "ef21(topk(0.01))",
    "ef21sgdm(topk(0.01))",
    "econtrol(topk(0.01))",
    "vgc(1.5)",
)
WIDTH, BATCH, WORKERS = 1000, 4, 2
STEPS, SETTLED = 8, 5
"""Steps of a run, and those before the peak is set back."""


@dataclass(frozen=True)
class MemoryRow:
    """One rule's bytes a parameter: of its state, and those resident; dense training's first, then above dense."""

    method: str
    parameters: int
    state: int | None
    steady: float
    peak: float

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def bench_memory(parameters: int, rules: Sequence[str] = RULES) -> Iterator[MemoryRow]:
    """Dense training, then each rule above it."""
    layers, states = max(3, parameters // WIDTH**2), [state_bytes(rule) for rule in rules]
    dense = _growth(None, layers)
    yield MemoryRow(DENSE, layers * WIDTH**2, None, *dense)
    for rule, state in zip(rules, states, strict=True):
        steady, peak = _growth(rule, layers)
        yield MemoryRow(rule, layers * WIDTH**2, state, steady - dense[0], peak - dense[1])


def state_bytes(rule: str) -> int:
    """Of the slots that hold a float32 for each number."""
    return 4 * sum(not slot.single for slot in _parsed(rule).slots)


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
    for step in range(STEPS):
        if step == SETTLED:
            Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back
        optimizer.zero_grad()
        ddp(torch.randn(BATCH, WIDTH)).square().mean().backward()
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

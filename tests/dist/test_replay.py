"""Replays: a step that was recorded gives, bit for bit, what it gives launch by launch."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.dist.training import batch, network
from tests.dist.world import run_world
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire import Simulation
from thinwire.errors import NonFiniteGradient
from thinwire.replay import SWITCH

pytestmark = [pytest.mark.gpu, pytest.mark.dist]
RULES = (
    "memsgd(topk(0.05))",
    "memsgd(topk(0.05, values=bfloat16), decay=0.95)",
    "memsgd(topk(0.05, values=power4))",
    "memsgd(randk(0.05, shared=True))",
    "memsgd(randk(0.05))",
    "memsgd(sign())",
    "ef21(topk(0.05))",
    "ef21sgdm(topk(0.05))",
    "dgc(topk(0.05))",
    "memadam(topk(0.05, values=power4), refresh=3)",
    "memsgd(topk(warmup(0.25, 0.05, 4)))",
    "plain(identity())",
)
SHAPES = {"a": (300, 70), "b": (70,), "c": (1000, 513), "d": (1,), "e": (64, 3, 7, 7)}
STEPS = 9


def simulated(rule: str, workers: int, *, moving: bool) -> tuple[Tensor, int]:
    """All results of some steps, and how many recordings there are of them."""
    parameters = {name: torch.zeros(shape, device="cuda") for name, shape in SHAPES.items()}
    simulation = Simulation(parameters, rule, workers)
    generator = torch.Generator("cuda").manual_seed(0)
    results = []
    for step in range(STEPS):
        rate = 0.1 * (1 - 0.05 * step) if moving else 0.1
        gradients = [
            {name: torch.randn(shape, device="cuda", generator=generator) for name, shape in SHAPES.items()}
            for _ in range(workers)
        ]
        result = simulation.exchange(gradients, step_sizes=dict.fromkeys(SHAPES, rate))
        results.append(torch.cat([result[name].reshape(-1) for name in SHAPES]))
    tapes = [tape for channel in simulation.channels for tape in channel._replays._tapes.values()]
    return torch.stack(results), sum(tape is not None for tape in tapes)


@pytest.mark.parametrize("moving", [False, True], ids=["rate stands", "rate moves"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("rule", RULES)
def test_a_recorded_step_is_the_step(rule: str, workers: int, moving: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found, tapes = simulated(rule, workers, moving=moving)
    monkeypatch.setenv(SWITCH, "0")
    expected, none = simulated(rule, workers, moving=moving)
    assert (none, torch.equal(found, expected)) == (0, True)
    assert tapes >= workers + 1  # each worker's letter, and what comes of all


def attached(rule: str, group: Any) -> tuple[DistributedDataParallel, torch.optim.Optimizer, thinwire.Handle]:
    model = network().cuda()
    ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    return ddp, optimizer, thinwire.attach(ddp, rule, optimizer)


def step_(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int, factor: float = 1.0) -> None:
    x, y = (part.cuda() for part in batch(step, 0))
    optimizer.zero_grad()
    (factor * nn.functional.cross_entropy(ddp(x), y)).backward()
    optimizer.step()


def values_of(state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in state["slots"].items()}


def refused_and_resumed(rank: int, size: int) -> list[tuple[bool, ...]]:
    """A step of NaN in the middle of recorded ones; then a state that is loaded elsewhere, and both go on."""
    group = dist.new_group(backend="nccl")
    found = []
    for rule in ("memsgd(topk(0.05))", "ef21(topk(0.05))", "memadam(topk(0.05, values=power4))"):
        ddp, optimizer, handle = attached(rule, group)
        for step in range(6):
            step_(ddp, optimizer, step)
        assert any(tape is not None for tape in handle.channel._replays._tapes.values())
        before = values_of(handle.state_dict())
        with pytest.raises(NonFiniteGradient):
            step_(ddp, optimizer, 6, float("nan"))
        spoilt = all(bool(p.grad.isnan().all()) for p in ddp.parameters() if p.grad is not None)
        after = handle.state_dict()
        kept = all(torch.equal(before[key], value) for key, value in after["slots"].items())
        other, its_optimizer, its_handle = attached(rule, group)
        other.load_state_dict(ddp.state_dict())
        its_handle.load_state_dict(after)
        for step in range(6, 12):
            step_(ddp, optimizer, step)
            step_(other, its_optimizer, step)
        equal = all(torch.equal(a, b) for a, b in zip(ddp.parameters(), other.parameters(), strict=True))
        found.append((spoilt, kept, equal))
    return found


def test_a_refused_step_leaves_no_trace_and_a_state_is_resumed(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    assert run_world(1, refused_and_resumed, folder=tmp_path, context=spawn) == [[(True, True, True)] * 3]

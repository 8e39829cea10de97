"""Real processes behind emulated links: the same numbers bit for bit, no sooner than the link allows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.dist.training import batch, differences
from tests.dist.world import run_world
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.exchange import Group, Link, allreduce_bytes, emulated
from thinwire.lab.block import Block
from thinwire.lab.laboratory import measure
from thinwire.lab.setting import Cable, LabSetting, cables
from thinwire.training import train as launch
from thinwire.training.config import TORCH_METHODS, RunConfig
from thinwire.training.torch_hooks import powersgd_state, register

pytestmark = pytest.mark.dist

RULES = ["memsgd(topk(0.1))", "memsgd(randk(0.9, shared=True))", "memadam(topk(0.1, values=exponent4))"]
METHODS = [*TORCH_METHODS, *RULES]
RATE, STEPS = 2e6, 4


def network() -> nn.Module:
    """Several buckets, one of which is added up on its way."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 700), nn.Tanh(), nn.Linear(700, 4), nn.Linear(4, 4))


def train(method: str, rank: int, link: Link | None) -> tuple[dict[str, Tensor], float]:
    """The parameters after some steps, and the seconds that the steps took."""
    model = network()
    powersgd = powersgd_state(1, 0) if method == "powersgd" else None
    ddp = DistributedDataParallel(model, bucket_cap_mb=4096 if powersgd else 0.02)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    if method in TORCH_METHODS:
        register(ddp, method, link, powersgd)
    else:
        thinwire.attach(ddp, method, optimizer, exchange=emulated(Group(), link))
    dist.barrier()
    start = time.perf_counter()
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = batch(step, rank)
        nn.functional.cross_entropy(ddp(inputs), targets).backward()
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}, time.perf_counter() - start


def both(rank: int, size: int) -> list[tuple[Any, Any]]:
    link = Link(RATE)
    return [(train(method, rank, None), train(method, rank, link)) for method in METHODS]


@pytest.mark.parametrize("size", [2, 3])
def test_parameters_are_those_of_the_run_without_a_link_bit_for_bit(size: int, tmp_path: Path) -> None:
    numel = sum(parameter.numel() for parameter in network().parameters())
    for results in run_world(size, both, folder=tmp_path):
        for method, ((without, _), (behind, seconds)) in zip(METHODS, results, strict=True):
            assert not list(differences(without, behind)), method
            if method in ("dense", "fp16"):
                nbytes = numel * TORCH_METHODS[method].dtype.itemsize
                assert seconds >= STEPS * 8 * (allreduce_bytes(nbytes, size) - 2 * size) / RATE, method


@pytest.mark.usefixtures("forked_workers")
def test_a_launch_trains_behind_links_and_its_record_says_so(tmp_path: Path) -> None:
    methods = [("dense", 0), ("powersgd", 0), (RULES[0], 0), (RULES[0], 2)]
    settings: dict[str, Any] = {"engine": "ddp", "workers": 2, "steps": 3, "evaluations": 1}
    configs = [
        RunConfig.of("digits", method, every=every, rate=rate, **settings)
        for method, every in methods
        for rate in (None, 5e6)
    ]
    runs = launch(configs, tmp_path / "r.jsonl")
    assert [run.config.rate for run in runs] == [None, 5e6] * len(methods)
    for without, behind in zip(runs[::2], runs[1::2], strict=True):
        assert without.end["values"] == behind.end["values"], behind.config.method
        assert without.end["sent_bytes"] == behind.end["sent_bytes"]
    dense = runs[1].end
    assert dense["seconds"] >= 8 * 0.99 * dense["sent_bytes"] / 5e6


def test_a_laboratory_without_root_takes_its_turns() -> None:
    methods, blocks = ("alone", "dense", "fp16", "powersgd1", RULES[0]), list[Block]()
    asked = LabSetting(
        hosts=2, cables=cables("5mbit,none"), task="digits", methods=methods, steps=2, rounds=1, batch=4, replay=1.0,
        emulated=True,
    )  # fmt: skip
    measure(asked, blocks.append, lambda _: None)
    assert [(block.cable, block.emulated) for block in blocks] == [(Cable(5e6, 5e6), True), (Cable(None, None), True)]
    dense = blocks[0].trial("dense")
    assert dense.carried is None
    assert dense.median >= 8e3 * dense.sent / 5e6

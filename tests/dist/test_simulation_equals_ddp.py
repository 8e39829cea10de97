"""A simulation of n workers and n real processes give the same parameters, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.dist.training import Parameters, Run, batch, differences, train_ddp, train_simulated
from tests.dist.world import run_world
from tests.methods import DDP_CRITERIA, DDP_FAMILY, DDP_PAIRS
from torch import Tensor, nn

pytestmark = pytest.mark.dist

MATRIX = {**DDP_PAIRS, "criteria": DDP_CRITERIA}


class Branching(nn.Module):
    """The middle layer is used only on even steps' batches, so that on the others no worker has a gradient for it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.middle, self.last = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if any(torch.equal(x, batch(step, worker)[0]) for step in range(0, 20, 2) for worker in range(2)):
            h = torch.tanh(self.middle(h))
        return self.last(h)


class OneSided(nn.Module):
    """The middle layer is used by worker 0 only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.middle, self.last = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        if any(torch.equal(x, batch(step, 0)[0]) for step in range(20)):
            h = torch.tanh(self.middle(h))
        return self.last(h)


class NeverUsed(nn.Module):
    """One layer has no part in the forward pass at all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.idle, self.last = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


class Tied(nn.Module):
    """Two layers share one weight; a third is frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.one, self.two, self.frozen, self.last = (nn.Linear(12, 12) for _ in range(4))
        self.two.weight = self.one.weight
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.frozen(torch.tanh(self.two(torch.tanh(self.one(x))))))[:, :4]


CIRCUMSTANCES = {
    "one large bucket": Run("memsgd(topk(0.1))", ddp={"bucket_cap_mb": 25}),
    "static graph": Run("memsgd(topk(0.1))", ddp={"static_graph": True, "bucket_cap_mb": 0.001}),
    "bucket views": Run("ef21(topk(0.1))", ddp={"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}),
    "looking for unused": Run("ef21(topk(0.1))", ddp={"find_unused_parameters": True, "bucket_cap_mb": 0.001}),
    "unused at times": Run("memsgd(topk(0.1))", network=Branching, ddp={"find_unused_parameters": True}),
    "unused at times, ef21": Run("ef21(topk(0.1))", network=Branching, ddp={"find_unused_parameters": True}),
    "unused by one": Run("memsgd(topk(0.1))", network=OneSided, ddp={"find_unused_parameters": True}),
    "never used, static": Run("memsgd(topk(0.1))", network=NeverUsed, ddp={"static_graph": True}),
    "never used": Run("ef21sgdm(topk(0.1))", network=NeverUsed, ddp={"find_unused_parameters": True}),
    "tied and frozen": Run("memsgd(topk(0.1))", network=Tied),
    "two groups": Run("memsgd(topk(0.1))", groups=True),
    "muon": Run("ef21sgdm(topk(0.1))", muon=True),
    "muon, accumulated": Run("ef21(topk(0.1))", muon=True, accumulate=2, ddp={"bucket_cap_mb": 25}),
    "clipped": Run("memsgd(topk(0.1))", clip=0.1),
    "bfloat16": Run("memsgd(topk(0.1))", dtype=torch.bfloat16),
    "float16": Run("ef21(topk(0.1))", dtype=torch.float16),
    "float64": Run("econtrol(topk(0.1))", dtype=torch.float64),
    "warm-up": Run("memsgd(topk(warmup(0.5, 0.02, 10)))"),
    "route": Run("route({'0.*': ef21(topk(0.2)), '2.*': identity(), '*': memsgd(strom(0.02))}, min_numel=20)"),
    "threshold": Run("memsgd(threshold(0.02))"),
    "four bits": Run("memsgd(topk(0.2, values=exponent4))"),
    "half floats": Run("ef21(topk(0.2, values=float16))"),
    "less than one": Run("memsgd(randk(count=0.3))"),
    "natural": Run("plain(natural())"),
    "vgc, one large bucket": Run("vgc()", ddp={"bucket_cap_mb": 25}, steps=100),
    "vgc, static graph": Run("vgc(1.0)", ddp={"static_graph": True, "bucket_cap_mb": 0.001}),
    "vgc, bucket views": Run(
        "hybrid(0.01)", accumulate=2, ddp={"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}
    ),
    "vgc, unused at times": Run("vgc(1.0)", network=Branching, ddp={"find_unused_parameters": True}),
    "vgc, unused by one": Run("vgc(1.0)", network=OneSided, ddp={"find_unused_parameters": True}),
    "vgc, never used, static": Run("hybrid(0.01)", network=NeverUsed, ddp={"static_graph": True}),
    "vgc, tied and frozen": Run("vgc(1.0)", network=Tied),
    "vgc, bfloat16": Run("vgc(1.0)", dtype=torch.bfloat16),
    "vgc, float64": Run("vgc(1.0, drop_small=True)", dtype=torch.float64),
    "vgc on a route": Run("route({'0.*': vgc(1.0), '2.*': ef21(topk(0.2)), '*': hybrid(0.01)}, min_numel=20)"),
    "per bucket": Run("memsgd(topk(0.1, per=bucket))", ddp={"bucket_cap_mb": 25}, steps=1),
}


def train_all(rank: int, size: int, runs: Sequence[Run]) -> list[Parameters]:
    return [train_ddp(rank, run)[0] for run in runs]


def compared(runs: Sequence[Run], size: int, folder: Path) -> list[list[str]]:
    """What differs in each run, by `size` processes and simulated."""
    expected = [train_simulated(run, size) for run in runs]  # first: what it compiles, the ranks find on disk
    by_rank = run_world(size, train_all, runs, folder=folder)
    return [
        [
            f"{run.rule} accumulate={run.accumulate} rank {rank}: {name}"
            for rank in range(size)
            for name in differences(expected[place], by_rank[rank][place])
        ]
        for place, run in enumerate(runs)
    ]


def compare(runs: Sequence[Run], size: int, folder: Path) -> None:
    assert not [wrong for wrong in compared(runs, size, folder) if wrong]


def share(rule: str, size: int) -> list[Run]:
    """Every other pair of a rule, the rest in the world of another size; in each world one of them accumulates."""
    number, several = [*MATRIX].index(rule), 3 if rule == "criteria" else 2
    return [
        Run(name, accumulate=(1, several)[(place // 2 + number) % 2])
        for place, name in enumerate(MATRIX[rule])
        if (place + number) % 2 == size % 2
    ]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("rule", MATRIX)
def test_every_rule_and_compressor(rule: str, size: int, tmp_path: Path) -> None:
    """Over 20 steps, across DDP's rebuilding of its buckets."""
    compare(share(rule, size), size, tmp_path)


def test_every_rule_accumulates_and_does_not_in_worlds_of_either_size() -> None:
    for rule in MATRIX:
        assert {run.rule for size in (2, 3) for run in share(rule, size)} == set(MATRIX[rule])
        assert all({run.accumulate > 1 for run in share(rule, size)} == {False, True} for size in (2, 3))


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("rule", MATRIX)
def test_every_rule_and_compressor_with_and_without_accumulation(rule: str, size: int, tmp_path: Path) -> None:
    compare([Run(name, accumulate=accumulate) for name in MATRIX[rule] for accumulate in (1, 2, 3)], size, tmp_path)


@pytest.mark.parametrize("size", [2, 3])
def test_the_ef21_family_and_dgc(size: int, tmp_path: Path) -> None:
    """Those whose messages are increments, silent ones and sums among them, on several small buckets."""
    weights = tuple(1.0 + rank for rank in range(size))
    runs = [Run(rule.replace("{smoothness}", str(weights)), steps=12) for rule in DDP_FAMILY]
    compare(runs, size, tmp_path)


@pytest.mark.parametrize("names", [[*CIRCUMSTANCES][first::5] for first in range(5)], ids="; ".join)
def test_every_circumstance(names: Sequence[str], tmp_path: Path) -> None:
    """Several, one after the other, from one start of the processes."""
    found = compared([CIRCUMSTANCES[name] for name in names], 2, tmp_path)
    assert not [(name, wrong) for name, wrong in zip(names, found, strict=True) if wrong]


def test_a_world_of_one(tmp_path: Path) -> None:
    rules = ("memsgd(topk(0.1))", "ef21plus(topk(0.1))", "memsgd(strom(0.02))", "vgc(1.0)")
    compare([Run(rule) for rule in rules], 1, tmp_path)

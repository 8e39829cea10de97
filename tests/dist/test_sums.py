"""Messages that are added up on their way: bitwise the simulation, as many bytes as an all-reduce, nothing lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.dist.training import Run, batch, differences, train_ddp, train_simulated
from tests.dist.world import run_world
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.errors import NonFiniteGradient, ThinwireError
from thinwire.exchange import Group, allreduce_bytes

pytestmark = pytest.mark.dist

RULES = ["plain(identity())", "memsgd(identity())", "memsgd(randk(0.9, shared=True))", "dgc(randk(0.9, shared=True))"]


def wide() -> nn.Module:
    """A bucket of it holds more than `LEAST_SUM` bytes, and a number of them that no world size divides."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 700), nn.Tanh(), nn.Linear(700, 4), nn.Linear(4, 4))


BASE = Run(RULES[0], network=wide, ddp={}, steps=4)
RUNS = [
    *(replace(BASE, rule=rule) for rule in RULES),
    replace(BASE, rule="ef21(randk(0.9, shared=True))"),  # more than a mean: gathered
    replace(BASE, rule=RULES[2], dtype=torch.bfloat16),
    replace(BASE, rule=RULES[2], dtype=torch.float64),
    replace(BASE, rule=RULES[1], groups=True, clip=0.1),
    replace(BASE, rule="route({'0.*': plain(identity()), '*': memsgd(topk(0.1))})", ddp={"bucket_cap_mb": 0.02}),
]


def trained(rank: int, size: int) -> list[Any]:
    found = []
    for run in RUNS:
        parameters, handle, _ = train_ddp(rank, run)
        found.append((parameters, handle.ledger.summary()["sent_bytes"]))
    return found


@pytest.mark.parametrize("size", [3, 4])
def test_every_rank_has_the_simulation_s_parameters_bit_for_bit(size: int, tmp_path: Path) -> None:
    worlds = run_world(size, trained, folder=tmp_path)
    for place, run in enumerate(RUNS):
        simulated = train_simulated(run, size)
        for results in worlds:
            assert not list(differences(results[place][0], simulated)), run.rule
    numel = sum(parameter.numel() for parameter in wide().parameters())
    dense = BASE.steps * allreduce_bytes(4 * numel, size)
    assert dense <= worlds[0][0][1] <= 1.01 * dense  # a gather would take size / 2 times that
    assert worlds[0][2][1] <= 0.91 * dense


# ------------------------------------------------------------------------------------------------------------- failures


def model(rule: str) -> tuple[DistributedDataParallel, thinwire.Handle]:
    ddp = DistributedDataParallel(wide())
    return ddp, thinwire.attach(ddp, rule, torch.optim.SGD(ddp.parameters(), lr=0.1))


def backward(ddp: DistributedDataParallel, step: int, rank: int) -> None:
    ddp.zero_grad()
    x, y = batch(step, rank)
    nn.functional.cross_entropy(ddp(x), y).backward()


def state_of(handle: thinwire.Handle) -> dict[str, Tensor]:
    return {key: tensor.clone() for key, tensor in handle.state_dict()["slots"].items()}


def nan_on_one(rank: int, size: int) -> tuple[str, bool]:
    ddp, handle = model(RULES[2])
    backward(ddp, 0, rank)
    before = state_of(handle)
    weight = ddp.module[0].weight
    hook = weight.register_hook(lambda gradient: gradient * torch.nan) if rank == 1 else None
    with pytest.raises(NonFiniteGradient) as caught:
        backward(ddp, 1, rank)
    same = not list(differences(before, state_of(handle)))
    if hook is not None:
        hook.remove()
    backward(ddp, 1, rank)
    return str(caught.value), same and bool(weight.grad.isfinite().all())


def test_a_nan_is_named_on_every_rank_and_moves_no_state(tmp_path: Path) -> None:
    for said, unmoved in run_world(3, nan_on_one, folder=tmp_path):
        assert "rank 1" in said
        assert "0.weight" in said
        assert unmoved


def damaged(rank: int, size: int, hop: str) -> tuple[str, bool]:
    """Rank 1's letter to rank 0, or its total to all, loses a bit after its checksum was written."""
    ddp, handle = model(RULES[2])
    backward(ddp, 0, rank)
    before = state_of(handle)
    scatter, gather = Group.scatter, Group.gather

    def bad_scatter(self: Group, rows: Tensor, what: str) -> Any:
        rows[0, 100] ^= 4
        return scatter(self, rows, what)

    def bad_gather(self: Group, message: Tensor, **given: Any) -> Any:
        if given["what"] == "the totals of a bucket":
            message[100] ^= 4
        return gather(self, message, **given)

    if rank == 1:
        Group.scatter, Group.gather = (  # type: ignore[method-assign]
            (bad_scatter, gather) if hop == "share" else (scatter, bad_gather)
        )
    with pytest.raises(ThinwireError) as caught:
        backward(ddp, 1, rank)
    Group.scatter, Group.gather = scatter, gather  # type: ignore[method-assign]
    same = not list(differences(before, state_of(handle)))
    backward(ddp, 1, rank)
    return str(caught.value), same and bool(ddp.module[0].weight.grad.isfinite().all())


@pytest.mark.parametrize("hop", ["share", "total"])
def test_a_damaged_letter_of_either_hop_is_refused_by_all(hop: str, tmp_path: Path) -> None:
    for said, unmoved in run_world(3, damaged, hop, folder=tmp_path):
        assert "rank 1" in said
        assert "damaged on its way" in said
        assert unmoved

"""The server's work shared out among ranks: bitwise the simulation, nothing lost, saved, resumed and cut anew."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.dist.test_sums import backward, wide
from tests.dist.training import Run, differences, train_ddp, train_simulated
from tests.dist.world import run_world
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.errors import AttachError, NonFiniteGradient, StateError, ThinwireError
from thinwire.exchange import Group
from thinwire.owners import Owners
from thinwire.scale.estimate import ScaleSetting, second_hop

pytestmark = pytest.mark.dist

BASE = Run("memsgd(topk(0.02))", network=wide, ddp={"bucket_cap_mb": 0.02}, steps=5, exchange="server", decay_at=(2,))


class Idle(nn.Module):
    """A layer that no worker uses, and one that only worker 0 does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.idle, self.last = nn.Linear(12, 300), nn.Linear(12, 300), nn.Linear(300, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


RUNS = [
    BASE,
    replace(BASE, accumulate=2, groups=True, clip=0.1),
    replace(BASE, dtype=torch.bfloat16),
    replace(BASE, dtype=torch.float64, rule="memsgd(topk(0.02), decay=0.9, memory=int8)"),
    replace(BASE, rule="memsgd(topk(0.1, values=exponent4))"),  # gaps: lengths are told first
    replace(BASE, rule="dgc(topk(0.02))"),
    replace(BASE, rule="memadam(topk(0.02), refresh=3)"),
    replace(BASE, rule="plain(identity())"),
    replace(BASE, rule="memsgd(randk(0.05, shared=True))"),
    replace(BASE, rule="memsgd(threshold(0.01))"),
    replace(BASE, rule="ef21bc(topk(0.02), topk(0.02))"),
    replace(BASE, rule="ef21bc(topk(0.02), randk(0.05), start=zero)"),
    replace(BASE, rule="route({'0.*': memsgd(topk(0.02)), '2.*': ef21bc(topk(0.1), topk(0.1)), '*': dgc(topk(0.1))})"),
    replace(BASE, network=Idle, ddp={"find_unused_parameters": True}),
]


def trained(rank: int, size: int, runs: list[Run]) -> list[dict[str, Tensor]]:
    return [train_ddp(rank, run)[0] for run in runs]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_rank_has_the_simulation_s_parameters_bit_for_bit(size: int, tmp_path: Path) -> None:
    runs = RUNS if size == 3 else RUNS[size % 4 :: 3]
    worlds = run_world(size, trained, runs, folder=tmp_path)
    for place, run in enumerate(runs):
        simulated = train_simulated(run, size)
        for results in worlds:
            assert not list(differences(results[place], simulated)), run


# ------------------------------------------------------------------------------------------------------------- failures


def model(rule: str) -> tuple[DistributedDataParallel, thinwire.Handle]:
    ddp = DistributedDataParallel(wide())
    return ddp, thinwire.attach(ddp, rule, torch.optim.SGD(ddp.parameters(), lr=0.1), exchange="server")


def state_of(handle: thinwire.Handle) -> dict[str, Tensor]:
    return {key: tensor.clone() for key, tensor in handle.state_dict()["slots"].items()}


def nan_on_one(rank: int, size: int, rule: str) -> tuple[str, bool]:
    ddp, handle = model(rule)
    backward(ddp, 0, rank)
    before = state_of(handle)
    hook = ddp.module[0].weight.register_hook(lambda gradient: gradient * torch.nan) if rank == 1 else None
    with pytest.raises(NonFiniteGradient) as caught:
        backward(ddp, 1, rank)
    same = not list(differences(before, state_of(handle)))
    if hook is not None:
        hook.remove()
    backward(ddp, 1, rank)
    moved = bool(list(differences(before, state_of(handle))))
    return str(caught.value), same and moved and bool(ddp.module[0].weight.grad.isfinite().all())


@pytest.mark.parametrize("rule", ["memsgd(topk(0.02))", "ef21bc(topk(0.02), topk(0.02))"])
def test_a_nan_is_named_on_every_rank_and_moves_no_state(rule: str, tmp_path: Path) -> None:
    for said, fine in run_world(3, nan_on_one, rule, folder=tmp_path):
        assert "rank 1" in said
        assert "0.weight" in said
        assert fine


def damaged(rank: int, size: int, hop: str) -> tuple[str, bool]:
    """Rank 1's letter to owner 0, or its answer to all, loses a bit after its checksum was written."""
    ddp, handle = model("memsgd(topk(0.02))")
    backward(ddp, 0, rank)
    before, trade = state_of(handle), Group.trade

    def bad(self: Group, letters: Any, sizes: Any, what: str) -> Any:
        if what.startswith("the answers") == (hop == "answer"):
            letters = [letter.clone() for letter in letters]
            for letter in letters if hop == "answer" else letters[:1]:
                letter[60] ^= 4
        return trade(self, letters, sizes, what)

    if rank == 1:
        Group.trade = bad  # type: ignore[method-assign]
    with pytest.raises(ThinwireError) as caught:
        backward(ddp, 1, rank)
    Group.trade = trade  # type: ignore[method-assign]
    same = not list(differences(before, state_of(handle)))
    backward(ddp, 1, rank)
    return str(caught.value), same and bool(ddp.module[0].weight.grad.isfinite().all())


@pytest.mark.parametrize("hop", ["letter", "answer"])
def test_a_damaged_letter_of_either_hop_is_refused_by_all(hop: str, tmp_path: Path) -> None:
    for said, fine in run_world(3, damaged, hop, folder=tmp_path):
        assert "rank 1" in said
        assert "damaged on its way" in said
        assert fine


def refused(rank: int, size: int) -> list[str]:
    """What attach says of rules and exchanges that do not go together; it goes on working after each."""
    ddp = DistributedDataParallel(wide())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    said = []
    for rule, exchange in [
        ("memsgd(topk(0.1))", "serve"),
        ("ef21(topk(0.1))", "server"),
        ("memsgd(sign())", "server"),
        ("memsgd(topk(0.1, per=bucket))", "server"),
        ("auto", "server"),
        ("memsgd(topk(0.1))", "server" if rank else "gather"),
    ]:
        with pytest.raises(AttachError) as caught:
            thinwire.attach(ddp, rule, optimizer, exchange=exchange)
        said.append(str(caught.value))
    thinwire.attach(ddp, "memsgd(topk(0.1))", optimizer, exchange="server")
    return said


def test_what_two_hops_cannot_serve_is_refused_on_every_rank_with_a_remedy(tmp_path: Path) -> None:
    for name, rule, format, bucket, auto, mixed in run_world(2, refused, folder=tmp_path):
        assert "there is no exchange 'serve': take one of gather, server" in name
        assert "not defined for two hops" in rule
        assert "ef21bc(topk(0.01), topk(0.01))" in rule
        assert "sign() says of one owner's numbers cannot be told apart" in format
        assert "cannot be told apart" in bucket
        assert "auto" in auto
        assert "exchange" in auto
        assert "ranks differ in exchange" in mixed


# ---------------------------------------------------------------------------------------------------------- checkpoints

STATES = [BASE, replace(BASE, rule="ef21bc(topk(0.02), topk(0.02))")]
HALF = 3


def saved_half(rank: int, size: int, folder: str) -> None:
    for place, run in enumerate(STATES):
        _, handle, _ = train_ddp(rank, run, until=HALF)
        torch.save(handle.saved, f"{folder}/{place}-{rank}.pt")  # type: ignore[attr-defined]
    os.sync()


def resumed(rank: int, size: int, folder: str) -> list[bool]:
    """Resume in new processes with buckets cut differently, and compare with a run that never stopped."""
    same = []
    for place, run in enumerate(STATES):
        saved = torch.load(f"{folder}/{place}-{rank}.pt", weights_only=True)
        halves, _, _ = train_ddp(rank, replace(run, ddp={"bucket_cap_mb": 0.05}), resume=(HALF, saved))
        whole, _, _ = train_ddp(rank, run)
        same.append(not list(differences(whole, halves)))
    return same


def totals(states: list[dict[str, Any]]) -> dict[str, Tensor]:
    """The mean of all memories, and what all owners keep, in float64; of EF21-BC its owners' means."""
    workers, found = len(states), {}
    slots = {key: value for state in states for key, value in state["slots"].items()}
    for name, shape in states[0]["shapes"].items():
        rows = [slots[f"error/rank{r}/{name}"].double() for r in range(workers) if f"error/rank{r}/{name}" in slots]
        total = sum(rows, torch.zeros(shape, dtype=torch.float64)).reshape(-1) / workers
        owners = Owners(workers, states[0]["owners"])
        index = list(states[0]["shapes"]).index(name)
        for rank in range(workers):
            own = owners.share(tuple(shape), index, rank)
            kept = [slots.get(f"{slot}/rank{rank}/{name}") for slot in ("kept", "mean")]
            if own is not None:
                total[own] += next(one for one in kept if one is not None).double()
        found[name] = total
    return found


def resized(rank: int, size: int, folder: str, old: int) -> list[dict[str, Any]]:
    new_states = []
    for place, run in enumerate(STATES):
        parts = [torch.load(f"{folder}/{place}-{r}.pt", weights_only=True)["thinwire"] for r in range(old)]
        merged = thinwire.merge_states(parts)
        _, handle, _ = train_ddp(rank, run, until=0)
        with pytest.raises(StateError, match=f"saved by {old} workers, this group has {size}"):
            handle.load_state_dict(merged)
        handle.load_state_dict(merged, on_resize="redistribute")
        new_states.append(handle.state_dict())
        gathers = thinwire.Simulation(dict(wide().named_parameters()), run.rule, old)
        with pytest.raises(StateError, match="saved under a server, in shares of 1024 numbers or more"):
            gathers.load_state_dict(merged)
    return new_states


def test_resuming_is_bitwise_the_uninterrupted_run_and_resizing_conserves(tmp_path: Path) -> None:
    run_world(3, saved_half, str(tmp_path), folder=tmp_path)
    for same in run_world(3, resumed, str(tmp_path), folder=tmp_path):
        assert same == [True] * len(STATES)
    for size in (2, 4):
        by_rank = run_world(size, resized, str(tmp_path), 3, folder=tmp_path)
        for place in range(len(STATES)):
            past = [torch.load(tmp_path / f"{place}-{r}.pt", weights_only=True)["thinwire"] for r in range(3)]
            before, after = totals(past), totals([states[place] for states in by_rank])
            for name, total in before.items():
                assert total.any()
                assert (total - after[name]).norm() <= 2.0**-22 * total.norm()


# ------------------------------------------------------------------------------------------------------ bytes and flush


def one_step(rank: int, size: int, rule: str) -> float:
    layer = nn.Linear(100, 300, bias=False)
    ddp = DistributedDataParallel(layer)
    handle = thinwire.attach(ddp, rule, torch.optim.SGD(ddp.parameters(), lr=0.1), exchange="server")
    generator = torch.Generator().manual_seed(rank)
    ddp(torch.randn(8, 100, generator=generator)).square().mean().backward()
    return handle.ledger.last_step()["sent_bytes"]


@pytest.mark.parametrize("size", [2, 4, 8])
def test_an_estimate_is_what_real_ranks_account_for(size: int, tmp_path: Path) -> None:
    rule = "memsgd(topk(0.02))"
    sent = run_world(size, one_step, rule, folder=tmp_path)
    cost = second_hop(ScaleSetting(rule=rule, workers=(size,), parameters=30_000), size)
    assert cost is not None
    assert cost.entries is not None
    assert sum(sent) / size == cost.sent
    assert max(sent) == cost.most
    assert cost.entries <= 2.1 * 600


def counted(rank: int, size: int) -> tuple[dict[str, float], float, float]:
    """One step's account, and what flushing hands over beside what all memories held."""
    ddp, handle = model("memsgd(topk(0.02))")
    for step in range(3):
        backward(ddp, step, rank)
    account = handle.ledger.last_step()
    held = totals_of_world(handle)
    return account, held, handle.flush()


def totals_of_world(handle: thinwire.Handle) -> float:
    """The norm of what all ranks hold back, times the rate."""
    states: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(states, handle.state_dict())
    return 0.1 * float(torch.cat(list(totals(states).values())).norm())


def test_the_account_counts_both_hops_and_flushing_hands_over_all_memories(tmp_path: Path) -> None:
    accounts = run_world(4, counted, folder=tmp_path)
    simulation = thinwire.Simulation(dict(wide().named_parameters()), "plain(topk(0.02))", 4)
    simulation.exchange([{name: torch.randn(p.shape) for name, p in wide().named_parameters()}] * 4)
    gathered = simulation.ledger.last_step()["sent_bytes"]
    sent = [account["sent_bytes"] for account, _, _ in accounts]
    assert sum(sent) == sum(account["received_bytes"] for account, _, _ in accounts)
    assert sum(sent) / 4 < 0.7 * gathered  # 1.5 k beside 3 k, and more letters
    for _, held, flushed in accounts:
        assert flushed == pytest.approx(held, rel=1e-5)

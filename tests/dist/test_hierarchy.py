"""DDP on sites: dense inside, by a rule between; two sites of two ranks in one world of processes."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tests.dist.over_sites import simulated
from tests.dist.training import batch, network
from tests.dist.world import run_world
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.errors import AttachError, ConfigError, NonFiniteGradient, WireError
from thinwire.exchange import Hierarchy

pytestmark = pytest.mark.dist
SITES, MEMBERS = 2, 2
RULES = ["memsgd(topk(0.1))", "ef21(topk(0.1))", "ef21(sign())", "memsgd(randk(0.2), decay=0.9)"]
SMALL = {"bucket_cap_mb": 0.001}
"""Several buckets."""


class Odd(nn.Module):
    """A scalar, a weight that lies in memory in another order, and sizes that two does not divide."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = network()
        self.scale = nn.Parameter(torch.ones(()))
        self.weight = nn.Parameter(torch.randn(5, 4).t())
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return (self.inner(x) @ self.weight)[:, :4] * self.scale


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    x, y = batch(step, rank)
    return nn.functional.cross_entropy(model(x), y)


def attached(
    rule: str, model: nn.Module | None = None, **ddp: Any
) -> tuple[DistributedDataParallel, torch.optim.Optimizer, thinwire.Handle]:
    wrapped = DistributedDataParallel(network() if model is None else model, **(SMALL | ddp))
    optimizer = sgd(wrapped)
    return wrapped, optimizer, thinwire.attach(wrapped, rule, optimizer, exchange=Hierarchy(SITES))


def train(ddp: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(ddp, step, rank).backward()
        optimizer.step()


def parameters(ddp: DistributedDataParallel) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in ddp.module.named_parameters()}


def slots(handle: thinwire.Handle) -> dict[str, Tensor]:
    return {key: slot.full_tensor() for key, slot in handle.state_dict()["slots"].items()}


def furthest(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    return max(float((found[name] - wanted[name]).abs().max()) for name in wanted)


def identity(rank: int) -> float:
    ddp, optimizer, _ = attached("plain(identity())", Odd(), find_unused_parameters=True)
    flat = DistributedDataParallel(Odd(), find_unused_parameters=True)
    train(ddp, optimizer, rank, range(3))
    train(flat, sgd(flat), rank, range(3))
    assert ddp.module.unused.weight.grad is None
    return furthest(parameters(ddp), parameters(flat))


def by_rule(rank: int, rule: str) -> dict[str, Any]:
    ddp, optimizer, handle = attached(rule)
    train(ddp, optimizer, rank, range(4))
    store = handle.channel.worker
    held = sum(store.view(n, s.name).numel() for n in handle.channel.rules for s in store.slots_of(n))
    return {"parameters": parameters(ddp), "held": held}


def bytes_between(rank: int) -> dict[str, float]:
    ddp, optimizer, handle = attached("memsgd(topk(0.01))", nn.Linear(12, 8192, bias=False))
    train(ddp, optimizer, rank, range(2))
    return handle.ledger.summary()


def resumed(rank: int, path: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    ddp, optimizer, handle = attached(RULES[0])
    train(ddp, optimizer, rank, range(3))
    dcp.save({"thinwire": handle}, checkpoint_id=path)
    model, momentum = copy.deepcopy(ddp.module), copy.deepcopy(optimizer.state_dict())
    train(ddp, optimizer, rank, range(3, 6))
    again, other, handle = attached(RULES[0], model)
    dcp.load({"thinwire": handle}, checkpoint_id=path)
    other.load_state_dict(momentum)
    train(again, other, rank, range(3, 6))
    return parameters(ddp), parameters(again)


def refused_steps(rank: int) -> dict[str, Any]:
    """A NaN on one rank, then a message that is damaged, then a step as ever."""
    ddp, optimizer, handle = attached(RULES[0])
    train(ddp, optimizer, rank, range(2))
    before = slots(handle)
    with pytest.raises(NonFiniteGradient) as nan:
        (loss_of(ddp, 2, rank) * (math.nan if rank == 3 else 1.0)).backward()
    ddp.zero_grad()
    send = handle.channel.send

    def spoiled(*arguments: Any) -> Any:
        sent = send(*arguments)
        sent.message[-1] ^= 1
        return sent

    if rank == 1:
        handle.channel.send = spoiled  # type: ignore[method-assign]
    with pytest.raises(WireError) as damage:
        loss_of(ddp, 2, rank).backward()
    handle.channel.send = send  # type: ignore[method-assign]
    same = all(torch.equal(before[key], slot) for key, slot in slots(handle).items())
    train(ddp, optimizer, rank, range(2, 3))
    return {"nan": str(nan.value), "damage": str(damage.value), "same": same, "step": handle.channel.step}


def flushed(rank: int) -> dict[str, Any]:
    """What was computed is what was applied, and what flush applies at last."""
    ddp = DistributedDataParallel(network(), **SMALL)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.125)
    handle = thinwire.attach(ddp, RULES[0], optimizer, exchange=Hierarchy(SITES))
    start, alone = parameters(ddp), network()
    given = {name: torch.zeros_like(p) for name, p in start.items()}
    for step in range(3):
        alone.load_state_dict(ddp.module.state_dict())
        alone.zero_grad()
        loss_of(alone, step, rank).backward()
        for name, p in alone.named_parameters():
            given[name] += 0.125 * p.grad  # type: ignore[operator]
        train(ddp, optimizer, rank, range(step, step + 1))
    handle.detach()
    for each in given.values():
        dist.all_reduce(each)
    end = parameters(ddp)
    off = furthest({n: start[n] - end[n] for n in end}, {n: g / dist.get_world_size() for n, g in given.items()})
    return {"off": off, "parameters": end, "empty": not any(bool(s.any()) for s in slots(handle).values())}


def uneven(rank: int) -> float:
    """One rank has fewer batches."""
    ddp, optimizer, _ = attached("plain(identity())")
    flat = DistributedDataParallel(network())
    for model, own in ((ddp, optimizer), (flat, sgd(flat))):
        with model.join():
            train(model, own, rank, range(2 if rank == 2 else 4))
    return furthest(parameters(ddp), parameters(flat))


def refusals(rank: int, size: int) -> dict[str, str]:
    found = {}

    def refused(what: str, hierarchy: Hierarchy, rule: str = RULES[1], **options: Any) -> None:
        ddp = DistributedDataParallel(network(), **options)
        with pytest.raises((AttachError, ConfigError)) as caught:
            thinwire.attach(ddp, rule, sgd(ddp), exchange=hierarchy)
        found[what] = str(caught.value)

    refused("sites that do not divide", Hierarchy(3))
    refused("rules differ", Hierarchy(2), rule=f"ef21(topk(0.{1 + rank % 2}))")
    refused("moments", Hierarchy(2), rule="vgc(1.0)")
    half = init_device_mesh("cpu", (2, size // 2))
    refused("a mesh of other ranks", Hierarchy(mesh=half), process_group=half.get_group(1))
    refused("sites of a part", Hierarchy(2), process_group=half.get_group(1))
    return found


def everything(rank: int, size: int, path: str) -> dict[str, Any]:
    return {
        "identity": identity(rank),
        "rules": {rule: by_rule(rank, rule) for rule in RULES},
        "bytes": bytes_between(rank),
        "resumed": resumed(rank, path),
        "refused steps": refused_steps(rank),
        "flushed": flushed(rank),
        "uneven": uneven(rank),
        "refusals": refusals(rank, size),
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("hierarchy")
    return run_world(SITES * MEMBERS, everything, str(folder / "saved"), folder=folder)


def test_identity_gives_what_flat_ddp_gives(found: list[dict[str, Any]]) -> None:
    """Also where parameters are unused, scalars, or in another order in memory, and where data are uneven."""
    assert max(each["identity"] for each in found) < 1e-6
    assert max(each["uneven"] for each in found) < 1e-6


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_gives_what_a_simulation_over_shards_gives_bit_for_bit(rule: str, found: list[dict[str, Any]]) -> None:
    model = network()
    wanted = simulated(model, sgd(model), loss_of, rule, SITES, MEMBERS, 4)
    for each in found:
        assert not [name for name, p in each["rules"][rule]["parameters"].items() if not torch.equal(p, wanted[name])]


def test_a_rank_remembers_its_share_alone(found: list[dict[str, Any]]) -> None:
    numel = sum(p.numel() for p in network().parameters())
    assert [each["rules"][RULES[0]]["held"] for each in found] == [numel / MEMBERS] * len(found)


def test_fifty_times_fewer_bytes_travel_between_sites(found: list[dict[str, Any]]) -> None:
    for each in found:
        account = each["bytes"]
        assert account["dense_fp32_bytes"] == 2 * 4 * 12 * 8192 / MEMBERS
        assert 50 * account["sent_bytes"] <= account["dense_fp32_bytes"]


def test_a_resumed_run_goes_on_bit_for_bit(found: list[dict[str, Any]]) -> None:
    for straight, again in (each["resumed"] for each in found):
        assert not [name for name in straight if not torch.equal(straight[name], again[name])]


def test_all_sites_refuse_a_step_together(found: list[dict[str, Any]]) -> None:
    for each in (one["refused steps"] for one in found):
        assert "site 1 computed" in each["nan"]
        assert "damaged" in each["damage"]
        assert (each["same"], each["step"]) == (True, 3)


def test_nothing_is_lost(found: list[dict[str, Any]]) -> None:
    for each in (one["flushed"] for one in found):
        assert each["empty"]
        assert each["off"] < 1e-6
        assert all(torch.equal(p, found[0]["flushed"]["parameters"][name]) for name, p in each["parameters"].items())


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("sites that do not divide", ["4 ranks", "sites=2 or sites=4"]),
        ("rules differ", ["ef21(topk(0.1))", "ef21(topk(0.2))"]),
        ("moments", ["vgc", "memsgd"]),
        ("a mesh of other ranks", ["mesh", "process group"]),
        ("sites of a part", ["Hierarchy(mesh=mesh)"]),
    ],
)
def test_what_cannot_be_served_is_refused_by_all(case: str, words: list[str], found: list[dict[str, Any]]) -> None:
    for each in found:
        assert all(word in each["refusals"][case] for word in words), each["refusals"][case]

"""FSDP2 between sites: 2 sites of 2 ranks each, in one world of processes for most of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tests.dist.over_sites import simulated
from tests.dist.training import batch
from tests.dist.world import run_world
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.errors import AttachError, NonFiniteGradient, WireError

pytestmark = pytest.mark.dist
SITES, MEMBERS = 2, 2
RULES = ["memsgd(topk(0.1))", "ef21(topk(0.1))", "memsgd(randk(0.2), decay=0.9)", "ef21(sign())"]


class Net(nn.Module):
    """Layers that no number of shards divides, a frozen one, and parameters that the root holds itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(12, 25)
        self.frozen = nn.Linear(25, 25).requires_grad_(False)
        self.second = nn.Sequential(nn.Linear(25, 7), nn.Tanh(), nn.Linear(7, 7))
        self.scale = nn.Parameter(torch.ones(1))
        self.last = nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.frozen(self.first(x).tanh())) * self.scale)


def sharded(mesh: DeviceMesh, **options: Any) -> Net:
    model = Net()
    for module in (model.first, model.second):
        fully_shard(module, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    """Two groups, each with a rate of its own."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1]},
        {"params": [p for p in trained if p.ndim == 1], "lr": 0.05},
    ]
    return torch.optim.SGD(groups, lr=lr, momentum=0.9)


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    x, y = batch(step, rank)
    return nn.functional.cross_entropy(model(x).float(), y)


def mesh_of(size: int, members: int = MEMBERS) -> DeviceMesh:
    return init_device_mesh("cpu", (size // members, members), mesh_dim_names=("site", "shard"))


def full(model: nn.Module) -> dict[str, Tensor]:
    return {
        n: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for n, p in model.named_parameters()
    }


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        optimizer.step()


def closest(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    return max(float((found[name] - wanted[name]).abs().max()) for name in wanted)


# ---------------------------------------------------------------------------------------- what one world of four finds


def identity(mesh: DeviceMesh, rank: int) -> float:
    """Accumulation, clipping, frozen parameters and groups of the optimizer: as DDP over all ranks."""
    model, reference = sharded(mesh["shard"]), DistributedDataParallel(Net())
    optimizer, own = sgd(model), sgd(reference)
    thinwire.attach_fsdp(model, "plain(identity())", optimizer, mesh=mesh)
    for step in range(3):
        for each in (optimizer, own):
            each.zero_grad()
        model.set_requires_gradient_sync(False)
        loss_of(model, 10 + step, rank).backward()
        model.set_requires_gradient_sync(True)
        loss_of(model, step, rank).backward()
        with reference.no_sync():
            loss_of(reference, 10 + step, rank).backward()
        loss_of(reference, step, rank).backward()
        for each in (model, reference):
            torch.nn.utils.clip_grad_norm_(each.parameters(), 0.5)
        optimizer.step()
        own.step()
    return closest(full(model), full(reference.module))


def by_rule(mesh: DeviceMesh, rank: int, rule: str) -> dict[str, Any]:
    model = sharded(mesh["shard"])
    optimizer = sgd(model)
    handle = thinwire.attach_fsdp(model, rule, optimizer, mesh=mesh)
    train(model, optimizer, rank, range(4))
    held = sum(handle.channel.worker.view(n, s.name).numel() for n in handle.channel.parameters
               for s in handle.channel.worker.slots_of(n))  # fmt: skip
    return {"parameters": full(model), "held": held, "account": handle.ledger.summary()}


def bytes_between(mesh: DeviceMesh, rank: int) -> dict[str, float]:
    """The account of three steps of a model in which no message is all header."""
    model = fully_shard(nn.Linear(12, 8192, bias=False), mesh=mesh["shard"])
    handle = thinwire.attach_fsdp(model, "memsgd(topk(0.01))", torch.optim.SGD(model.parameters(), lr=0.1), mesh=mesh)
    for step in range(3):
        loss_of(model, step, rank).backward()
    return {**handle.ledger.summary(), "numbers": 12 * 8192 / MEMBERS}


def resumed(mesh: DeviceMesh, rank: int, path: str) -> dict[str, Any]:
    """Six steps at once; and three, a checkpoint, and three in a model made anew."""
    model = sharded(mesh["shard"])
    optimizer = sgd(model)
    handle = thinwire.attach_fsdp(model, RULES[0], optimizer, mesh=mesh)
    train(model, optimizer, rank, range(3))
    dcp.save({"model": model.state_dict(), "thinwire": handle}, checkpoint_id=path)
    momentum = copy.deepcopy(optimizer.state_dict())
    slots = whole_slots(handle)
    train(model, optimizer, rank, range(3, 6))
    again = sharded(mesh["shard"])
    other = sgd(again)
    handle = thinwire.attach_fsdp(again, RULES[0], other, mesh=mesh)
    state = {"model": again.state_dict(), "thinwire": handle}
    dcp.load(state, checkpoint_id=path)
    again.load_state_dict(state["model"])
    other.load_state_dict(momentum)
    train(again, other, rank, range(3, 6))
    return {"straight": full(model), "resumed": full(again), "slots": slots}


def whole_slots(handle: thinwire.Handle) -> dict[str, Tensor]:
    return {key: slot.full_tensor() for key, slot in handle.state_dict()["slots"].items()}


def at_another_degree(rank: int, size: int, path: str) -> dict[str, Tensor]:
    """Two sites of one rank each load what two sites of two ranks saved."""
    mesh = mesh_of(size, members=1)
    model = sharded(mesh["shard"])
    optimizer = sgd(model)
    handle = thinwire.attach_fsdp(model, RULES[0], optimizer, mesh=mesh)
    dcp.load({"thinwire": handle}, checkpoint_id=path)
    slots = whole_slots(handle)
    train(model, optimizer, rank, range(1))
    assert handle.channel.step == 4
    return slots


def nan_on_one(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    """A NaN of one rank: all ranks refuse, no state advances, and the next step is as ever."""
    model = sharded(mesh["shard"])
    optimizer = sgd(model)
    handle = thinwire.attach_fsdp(model, RULES[0], optimizer, mesh=mesh)
    train(model, optimizer, rank, range(2))
    before = whole_slots(handle)
    factor = math.nan if rank == 3 else 1.0
    with pytest.raises(NonFiniteGradient) as caught:
        (loss_of(model, 2, rank) * factor).backward()
    finite = any(bool(p.grad.to_local().isfinite().any()) for p in model.parameters() if p.grad is not None)
    same = all(torch.equal(before[key], slot) for key, slot in whole_slots(handle).items())
    train(model, optimizer, rank, range(2, 3))
    return {"words": str(caught.value), "finite": finite, "same": same, "step": handle.channel.step}


def damaged(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    """A message of one rank's that is damaged on its way."""
    model = sharded(mesh["shard"])
    optimizer = sgd(model)
    handle = thinwire.attach_fsdp(model, RULES[1], optimizer, mesh=mesh)
    send = handle.channel.send

    def spoiled(*arguments: Any) -> Any:
        sent = send(*arguments)
        sent.message[-1] ^= 1
        return sent

    if rank == 2:
        handle.channel.send = spoiled  # type: ignore[method-assign]
    with pytest.raises(WireError) as caught:
        loss_of(model, 0, rank).backward()
    handle.channel.send = send  # type: ignore[method-assign]
    train(model, optimizer, rank, range(1))
    return {"words": str(caught.value), "step": handle.channel.step}


def drifted(mesh: DeviceMesh, rank: int) -> str:
    """One rank's schedule is another."""
    model = sharded(mesh["shard"])
    optimizer = sgd(model)
    thinwire.attach_fsdp(model, RULES[0], optimizer, mesh=mesh)
    if rank == 1:
        optimizer.param_groups[0]["lr"] = 0.01
    with pytest.raises(WireError) as caught:
        loss_of(model, 0, rank).backward()
    return str(caught.value)


def used_in_part(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    """A site that leaves a module out; a parameter of a module that is left out; a module that is used twice."""
    model = sharded(mesh["shard"])
    handle = thinwire.attach_fsdp(model, "plain(identity())", sgd(model), mesh=mesh)
    x, y = batch(0, rank)
    skip = rank < MEMBERS

    def forward(x: Tensor) -> Tensor:
        hidden = model.frozen(model.first(x).tanh())
        return model.last((hidden[:, :7] if skip else model.second(hidden)) * model.scale)

    model.forward = forward  # type: ignore[method-assign]
    nn.functional.cross_entropy(model(x), y).backward()
    norm = float(model.second[0].weight.grad.full_tensor().norm())
    model.forward = lambda x: model.last(model.second(model.frozen(model.first(x))))  # type: ignore[method-assign]
    model.zero_grad()
    with pytest.raises((AttachError, WireError)) as missing:
        loss_of(model, 0, rank).backward()
    return {"norm": norm, "missing": str(missing.value), "step": handle.channel.step}


def narrow_numbers(mesh: DeviceMesh, rank: int) -> dict[str, float]:
    """Mixed precision, FSDP's own divisions, and a mesh of one rank a site: as without thinwire on one site of four."""
    found = {}
    every = init_device_mesh("cpu", (dist.get_world_size(),))
    each = mesh_of(dist.get_world_size(), members=1)
    cases: dict[str, tuple[Any, DeviceMesh, Callable[[FSDPModule], None]]] = {
        "bfloat16": (MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16), mesh, lambda m: None),
        "float16": (MixedPrecisionPolicy(None, torch.float16), mesh, lambda m: None),
        "sums alone": (MixedPrecisionPolicy(), mesh, lambda m: m.set_force_sum_reduction_for_comms(True)),
        "one rank a site": (MixedPrecisionPolicy(), each, lambda m: None),
    }
    for name, (policy, own, change) in cases.items():
        model, reference = sharded(own["shard"], mp_policy=policy), sharded(every, mp_policy=policy)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                change(module)
        thinwire.attach_fsdp(model, "plain(identity())", sgd(model), mesh=own)
        for each_model in (model, reference):
            loss_of(each_model, 0, rank).backward()
        pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), reference.parameters(), strict=True)]
        found[name] = max(
            float((p.full_tensor() - q.full_tensor()).norm() / q.full_tensor().norm())
            for p, q in pairs
            if p is not None and q is not None
        )
    return found


def flushed(mesh: DeviceMesh, rank: int) -> dict[str, Any]:
    """Nothing is lost: what memories hold is applied, on all ranks alike; then sites average dense."""
    model = sharded(mesh["shard"])
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    handle = thinwire.attach_fsdp(model, RULES[0], optimizer, mesh=mesh)
    train(model, optimizer, rank, range(3))
    owed, before = whole_slots(handle), full(model)
    norm = handle.flush()
    moved = {n: before[n] - p for n, p in full(model).items()}
    emptied = not any(bool(slot.any()) for slot in whole_slots(handle).values())
    handle.detach()
    model.zero_grad()
    loss_of(model, 5, rank).backward()
    return {
        "owed": owed,
        "moved": moved,
        "norm": norm,
        "emptied": emptied,
        "gradient": model.last.weight.grad.full_tensor(),
    }


def refusals(mesh: DeviceMesh, rank: int) -> dict[str, str]:
    found = {}

    def refused(what: str, model: nn.Module, rule: str = RULES[1], **options: Any) -> None:
        options = {"mesh": mesh, **options}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(AttachError) as caught:
            thinwire.attach_fsdp(model, options.pop("rule", rule), optimizer, **options)
        found[what] = str(caught.value)

    refused("native HSDP", sharded(mesh))
    refused("CPU offload", sharded(mesh["shard"], offload_policy=CPUOffloadPolicy(pin_memory=False)))
    refused("not sharded", Net())
    refused("no mesh", sharded(mesh["shard"]), mesh=None)
    every = init_device_mesh("cpu", (dist.get_world_size(),))
    refused("another mesh", sharded(every))
    refused("one dimension", sharded(mesh["shard"]), mesh=every)
    refused("no column", sharded(mesh["shard"]), mesh=None, group=dist.group.WORLD)
    refused("rules differ", sharded(mesh["shard"]), rule=f"ef21(topk(0.{1 + rank // 2}))")
    refused("moments", sharded(mesh["shard"]), rule="vgc(1.0)")
    hooked = sharded(mesh["shard"])
    hooked.set_all_reduce_hook(lambda output: None)
    refused("a hook of its own", hooked)
    twice = sharded(mesh["shard"])
    handle = thinwire.attach_fsdp(twice, RULES[1], sgd(twice), mesh=mesh)
    refused("twice", twice)
    handle.detach()
    thinwire.attach_fsdp(twice, RULES[1], sgd(twice), group=mesh.get_group("site"))
    with pytest.raises(AttachError) as caught:
        thinwire.attach(twice, RULES[1])
    found["by attach"] = str(caught.value)
    return found


def everything(rank: int, size: int, path: str) -> dict[str, Any]:
    mesh = mesh_of(size)
    return {
        "identity": identity(mesh, rank),
        "rules": {rule: by_rule(mesh, rank, rule) for rule in RULES},
        "bytes": bytes_between(mesh, rank),
        "resumed": resumed(mesh, rank, path),
        "nan": nan_on_one(mesh, rank),
        "damaged": damaged(mesh, rank),
        "drifted": drifted(mesh, rank),
        "used in part": used_in_part(mesh, rank),
        "narrow": narrow_numbers(mesh, rank),
        "flushed": flushed(mesh, rank),
        "refusals": refusals(mesh, rank),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fsdp")


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    return run_world(SITES * MEMBERS, everything, str(folder / "saved"), folder=folder)


def test_identity_gives_what_ddp_over_all_ranks_gives(found: list[dict[str, Any]]) -> None:
    assert max(each["identity"] for each in found) < 1e-6


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_gives_what_a_simulation_over_shards_gives_bit_for_bit(rule: str, found: list[dict[str, Any]]) -> None:
    model = Net()
    wanted = simulated(model, sgd(model), loss_of, rule, SITES, MEMBERS, 4)
    for each in found:
        assert not [name for name, p in each["rules"][rule]["parameters"].items() if not torch.equal(p, wanted[name])]


def test_a_rank_remembers_its_shard_alone(found: list[dict[str, Any]]) -> None:
    numel = sum(p.numel() for p in Net().parameters() if p.requires_grad)
    held = [each["rules"][RULES[0]]["held"] for each in found]
    assert sum(held[:MEMBERS]) == sum(held[MEMBERS:]) == numel
    assert max(held) <= numel / MEMBERS + 7 * 25


def test_fifty_times_fewer_bytes_travel_between_sites(found: list[dict[str, Any]]) -> None:
    for each in found:
        account = each["bytes"]
        assert account["dense_fp32_bytes"] == 3 * 4 * account["numbers"]
        assert 50 * account["sent_bytes"] <= account["dense_fp32_bytes"]


def test_a_resumed_run_goes_on_bit_for_bit(found: list[dict[str, Any]]) -> None:
    for each in (one["resumed"] for one in found):
        assert not [name for name, p in each["straight"].items() if not torch.equal(p, each["resumed"][name])]


def test_a_checkpoint_is_cut_anew_for_another_shard_degree(found: list[dict[str, Any]], folder: Path) -> None:
    for site, slots in enumerate(run_world(SITES, at_another_degree, str(folder / "saved"), folder=folder)):
        saved = found[site * MEMBERS]["resumed"]["slots"]
        assert saved.keys() == slots.keys()
        assert all(torch.equal(slots[key], saved[key]) for key in saved)
        assert any(bool(slot.any()) for slot in slots.values())


def test_nan_on_one_rank_is_refused_by_all(found: list[dict[str, Any]]) -> None:
    for each in (one["nan"] for one in found):
        assert "site 1 computed" in each["words"]
        assert (each["finite"], each["same"], each["step"]) == (False, True, 3)


def test_a_damaged_message_is_refused_by_all(found: list[dict[str, Any]]) -> None:
    for each in (one["damaged"] for one in found):
        assert "damaged" in each["words"]
        assert each["step"] == 1


def test_ranks_that_drift_apart_are_named(found: list[dict[str, Any]]) -> None:
    for each in found:
        assert all(words in each["drifted"] for words in ("learning rate", "0.01", "rank 1"))


def test_a_module_that_one_site_leaves_out_counts_as_zeros_there(found: list[dict[str, Any]]) -> None:
    norms = {each["used in part"]["norm"] for each in found}
    assert len(norms) == 1
    assert norms.pop() > 0
    for each in found:
        assert "'the root' has no gradient" in each["used in part"]["missing"]
        assert "set_reduce_scatter_unused_params" in each["used in part"]["missing"]
        assert each["used in part"]["step"] == 1


@pytest.mark.parametrize(
    ("case", "eps"), [("bfloat16", 2**-7), ("float16", 2**-9), ("sums alone", 2**-20), ("one rank a site", 2**-20)]
)
def test_gradients_are_divided_as_fsdp_divides_them(case: str, eps: float, found: list[dict[str, Any]]) -> None:
    """Within the roundings of the type in which FSDP adds four ranks' gradients up."""
    assert all(each["narrow"][case] < 4 * eps for each in found)


def owed_of(one: dict[str, Any], name: str) -> Tensor:
    return next(slot for key, slot in one["flushed"]["owed"].items() if key.endswith(f"/{name}"))


def test_flush_applies_the_mean_of_what_sites_remember(found: list[dict[str, Any]]) -> None:
    for each in (one["flushed"] for one in found):
        assert each["emptied"]
        assert torch.equal(each["gradient"], found[0]["flushed"]["gradient"])
        squares = 0.0
        for name in (key.rpartition("/")[2] for key in each["owed"]):
            mean = sum(owed_of(one, name) for one in found[::MEMBERS]) / SITES
            assert torch.allclose(each["moved"][name], 0.1 * mean, atol=2**-22)
            squares += float((0.1 * mean).square().sum())
        assert each["norm"] == pytest.approx(math.sqrt(squares), rel=2**-18)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("native HSDP", ["dense all-reduce", 'mesh["shard"]']),
        ("CPU offload", ["offload_policy"]),
        ("not sharded", ["Net", "fully_shard"]),
        ("no mesh", ["mesh=", "group="]),
        ("another mesh", ["[0, 1, 2, 3]", "sharded"]),
        ("one dimension", ["two dimensions"]),
        ("no column", ["no grid", "init_device_mesh"]),
        ("rules differ", ["ef21(topk(0.1))", "ef21(topk(0.2))"]),
        ("moments", ["vgc", "memsgd"]),
        ("a hook of its own", ["set_all_reduce_hook(None)"]),
        ("twice", ["detach()"]),
        ("by attach", ["attach_fsdp"]),
    ],
)
def test_what_cannot_be_served_is_refused_on_every_rank(
    case: str, words: list[str], found: list[dict[str, Any]]
) -> None:
    for each in found:
        assert all(word in each["refusals"][case] for word in words), each["refusals"][case]

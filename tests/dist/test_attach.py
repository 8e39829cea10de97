"""What `attach` checks on all ranks before anything starts, and what it works with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.builds import CUDA_WITHOUT_GPU
from tests.dist.training import Run, batch, differences, network, optimizer_of, train_simulated
from tests.dist.world import run_world
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

import thinwire
from thinwire.errors import AttachError, NonFiniteGradient, WireError

pytestmark = pytest.mark.dist


def refusal(model: nn.Module, rule: Any, optimizer: Any, **options: Any) -> str:
    """The message with which `attach` refuses."""
    with pytest.raises(AttachError) as caught:
        thinwire.attach(model, rule, optimizer, **options)
    return str(caught.value)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def mismatches(rank: int, size: int) -> dict[str, str]:
    """Each way in which ranks can differ, and each problem that only one rank has."""
    found = {}
    ddp = DistributedDataParallel(network())
    ratio = 0.01 * (rank + 1)
    found["rules differ"] = refusal(ddp, thinwire.EF21(thinwire.TopK(ratio)), sgd(ddp))
    found["seeds differ"] = refusal(ddp, thinwire.EF21(thinwire.TopK(0.1)), sgd(ddp), seed=rank)
    strange = sgd(ddp) if rank == 0 else sgd(network())
    found["one optimizer is of another model"] = refusal(ddp, thinwire.MemSGD(thinwire.TopK(0.1)), strange)
    found["no optimizer"] = refusal(ddp, thinwire.MemSGD(thinwire.TopK(0.1)), None)
    some = torch.optim.SGD(list(ddp.parameters())[:2], lr=0.1)
    found["optimizer of some"] = refusal(ddp, thinwire.MemSGD(thinwire.TopK(0.1)), some)
    found["not a contraction"] = refusal(ddp, thinwire.MemSGD(thinwire.QSGD(1, 512)), sgd(ddp))
    found["no pattern"] = refusal(ddp, thinwire.Route({"0.*": thinwire.Identity()}, min_numel=0), sgd(ddp))
    found["bad policy"] = refusal(ddp, thinwire.EF21(thinwire.TopK(0.1)), sgd(ddp), nonfinite="ignore")
    found["not an optimizer at all"] = refusal(ddp, thinwire.EF21(thinwire.TopK(0.1)), ddp if rank else sgd(ddp))
    scaler = torch.amp.GradScaler("cpu") if rank else None
    found["a scaler on one rank"] = refusal(ddp, thinwire.EF21(thinwire.TopK(0.1)), sgd(ddp), scaler=scaler)
    top, unbiased = thinwire.TopK(0.1), thinwire.Unbias(thinwire.RandK(0.1))
    found["a gradient at the old point"] = refusal(ddp, thinwire.MARINA(unbiased, 0.1), sgd(ddp))
    found["full gradients"] = refusal(ddp, thinwire.EF21PAGE(top, 0.1), sgd(ddp))
    found["a model to broadcast"] = refusal(ddp, thinwire.EF21P(thinwire.EF21(top), top), sgd(ddp))
    found["weights of three"] = refusal(ddp, thinwire.EF21W(top, (1.0, 2.0, 3.0)), sgd(ddp))
    heavy = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    found["momentum twice"] = refusal(ddp, thinwire.DGC(top), heavy)
    sparse = DistributedDataParallel(nn.Sequential(nn.Embedding(9, 3, sparse=True)))
    found["sparse gradients"] = refusal(sparse, thinwire.EF21(thinwire.TopK(0.1)), sgd(sparse))
    waves = DistributedDataParallel(nn.Linear(3, 3, dtype=torch.complex64))
    found["complex numbers"] = refusal(waves, thinwire.EF21(thinwire.TopK(0.1)), sgd(waves))
    narrow = _MixedPrecision(param_dtype=torch.bfloat16)
    own = DistributedDataParallel(network(), mixed_precision=None if CUDA_WITHOUT_GPU else narrow)
    own.mixed_precision = narrow
    found["DDP's own mixed precision"] = refusal(own, thinwire.EF21(thinwire.TopK(0.1)), sgd(own))
    found["not DDP"] = refusal(network(), thinwire.EF21(thinwire.TopK(0.1)), None)
    thinwire.attach(ddp, thinwire.EF21(thinwire.TopK(0.1)), sgd(ddp))
    found["twice"] = refusal(ddp, thinwire.EF21(thinwire.TopK(0.1)), sgd(ddp))
    return found


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return run_world(2, mismatches, folder=tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("rules differ", ["rule", "rank 0 has ef21(topk(0.01))", "rank 1 has ef21(topk(0.02))"]),
        ("seeds differ", ["seed", "rank 0 has 0", "rank 1 has 1"]),
        ("one optimizer is of another model", ["does not hold 6 of the model's 6 parameters", "this very model"]),
        ("no optimizer", ["memsgd(topk(0.1))", "step size", "attach(ddp, rule, optimizer)"]),
        ("optimizer of some", ["does not hold 4 of the model's 6 parameters", "'2.bias'"]),
        ("not an optimizer at all", ["attach", "param_groups"]),
        ("a gradient at the old point", ["marina(", "previous point, on the same samples", "thinwire.simulate"]),
        ("full gradients", ["ef21page(", "one backward pass", "ef21sgdm"]),
        ("a model to broadcast", ["ef21p(", "no model is sent", "the rule within it"]),
        ("weights of three", ["smoothness of 3 workers", "this run has 2"]),
        ("momentum twice", ["dgc(topk(0.1))", "'0.weight'", "SGD with momentum=0"]),
        ("a scaler on one rank", ["scaler", "rank 0 has False", "rank 1 has True"]),
        ("sparse gradients", ["'0'", "sparse=False"]),
        ("complex numbers", ["'weight'", "complex64"]),
        ("DDP's own mixed precision", ["mixed_precision", "torch.autocast"]),
        ("not a contraction", ["variance", "memsgd(contractive(qsgd(1)))"]),
        ("no pattern", ["'2.weight'", "'0.*'", 'last entry "*"']),
        ("bad policy", ["'ignore'", "skip"]),
        ("not DDP", ["Sequential", "DDP(model)"]),
        ("twice", ["already", "new DDP model"]),
    ],
)
def test_every_rank_is_told_what_is_wrong(case: str, words: list[str], refusals: list[dict[str, str]]) -> None:
    """Also the ranks that have no problem themselves: none of them may wait for ever."""
    for messages in refusals:
        assert all(word in messages[case] for word in words), messages[case]


def other_models(rank: int, size: int) -> list[str]:
    """Models that differ between ranks; DDP itself would refuse them, so each rank checks alone what it describes."""
    from thinwire.engines.ddp.agreement import check_same

    here = {"rule": "ef21(topk(0.1))", "parameter 'a'": "[3] torch.float32"}
    found = []
    for there in ({**here, "parameter 'a'": "[4] torch.float32"}, {**here, "parameter 'b'": "[1] torch.float32"}):
        every: list[Any] = [None] * size
        dist.all_gather_object(every, here if rank == 0 else there)
        with pytest.raises(AttachError) as caught:
            check_same(every)
        found.append(str(caught.value))
    return found


def test_ranks_with_other_parameters_are_named_on_both_sides(tmp_path: Path) -> None:
    for shapes, names in run_world(2, other_models, folder=tmp_path):
        assert "parameter 'a': rank 0 has [3] torch.float32, rank 1 has [4] torch.float32" in shapes
        assert "parameter 'b': rank 0 has none, rank 1 has [1] torch.float32" in names


def compiled(rank: int, size: int) -> list[dict[str, torch.Tensor]]:
    """torch.compile inside and around DDP; the experimental python reducer is refused."""
    done = []
    for inside in (True, False):
        model = network()
        ddp: Any = DistributedDataParallel(torch.compile(model, backend="eager") if inside else model)
        ddp = ddp if inside else torch.compile(ddp, backend="eager")
        optimizer, schedule = optimizer_of(Run("memsgd(topk(0.1))"), model)
        thinwire.attach(ddp, thinwire.parse("memsgd(topk(0.1))"), optimizer)
        for step in range(5):
            optimizer.zero_grad()
            x, y = batch(step, rank)
            nn.functional.cross_entropy(ddp(x), y).backward()
            optimizer.step()
            schedule.step()
        done.append({name: p.detach() for name, p in model.named_parameters()})
    torch._dynamo.config.optimize_ddp = "python_reducer"
    ddp = DistributedDataParallel(network())
    assert "python_reducer" in refusal(ddp, thinwire.EF21(thinwire.TopK(0.1)), sgd(ddp))
    return done


def test_compiled_modules_work_and_the_python_reducer_is_refused(tmp_path: Path) -> None:
    expected = train_simulated(Run("memsgd(topk(0.1))", steps=5), 2)
    for done in run_world(2, compiled, folder=tmp_path):
        for trained in done:
            assert not list(differences(expected, trained))


def uneven(rank: int, size: int, rule: str) -> tuple[dict[str, torch.Tensor], int, float]:
    """Rank 1 has 4 batches, rank 0 has 7: `join` lets rank 1 shadow the rest with zero gradients."""
    model = network()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    optimizer = sgd(model)
    handle = thinwire.attach(ddp, thinwire.parse(rule), optimizer)
    with ddp.join():
        for step in range(7 if rank == 0 else 4):
            optimizer.zero_grad()
            x, y = batch(step, rank)
            nn.functional.cross_entropy(ddp(x), y).backward()
            optimizer.step()
    state = handle.state_dict()
    return {name: p.detach() for name, p in model.named_parameters()}, state["step"], handle.ledger.summary()["steps"]


def uneven_simulated(rule: str) -> dict[str, torch.Tensor]:
    model = network()
    named = dict(model.named_parameters())
    simulation = thinwire.Simulation(named, thinwire.parse(rule), 2, optimizer=sgd(model))
    for step in range(7):
        gradients = []
        for worker in range(2):
            x, y = batch(step, worker)
            grads = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(named.values()))
            gradients.append(dict(zip(named, grads, strict=True)))
        if step >= 4:
            gradients[1] = {name: torch.zeros_like(g) for name, g in gradients[1].items()}
        simulation.step(gradients)
    return {name: p.detach() for name, p in named.items()}


def uneven_with_nan(rank: int, size: int) -> tuple[int, int]:
    """Rank 0's sixth gradient is not finite, when rank 1 has run out of data: rank 0 drops the step, both go on."""
    model = network()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    optimizer = sgd(model)
    handle = thinwire.attach(ddp, thinwire.parse("memsgd(topk(0.1))"), optimizer)
    caught = 0
    with ddp.join():
        for step in range(8 if rank == 0 else 4):
            optimizer.zero_grad()
            x, y = batch(step, rank)
            try:
                (nn.functional.cross_entropy(ddp(x), y) * (float("nan") if step in (5, 7) else 1.0)).backward()
            except NonFiniteGradient:
                caught += 1
                continue
            optimizer.step()
    return handle.state_dict()["step"], caught


def test_join_survives_a_nan_while_ranks_have_run_out_of_data(tmp_path: Path) -> None:
    assert run_world(2, uneven_with_nan, folder=tmp_path) == [(6, 2), (6, 0)]


@pytest.mark.parametrize("rule", ["memsgd(topk(0.1))", "ef21(topk(0.1))"])
def test_join_with_uneven_inputs_sends_the_memory_of_finished_ranks(rule: str, tmp_path: Path) -> None:
    expected = uneven_simulated(rule)
    for trained, step, booked in run_world(2, uneven, rule, folder=tmp_path):
        assert not list(differences(expected, trained))
        assert step == booked == 7


def strangers(rank: int, size: int) -> str:
    """Ranks whose steps drifted apart, as after loading different checkpoints."""
    ddp = DistributedDataParallel(network())
    handle = thinwire.attach(ddp, thinwire.EF21(thinwire.TopK(0.1)), sgd(ddp))
    handle.channel.step = 5 * rank
    with pytest.raises(WireError) as caught:
        ddp(batch(0, rank)[0]).sum().backward()
    return str(caught.value)


def test_ranks_at_different_steps_get_a_clear_error(tmp_path: Path) -> None:
    for message in run_world(2, strangers, folder=tmp_path):
        assert "drifted apart in step: rank 0 has 0, rank 1 has 5" in message
        assert "same checkpoint" in message


def bereaved(rank: int, size: int) -> str:
    """Rank 1 dies in the middle of training."""
    ddp = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    optimizer = sgd(ddp)
    thinwire.attach(ddp, thinwire.MemSGD(thinwire.TopK(0.1)), optimizer)
    for step in range(50):
        optimizer.zero_grad()
        if rank == 1 and step == 3:
            import os

            os._exit(0)
        try:
            nn.functional.cross_entropy(ddp(batch(step, rank)[0]), batch(step, rank)[1]).backward()
        except RuntimeError as error:
            return f"step {step}: {error}"
        optimizer.step()
    return "went on alone"


def test_a_killed_worker_is_an_error_not_a_hang(tmp_path: Path) -> None:
    with pytest.raises((AssertionError, FileNotFoundError)):
        run_world(2, bereaved, folder=tmp_path)
    (result,) = tmp_path.glob("*/result-0")
    assert "step 3" in torch.load(result, weights_only=False)

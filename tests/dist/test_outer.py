"""Outer steps of real ranks: what a simulation computes, sites with DDP inside, resuming, and what is refused."""

from __future__ import annotations

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
from thinwire.errors import AttachError, ConfigError, NonFiniteUpdate, StateError
from thinwire.training import RunConfig, train

pytestmark = pytest.mark.dist

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("memsgd(topk(0.1))", {}),
    ("memsgd(chunktopk(0.1, chunk=64, values=bins2))", {"lr": 0.7}),
    ("ef21(topk(0.1))", {"momentum": 0.9, "lr": 0.5}),
    ("memsgd(randk(0.2))", {"fragments": 3, "delay": 3, "alpha": 0.5}),
    ("plain(identity())", {"fragments": 2, "delay": 1}),
]
STEPS, EVERY = 13, 4


def trained_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, worker: int) -> None:
    optimizer.zero_grad()
    x, y = batch(step, worker)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def numbers(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def trained(rank: int, size: int) -> list[tuple[dict[str, Tensor], float]]:
    results = []
    for rule, settings in SETTINGS:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        handle = thinwire.attach_outer(model, optimizer, rule, every=EVERY, seed=5, **settings)
        for step in range(STEPS):
            trained_step(model, optimizer, step, rank)
        results.append((numbers(model), handle.ledger.summary()["sent_bytes"]))
    return results


def simulated(workers: int, rule: str, settings: dict[str, Any]) -> tuple[list[dict[str, Tensor]], float]:
    models = [network() for _ in range(workers)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in models]
    parameters = [dict(model.named_parameters()) for model in models]
    simulation = thinwire.OuterSimulation(parameters, rule, every=EVERY, seed=5, **settings)
    for step in range(STEPS):
        for worker, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            trained_step(model, optimizer, step, worker)
        simulation.step()
    return [numbers(model) for model in models], simulation.ledger.summary()["sent_bytes"]


def test_a_simulation_is_bitwise_what_processes_compute(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    by_rank = run_world(2, trained, folder=tmp_path)
    for place, (rule, settings) in enumerate(SETTINGS):
        alone, sent = simulated(2, rule, settings)
        for rank in range(2):
            real, real_sent = by_rank[rank][place]
            assert all(torch.equal(real[name], tensor) for name, tensor in alone[rank].items()), (rule, settings)
            assert real_sent == sent


def sites(rank: int, size: int) -> dict[str, Tensor]:
    """Two sites of two ranks: DDP inside, each rank with its counterpart at the other site."""
    inside = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    ddp = DistributedDataParallel(network(), process_group=inside)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    handle = thinwire.attach_outer(ddp, optimizer, "memsgd(topk(0.1))", every=EVERY, group=across)
    for step in range(2 * EVERY):
        trained_step(ddp, optimizer, step, rank)
    assert (handle.ledger.workers, handle.ledger.steps) == (2, 2)
    return numbers(ddp.module)


def test_ddp_inside_a_site_and_outer_steps_between(tmp_path: Path) -> None:
    """All four ranks end alike, at what a simulation of two workers with both ranks' mean gradients computes."""
    torch.set_num_threads(1)
    results = run_world(4, sites, folder=tmp_path)
    models = [network() for _ in range(2)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in models]
    points = [dict(model.named_parameters()) for model in models]
    simulation = thinwire.OuterSimulation(points, "memsgd(topk(0.1))", every=EVERY)
    for step in range(2 * EVERY):
        for site, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            shares = []
            for rank in (2 * site, 2 * site + 1):
                model.zero_grad()
                x, y = batch(step, rank)
                nn.functional.cross_entropy(model(x), y).backward()
                shares.append([p.grad / 2 for p in model.parameters() if p.grad is not None])
            for p, one, two in zip(model.parameters(), *shares, strict=True):
                p.grad = one + two
            optimizer.step()
        simulation.step()
    for result in results:
        assert all(torch.equal(result[name], tensor) for name, tensor in numbers(models[0]).items())


def resumed(rank: int, size: int, folder: str) -> list[bool]:
    """Stop in the middle of a window, with an exchange in flight; go on in a fresh model and handle."""
    same = []
    for settings in ({}, {"fragments": 2, "delay": 3, "momentum": 0.5}):
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        handle = thinwire.attach_outer(model, optimizer, "memsgd(topk(0.1))", every=EVERY, **settings)
        for step in range(6):
            trained_step(model, optimizer, step, rank)
        saved = [{k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict(), handle.state_dict()]
        torch.save(saved, f"{folder}/saved-{rank}.pt")
        saved = torch.load(f"{folder}/saved-{rank}.pt", weights_only=True)
        for step in range(6, STEPS):
            trained_step(model, optimizer, step, rank)
        other = network()
        second = torch.optim.AdamW(other.parameters(), lr=0.01)
        fresh = thinwire.attach_outer(other, second, "memsgd(topk(0.1))", every=EVERY, **settings)
        with pytest.raises(StateError, match="load it before this state"):
            fresh.load_state_dict(saved[2])
        other.load_state_dict(saved[0])
        second.load_state_dict(saved[1])
        fresh.load_state_dict(saved[2])
        for step in range(6, STEPS):
            trained_step(other, second, step, rank)
        mine, theirs = numbers(model), numbers(other)
        same.append(all(torch.equal(mine[name], theirs[name]) for name in mine))
        fresh.detach()
        same.append(fresh.state_dict()["step"] == STEPS)
    return same


def test_resuming_in_the_middle_of_a_window_is_bitwise(tmp_path: Path) -> None:
    for same in run_world(2, resumed, str(tmp_path), folder=tmp_path):
        assert same == [True] * 4


def refused(rank: int, size: int) -> dict[str, str]:
    found = {}

    def refusal(model: nn.Module, optimizer: Any, **options: Any) -> str:
        with pytest.raises((AttachError, ConfigError)) as caught:
            thinwire.attach_outer(model, optimizer, **{"rule": "memsgd(topk(0.1))", "every": 3, **options})
        return str(caught.value)

    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    found["other H"] = refusal(model, optimizer, every=3 + rank)
    found["H below 1"] = refusal(model, optimizer, every=rank)
    found["other rate"] = refusal(model, optimizer, lr=1.0 - 0.1 * rank)
    found["another model's optimizer"] = refusal(model, torch.optim.AdamW(network().parameters()))
    found["some parameters"] = refusal(model, torch.optim.AdamW(list(model.parameters())[:4]))
    apart = network()
    with torch.no_grad():
        next(apart.parameters()).add_(rank)
    found["apart"] = refusal(apart, torch.optim.AdamW(apart.parameters()))
    handle = thinwire.attach_outer(model, optimizer, "memsgd(topk(0.1))", every=1)
    found["twice"] = refusal(model, optimizer)
    with torch.no_grad():
        next(model.parameters())[0, 0] = torch.nan if rank else 0.0
    with pytest.raises(NonFiniteUpdate) as caught:
        optimizer.step()
    found["nan"] = str(caught.value)
    assert handle.detach(flush=False)["step"] == 1
    again = network()
    halves = [torch.optim.SGD(list(again.parameters())[i::2], lr=0.1) for i in range(2)]
    thinwire.attach_outer(again, halves, "memsgd(topk(0.1))", every=3)
    return found


def test_every_rank_is_told_what_is_wrong(tmp_path: Path) -> None:
    words = {
        "other H": "every: rank 0 has 3, rank 1 has 4",
        "H below 1": "every must be a whole number of steps, at least 1, got 0",
        "other rate": "lr: rank 0 has 1.0, rank 1 has 0.9",
        "another model's optimizer": "does not hold 6 of the model's 6 parameters",
        "some parameters": "does not hold 2 of the model's 6 parameters, such as '4.weight'",
        "apart": "the start of parameter '0.weight'",
        "twice": "takes outer steps already",
        "nan": "rank 1 holds NaN or infinity in parameter '0.weight' at outer step 0",
    }
    for found in run_world(2, refused, folder=tmp_path):
        for case, text in words.items():
            assert text in found[case], found[case]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_the_command_line_takes_outer_steps(tmp_path: Path) -> None:
    """Compared with an all-reduce at every step: a window of 5 alone saves a factor of 5."""
    setting = {"workers": 2, "engine": "ddp", "steps": 10, "evaluations": 1, "optimizer": "adamw", "lr": 0.003}
    configs = [RunConfig.of("digits", "plain(identity())", every=every, **setting) for every in (5, 2)]
    five, two = (run.end for run in train(configs, tmp_path / "r.jsonl"))
    assert five["dense_fp32_bytes"] == two["dense_fp32_bytes"] > 0
    assert 2 * two["sent_bytes"] == 5 * five["sent_bytes"] > 0

"""Parameters whose memory lies in another order: `channels_last` and transposed ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.dist.training import differences
from tests.dist.world import run_world
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.moments import watch

pytestmark = pytest.mark.dist

RULES = ["memsgd(randk(0.2))", "plain(qsgd(4))", "vgc(1.0)", "hybrid(0.001)", "ef21(topk(0.2))", "memsgd(topk(0.2))"]
STEPS = 5


class Network(nn.Module):
    """A convolution in `channels_last`, one in one dimension less, a linear layer whose weight is stored transposed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.point = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 1)
        self.linear = nn.Linear(4 * 36, 5)
        self.to(memory_format=torch.channels_last)
        self.linear.weight = nn.Parameter(self.linear.weight.detach().t().contiguous().t())

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.point(self.conv(x).relu()).relu().flatten(1))


def loss(model: nn.Module, step: int, worker: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + worker)
    x, y = torch.randn(6, 3, 8, 8, generator=generator), torch.randint(5, (6,), generator=generator)
    return nn.functional.cross_entropy(model(x.to(memory_format=torch.channels_last)), y)


def trained(rank: int, size: int, states: dict[str, Any]) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    answers = []
    for rule, options in [*((rule, {}) for rule in RULES), (RULES[-1], {"gradient_as_bucket_view": True})]:
        model = Network()
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.002, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        chosen = thinwire.parse(rule)
        handle = thinwire.attach(ddp, chosen, optimizer, moments=watch(ddp, rule=chosen))
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(ddp, step, rank).backward()
            optimizer.step()
        parameters = {name: p.detach().contiguous() for name, p in model.named_parameters()}
        handle.load_state_dict(states[rule])  # saved by parameters that were contiguous
        answers.append((parameters, handle.state_dict()["slots"]))
    return answers


def simulated(rule: str) -> dict[str, Tensor]:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    simulation = thinwire.Simulation(dict(model.named_parameters()), rule, 2, optimizer=optimizer)
    moments = watch(model, rule=rule)
    for step in range(STEPS):
        gradients, squares = [], []
        for worker in range(2):
            model.zero_grad()
            loss(model, step, worker).backward()
            gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
            squares.append(moments.take())
        simulation.step(gradients, squares)
    return {name: p.detach().contiguous() for name, p in model.named_parameters()}


def state_of_contiguous(rule: str) -> dict[str, Any]:
    """Numbers 0, 1, 2, … in logical order in every slot."""
    shapes = {name: p.detach().contiguous() for name, p in Network().named_parameters()}
    state = thinwire.Simulation(shapes, rule, 2).state_dict()
    slots = {
        key: torch.arange(math.prod(slot.shape), dtype=slot.dtype).view(slot.shape)
        for key, slot in state["slots"].items()
    }
    return {**state, "slots": slots}


def test_channels_last_and_transposed_parameters_are_counted_in_logical_order(tmp_path: Path) -> None:
    """VGC compared r of one weight with v of another, and random coordinates were others than in simulation."""
    states = {rule: state_of_contiguous(rule) for rule in RULES}
    expected = {rule: simulated(rule) for rule in RULES}
    for answers in run_world(2, trained, states, folder=tmp_path):
        for rule, (parameters, slots) in zip([*RULES, RULES[-1]], answers, strict=True):
            assert not list(differences(expected[rule], parameters)), rule
            for key, slot in slots.items():
                assert torch.equal(slot, states[rule]["slots"][key]), (rule, key)

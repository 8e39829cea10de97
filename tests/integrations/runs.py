"""What a framework's run is held against: the plain DDP loop with the same rule, on the batches that the run saw."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.errors import AttachError

EXAMPLES = Path(__file__).parents[2] / "examples"
Given = tuple[tuple[Any, ...], dict[str, Any], Tensor]
"""Of one call of a model: its arguments, and the state of the random generator, from which dropout draws."""


def example(name: str) -> dict[str, Any]:
    """What an example defines; its last lines, which run it, are left out."""
    return runpy.run_path(str(EXAMPLES / f"{name}_digits.py"))


@contextmanager
def recorded() -> Iterator[tuple[list[Given], list[Tensor]]]:
    """What DDP models are given, and what their outputs are held against."""
    given: list[Given] = []
    targets: list[Tensor] = []
    forward, cross_entropy = DistributedDataParallel.forward, nn.functional.cross_entropy

    def watched(self: DistributedDataParallel, *inputs: Any, **kwargs: Any) -> Any:
        given.append((inputs, kwargs, torch.get_rng_state()))
        return forward(self, *inputs, **kwargs)

    def compared(output: Tensor, target: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
        targets.append(target)
        return cross_entropy(output, target, *rest, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DistributedDataParallel, "forward", watched)
        patch.setattr(nn.functional, "cross_entropy", compared)
        yield given, targets


def plain(
    model: nn.Module, rule: str, rate: float, losses: Iterator[Callable[[DistributedDataParallel], Tensor]]
) -> list[Tensor]:
    """The parameters after the loop that a user would write by hand; the model is as it was before training."""
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=rate)
    thinwire.attach(ddp, rule, optimizer)
    for loss in losses:
        optimizer.zero_grad()
        loss(ddp).backward()
        optimizer.step()
    return numbers(model)


def simulated(epochs: int) -> tuple[nn.Module, thinwire.Simulation]:
    """What `examples/ray_digits.py` must arrive at: the same steps of its two ranks in one process, without DDP."""
    torch.manual_seed(0)
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = images.float() / 16
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    parameters = dict(model.named_parameters())
    simulation = thinwire.Simulation(parameters, "memsgd(topk(0.01))", 2, optimizer=optimizer)
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for rows in zip(*(order[rank::2].split(64) for rank in range(2)), strict=True):
            gradients = []
            for own in rows:
                loss = nn.functional.cross_entropy(model(images[own]), labels[own])
                values = torch.autograd.grad(loss, list(parameters.values()))
                gradients.append(dict(zip(parameters, values, strict=True)))
            simulation.step(gradients)
    return model, simulation


def numbers(model: nn.Module) -> list[Tensor]:
    """A copy of the parameters."""
    return [parameter.detach().clone() for parameter in model.parameters()]


def check_same(a: list[Tensor], b: list[Tensor]) -> None:
    """Bitwise."""
    assert len(a) == len(b) > 0
    assert all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


def check_states(a: thinwire.Handle, b: thinwire.Handle) -> None:
    """Whether two handles are at one moment of one run, with the same memories, and those not empty."""
    first, second = a.state_dict(), b.state_dict()
    slots, others = first.pop("slots"), second.pop("slots")
    assert first == second
    assert slots.keys() == others.keys()
    assert all(torch.equal(slots[key], others[key]) for key in slots)
    assert any(f"/rank{a.channel.rank}/" in key and slots[key].count_nonzero() for key in slots)


@contextmanager
def refused_with_adam() -> Iterator[None]:
    """A rule with an Adam of its own beside another one: an error on every rank, whatever the framework."""
    with pytest.raises(AttachError, match="applies momentum itself, and the optimizer keeps gradients"):
        yield

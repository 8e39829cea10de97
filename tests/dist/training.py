"""A small training run that both engines can do: under DDP in one process a worker, or simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.moments import watch
from thinwire.updates import NewtonSchulz, Sign, UpdateOptimizer

Parameters = dict[str, Tensor]


def network() -> nn.Module:
    """Weights and biases of several sizes, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(step: int, worker: int, micro: int = 0) -> tuple[Tensor, Tensor]:
    """Each worker's own data, with a drift that makes the workers differ."""
    generator = torch.Generator().manual_seed(10_000 * step + 100 * worker + micro)
    return torch.randn(6, 12, generator=generator) + 0.4 * worker, torch.randint(4, (6,), generator=generator)


@dataclass(frozen=True)
class Run:
    """One run's settings; fields that are functions must live in a module, so that a spawned process finds them."""

    rule: str
    steps: int = 20
    accumulate: int = 1
    groups: bool = False
    clip: float | None = None
    dtype: torch.dtype = torch.float32
    decay_at: tuple[int, ...] = (7, 13)
    ddp: dict[str, Any] = field(default_factory=lambda: {"bucket_cap_mb": 0.001})
    network: Callable[[], nn.Module] = network
    exchange: str | None = None
    muon: bool = False
    """Weights by Newton-Schulz, biases by their signs."""


def optimizer_of(run: Run, model: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """SGD with a step decay, and two groups with rates of their own where the run asks for them; with momentum, unless
    the rule brings it."""
    trained = [p for p in model.parameters() if p.requires_grad]
    biases, weights = [p for p in trained if p.ndim == 1], [p for p in trained if p.ndim > 1]
    groups = [{"params": weights}, {"params": biases, "lr": 0.02}] if run.groups else [{"params": trained}]
    if run.muon:
        groups = [{"params": weights}, {"params": biases, "lr": 0.02, "update": Sign()}]
    momentum = 0.0 if getattr(thinwire.parse(run.rule), "has_momentum", False) else 0.9
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=momentum)
    muon = partial(UpdateOptimizer, update=NewtonSchulz(), lr=0.1, weight_decay=0.1)
    optimizer = muon(groups) if run.muon else sgd(groups)
    return optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, list(run.decay_at), gamma=0.3)


def loss_of(model: nn.Module, run: Run, step: int, worker: int, micro: int) -> Tensor:
    x, y = batch(step, worker, micro)
    return nn.functional.cross_entropy(model(x.to(run.dtype)).float(), y) / run.accumulate


def train_ddp(
    rank: int, run: Run, *, resume: tuple[int, Any] | None = None, until: int | None = None
) -> tuple[Parameters, thinwire.Handle, torch.optim.Optimizer]:
    """Train under DDP from `resume` = (step, saved) to `until`; gives the parameters, the handle and the optimizer."""
    model = run.network().to(run.dtype)
    ddp = DistributedDataParallel(model, **run.ddp)
    optimizer, schedule = optimizer_of(run, model)
    rule = thinwire.parse(run.rule)
    handle = thinwire.attach(ddp, rule, optimizer, moments=watch(ddp, rule=rule), exchange=run.exchange)
    start = 0
    if resume is not None:
        start = resume[0]
        model.load_state_dict(resume[1]["model"])
        optimizer.load_state_dict(resume[1]["optimizer"])
        schedule.load_state_dict(resume[1]["schedule"])
        handle.load_state_dict(resume[1]["thinwire"])
    for step in range(start, run.steps if until is None else until):
        optimizer.zero_grad()
        for micro in range(run.accumulate - 1):
            with ddp.no_sync():
                loss_of(ddp, run, step, rank, micro).backward()
        loss_of(ddp, run, step, rank, run.accumulate - 1).backward()
        if run.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), run.clip)
        optimizer.step()
        schedule.step()
    handle.saved = {  # type: ignore[attr-defined]
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "thinwire": handle.state_dict(),
    }
    return {name: p.detach().clone() for name, p in model.named_parameters()}, handle, optimizer


def train_simulated(run: Run, workers: int) -> Parameters:
    """The same run with all workers in this process."""
    model = run.network().to(run.dtype)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer, schedule = optimizer_of(run, model)
    rule = thinwire.parse(run.rule)
    simulation = thinwire.Simulation(trained, rule, workers, optimizer=optimizer, exchange=run.exchange or "gather")
    moments = watch(model, rule=rule)
    for step in range(run.steps):
        gradients, squares = [], []
        for worker in range(workers):
            gradients.append(_gradients(model, trained, run, step, worker))
            squares.append(moments.take())
        result = simulation.exchange(gradients, moments=squares)
        for name, parameter in trained.items():
            parameter.grad = result.get(name)
        if run.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), run.clip)
        optimizer.step()
        schedule.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def _gradients(model: nn.Module, trained: Parameters, run: Run, step: int, worker: int) -> Parameters:
    """One worker's accumulated gradient, added up as autograd does it."""
    model.zero_grad()
    for micro in range(run.accumulate):
        loss_of(model, run, step, worker, micro).backward()
    return {name: p.grad.clone() for name, p in trained.items() if p.grad is not None}


def differences(a: Parameters, b: Parameters) -> Iterator[str]:
    """Names of parameters that are not bitwise equal."""
    yield from (name for name in a if not torch.equal(a[name], b[name]))

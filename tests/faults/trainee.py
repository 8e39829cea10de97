"""A small network in training under DDP and thinwire, one step at a time, and the undisturbed run to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from tests.dist.training import Parameters, Run, loss_of, network, optimizer_of
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.moments import watch

RULES = ("memsgd(topk(0.1))", "ef21(topk(0.1))", "vgc(1.0)", "memsgd(threshold(0.003))")
VARIABLE = (RULES[2], RULES[3])
"""Rules whose messages differ in size."""


class Trainee:
    """One rank's part of a run."""

    def __init__(self, rank: int, rule: str) -> None:
        self.rank, self._run, self.step_number = rank, Run(rule), 0
        self.model = network()
        self.ddp = DistributedDataParallel(self.model, **self._run.ddp)
        self.optimizer, self.schedule = optimizer_of(self._run, self.model)
        chosen = thinwire.parse(rule)
        self.handle = thinwire.attach(self.ddp, chosen, self.optimizer, moments=watch(self.ddp, rule=chosen))

    def step(self, spoiled: Callable[[Tensor], Tensor] = lambda loss: loss) -> None:
        """Take a step on the next batch; one that raises has used its batch up."""
        number, self.step_number = self.step_number, self.step_number + 1
        self.optimizer.zero_grad()
        spoiled(loss_of(self.ddp, self._run, number, self.rank, 0)).backward()
        self.optimizer.step()
        self.schedule.step()

    def skip(self) -> None:
        """Leave a batch out."""
        self.step_number += 1

    def parameters(self) -> Parameters:
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def saved(self) -> dict[str, Any]:
        """All that a restart needs."""
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "thinwire": self.handle}
        return {"number": self.step_number, **{name: part.state_dict() for name, part in parts.items()}}

    def load_(self, saved: dict[str, Any]) -> None:
        """Go on from there."""
        self.step_number = saved["number"]
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])
        self.handle.load_state_dict(saved["thinwire"])


@lru_cache(maxsize=64)
def undisturbed(rank: int, rule: str, batches: int, without: tuple[int, ...] = ()) -> Parameters:
    """The parameters after so many batches, some of them left out. Every rank asks alike: it trains."""
    if batches == 0:
        return Trainee(rank, rule).parameters()
    trainee = _course(rank, rule) if not without else Trainee(rank, rule)
    while trainee.step_number < batches:
        trainee.skip() if trainee.step_number in without else trainee.step()
        if not without:
            _past(rank, rule)[trainee.step_number] = trainee.parameters()
    return _past(rank, rule)[batches] if not without else trainee.parameters()


@lru_cache(maxsize=64)
def _course(rank: int, rule: str) -> Trainee:
    """One run without any fault, continued as far as somebody asks."""
    return Trainee(rank, rule)


@lru_cache(maxsize=64)
def _past(rank: int, rule: str) -> dict[int, Parameters]:
    return {}


def same(a: Parameters, b: Parameters) -> bool:
    """Whether all are equal bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)

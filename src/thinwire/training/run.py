"""A run in progress, one step at a time: simulated in this process, or as one rank of a real process group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

import thinwire
from thinwire.engines.needs import check_one_backward
from thinwire.exchange import Exchange, Group, Link, emulated
from thinwire.feedback import Rule
from thinwire.moments import watch
from thinwire.training.admission import needs_moments
from thinwire.training.config import OPTIMIZERS, TORCH_METHODS, RunConfig, rule_in, set_learning_rate_
from thinwire.training.gradients import ByName, SeparatePasses, SimulatedWorkers
from thinwire.training.joined_pass import JoinedPass, can_join
from thinwire.training.recorder import Totals
from thinwire.training.tasks import Batch, Task
from thinwire.training.torch_hooks import ONE_BUCKET_MB, POWERSGD_START, powersgd_state, register, wrapped


class TrainingRun(ABC):
    """A model, its optimizer and the exchange between its workers, as the training loop drives them."""

    def __init__(self, config: RunConfig, task: Task) -> None:
        self.config, self.task = config, task
        self.model = task.model(config.seed).to(config.device)
        self.optimizer = OPTIMIZERS[config.optimizer](self.model.parameters(), config.lr, config.weight_decay)
        self._done = 0

    def step(self, step: int) -> None:
        """Train one step on every worker's batch."""
        set_learning_rate_(self.optimizer, self.config.schedule, self.config.lr, step, self.config.steps)
        self._step(step)
        self._done += 1

    @abstractmethod
    def _step(self, step: int) -> None:
        """Compute, exchange, and move the parameters."""

    @abstractmethod
    def settle(self) -> None:
        """Bring the model into the state that is evaluated."""

    @abstractmethod
    def take_losses(self) -> list[float]:
        """The mean loss over workers of each step since the last call; every rank must call it together."""

    @abstractmethod
    def traffic(self) -> Totals:
        """What one worker has sent so far."""

    def explained(self) -> str | None:
        """What a method that chooses has chosen, and why; None of any other."""
        return None

    def _batch(self, step: int, worker: int) -> Batch:
        return self.task.batch(self.config.seed, step, worker, self.config.workers, self.config.batch)

    def _allreduced(self) -> Totals:
        """What one worker has sent by torch's all-reduce of every number at every step."""
        numel = sum(parameter.numel() for parameter in self.model.parameters())
        size = TORCH_METHODS[self.config.method].dtype.itemsize
        return Totals.of_allreduce(size * numel, numel, self.config.workers, self._done)


# ----------------------------------------------------------------------------------------------------------- simulated


@final
class SimulatedRun(TrainingRun):
    """n workers' gradients computed in this process: they share one model, since they always hold equal parameters."""

    def __init__(self, config: RunConfig, task: Task) -> None:
        super().__init__(config, task)
        self.parameters = dict(self.model.named_parameters())
        self._losses: list[Tensor] = []
        rule = None if config.method in TORCH_METHODS else thinwire.parse(config.method)
        self._simulation = None if rule is None else self._simulate(rule)
        self._workers = self._employ(rule)

    def _simulate(self, rule: Rule) -> thinwire.Simulation:
        simulation = thinwire.Simulation(
            self.parameters, rule, self.config.workers, optimizer=self.optimizer, seed=self.config.seed
        )
        check_one_backward(simulation.channels[0])
        return simulation

    def _employ(self, rule: Rule | None) -> SimulatedWorkers:
        """Workers that compute together on a GPU, whose time small batches waste, and else one by one."""
        config = self.config
        if config.device == "cuda" and can_join(self.model):
            return JoinedPass(self.model, self.task, needs_moments(rule, self.model), self._batches(0), config.seed)
        return SeparatePasses(self.model, self.task, rule, config.workers, config.seed)

    def _batches(self, step: int) -> list[Batch]:
        return [self._batch(step, worker) for worker in range(self.config.workers)]

    def _step(self, step: int) -> None:
        computed = self._workers.compute(step, self._batches(step))
        self._losses.append(torch.stack([one.loss for one in computed]))
        gradients = [one.gradient for one in computed]
        if self._simulation is None:
            self._allreduce(gradients, TORCH_METHODS[self.config.method].dtype)
        elif moments := [one.moment for one in computed if one.moment is not None]:
            least = {name: min(one.terms[name] for one in computed) for name in computed[0].terms}
            self._simulation.step(gradients, moments, terms=least)
        else:
            self._simulation.step(gradients)
        if self.config.device == "cuda":
            torch.cuda.synchronize()  # the step is over, and so is its time, when the GPU has done it

    def _allreduce(self, gradients: Sequence[ByName], dtype: torch.dtype) -> None:
        """What torch's all-reduce computes: every worker divides by n, the shares are added in `dtype`."""
        shares = (
            torch._foreach_div([gradient[name].to(dtype) for name in self.parameters], len(gradients))
            for gradient in gradients
        )
        mean = next(shares)
        for share in shares:
            torch._foreach_add_(mean, share)
        for parameter, gradient in zip(self.parameters.values(), mean, strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        self.optimizer.step()

    def settle(self) -> None:
        self._workers.settle()

    def take_losses(self) -> list[float]:
        taken, self._losses = self._losses, []
        return [_mean(losses) for losses in torch.stack(taken).tolist()]

    def traffic(self) -> Totals:
        return Totals.of_ledger(self._simulation.ledger.summary()) if self._simulation else self._allreduced()


# --------------------------------------------------------------------------------------------------------- distributed


@final
class DistributedRun(TrainingRun):
    """One rank's share of a run, trained with DDP and a comm hook; all ranks make the same calls in the same order."""

    def __init__(self, config: RunConfig, task: Task) -> None:
        super().__init__(config, task)
        cap = ONE_BUCKET_MB if config.method == "powersgd" else None
        self.ddp: Any = self.model if config.every else wrapped(self.model, cap)
        self._losses: list[float] = []
        self._handle: Any = None
        self._powersgd: Any = None
        self._register()

    def _register(self) -> None:
        """Give the model the method, behind an emulated link where the run has one."""
        config = self.config
        link = None if config.rate is None else Link(config.rate)
        carrier: Exchange | None = None if link is None else emulated(Group(), link)
        if config.every:
            self._handle = thinwire.attach_outer(
                self.model, self.optimizer, config.method, every=config.every, exchange=carrier, seed=config.seed
            )
        elif config.method in TORCH_METHODS:
            self._powersgd = powersgd_state(1, config.seed) if config.method == "powersgd" else None
            register(self.ddp, config.method, link, self._powersgd)
        else:
            rule = rule_in(config.method)
            moments = watch(self.ddp, rule=rule) if needs_moments(rule, self.model) else None
            self._handle = thinwire.attach(
                self.ddp, config.method, self.optimizer, moments=moments, exchange=carrier, seed=config.seed
            )

    def _step(self, step: int) -> None:
        self.optimizer.zero_grad()
        loss = self.task.loss(self.ddp, self._batch(step, dist.get_rank()))
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self._losses.append(float(loss.detach()))

    def settle(self) -> None:
        """DDP gives every rank the buffers of rank 0 at each step; rank 0 evaluates. (Between outer steps: its own.)"""

    def take_losses(self) -> list[float]:
        mine = torch.tensor(self._losses, dtype=torch.float64)
        self._losses = []
        everyone = [torch.empty_like(mine) for _ in range(self.config.workers)]
        dist.all_gather(everyone, mine)
        return [_mean(losses) for losses in zip(*(each.tolist() for each in everyone), strict=True)]

    def traffic(self) -> Totals:
        if self.config.every:
            numel = sum(parameter.numel() for parameter in self.model.parameters())
            dense = Totals.of_allreduce(4 * numel, numel, self.config.workers, self._done)
            booked = Totals.of_ledger(self._handle.ledger.summary())
            return replace(booked, dense_fp32=dense.dense_fp32, dense_fp16=dense.dense_fp16)
        if self._handle is not None:
            return Totals.of_ledger(self._handle.ledger.summary())
        return self._allreduced() if self._powersgd is None else self._powersgd_traffic()

    def explained(self) -> str | None:
        auto = None if self.config.every or self._handle is None else self._handle.auto
        return None if auto is None else str(auto.explain())

    def _powersgd_traffic(self) -> Totals:
        dense = self._allreduced()
        numel = sum(parameter.numel() for parameter in self.model.parameters())
        numbers = min(self._done, POWERSGD_START) * numel + self._powersgd.total_numel_after_compression
        sent = Totals.of_allreduce(4 * numbers, numel, self.config.workers, 1).sent
        return Totals(sent, dense.dense_fp32, dense.dense_fp16)


def _mean(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses)

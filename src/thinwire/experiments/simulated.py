"""The simulated run: n workers' gradients computed one after the other in this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import final

import torch
from torch import Tensor

import thinwire
from thinwire.experiments.config import RunConfig
from thinwire.experiments.optimizer import OPTIMIZERS, set_learning_rate_
from thinwire.experiments.peers import PEERS
from thinwire.experiments.run import Run
from thinwire.experiments.totals import Totals
from thinwire.moments import Moments, watch
from thinwire.problems.task import Task

Gradients = Sequence[dict[str, Tensor]]
PEER_DTYPE = {"dense": torch.float32, "fp16": torch.float16}


@final
class SimulatedRun(Run):
    """All workers share one model, since they always hold equal parameters."""

    def __init__(self, config: RunConfig, task: Task) -> None:
        self.config, self.task = config, task
        self.model = task.model(config.seed)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = OPTIMIZERS[config.optimizer](self.parameters.values(), config.lr)
        self._losses: list[float] = []
        self._steps = 0
        self._moments: Moments | None = None
        self._simulation = None if config.method in PEERS else self._simulate()

    def _simulate(self) -> thinwire.Simulation:
        rule = thinwire.parse(self.config.method)
        self._moments = watch(self.model, rule=rule)
        return thinwire.Simulation(
            self.parameters, rule, self.config.workers, optimizer=self.optimizer, seed=self.config.seed
        )

    def step(self, step: int) -> None:
        config = self.config
        set_learning_rate_(self.optimizer, config.schedule, config.lr, step, config.steps)
        steps = (self._worker(step, worker) for worker in range(config.workers))
        losses, gradients, moments = zip(*steps, strict=True)
        self._losses.append(sum(losses) / config.workers)
        self._steps += 1
        if self._simulation is not None:
            self._simulation.step(gradients, moments)
        else:
            self._allreduce(gradients, PEER_DTYPE[config.method])

    def _worker(self, step: int, worker: int) -> tuple[float, dict[str, Tensor], dict[str, Tensor]]:
        batch = self.task.batch(self.config.seed, step, worker, self.config.workers, self.config.batch)
        loss = self.task.loss(self.model, batch)
        gradients = torch.autograd.grad(loss, list(self.parameters.values()))
        moments = {} if self._moments is None else self._moments.take()
        return float(loss.detach()), dict(zip(self.parameters, gradients, strict=True)), moments

    def _allreduce(self, gradients: Gradients, dtype: torch.dtype) -> None:
        """What torch's all-reduce computes: every worker divides by n, the shares are added in `dtype`."""
        for name, parameter in self.parameters.items():
            shares = [worker[name].to(dtype) / self.config.workers for worker in gradients]
            parameter.grad = reduce(torch.add, shares).to(parameter.dtype)
        self.optimizer.step()

    def take_losses(self) -> list[float]:
        taken, self._losses = self._losses, []
        return taken

    def traffic(self) -> Totals:
        if self._simulation is not None:
            return Totals.of_ledger(self._simulation.ledger.summary())
        numel = sum(parameter.numel() for parameter in self.parameters.values())
        size = PEER_DTYPE[self.config.method].itemsize
        return Totals.of_allreduce(size * numel, numel, self.config.workers, self._steps)

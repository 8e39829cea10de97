"""The simulated run: n workers' gradients computed in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

import thinwire
from thinwire.engines.needs import check_one_backward
from thinwire.feedback import Rule
from thinwire.training.backward import Backward, ByName, needs_moments
from thinwire.training.config import RunConfig
from thinwire.training.joined_pass import Together, can_join
from thinwire.training.optimizer import OPTIMIZERS, set_learning_rate_
from thinwire.training.passes import OneByOne, Workers
from thinwire.training.peers import PEERS
from thinwire.training.run import Run
from thinwire.training.tasks.task import Batch, Task
from thinwire.training.totals import Totals

PEER_DTYPE = {"dense": torch.float32, "fp16": torch.float16}


@final
class SimulatedRun(Run):
    """All workers share one model, since they always hold equal parameters."""

    def __init__(self, config: RunConfig, task: Task) -> None:
        self.config, self.task = config, task
        self.model = task.model(config.seed).to(config.device)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = OPTIMIZERS[config.optimizer](self.parameters.values(), config.lr, config.weight_decay)
        self._losses: list[Tensor] = []
        self._steps = 0
        rule = None if config.method in PEERS else thinwire.parse(config.method)
        self._simulation = None if rule is None else self._simulate(rule)
        self._workers = self._employ(rule)

    def _simulate(self, rule: Rule) -> thinwire.Simulation:
        simulation = thinwire.Simulation(
            self.parameters, rule, self.config.workers, optimizer=self.optimizer, seed=self.config.seed
        )
        check_one_backward(simulation.channels[0])
        return simulation

    def _employ(self, rule: Rule | None) -> Workers:
        """Workers that compute together on a GPU, whose time small batches waste, and else one by one."""
        config = self.config
        if config.device == "cuda" and can_join(self.model):
            return Together(self.model, self.task, needs_moments(rule, self.model), self._batches(0), config.seed)
        return OneByOne(self.model, Backward(self.model, self.task, rule), config.workers, config.seed)

    def _batches(self, step: int) -> list[Batch]:
        config = self.config
        return [
            self.task.batch(config.seed, step, worker, config.workers, config.batch) for worker in range(config.workers)
        ]

    def step(self, step: int) -> None:
        config = self.config
        set_learning_rate_(self.optimizer, config.schedule, config.lr, step, config.steps)
        computed = self._workers.compute(step, self._batches(step))
        self._losses.append(torch.stack([one.loss for one in computed]))
        self._steps += 1
        gradients = [one.gradient for one in computed]
        if self._simulation is None:
            self._allreduce(gradients, PEER_DTYPE[config.method])
        elif moments := [one.moment for one in computed if one.moment is not None]:
            least = {name: min(one.terms[name] for one in computed) for name in computed[0].terms}
            self._simulation.step(gradients, moments, terms=least)
        else:
            self._simulation.step(gradients)
        if config.device == "cuda":
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
        every = torch.stack(taken).tolist()
        return [sum(losses) / len(losses) for losses in every]

    def traffic(self) -> Totals:
        if self._simulation is not None:
            return Totals.of_ledger(self._simulation.ledger.summary())
        numel = sum(parameter.numel() for parameter in self.parameters.values())
        size = PEER_DTYPE[self.config.method].itemsize
        return Totals.of_allreduce(size * numel, numel, self.config.workers, self._steps)

"""How simulated workers' gradients are computed: each with its own batch, statistics and random numbers, on one model.

`SeparatePasses` takes a forward and backward pass for each worker, `joined_pass` one for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from thinwire.feedback import Rule
from thinwire.moments import watch
from thinwire.training.admission import needs_moments
from thinwire.training.tasks import Batch, Task

ByName = Mapping[str, Tensor]
"""Parameter name -> tensor of its shape."""


@dataclass(frozen=True)
class WorkerGradient:
    """One worker's share of a step."""

    loss: Tensor
    """Its loss, or the mean over workers where they compute together: the record has no more than that."""
    gradient: ByName
    moment: ByName | None
    terms: Mapping[str, int]
    """How many gradients were squared for each moment."""


class SimulatedWorkers(ABC):
    """Workers that share the parameters, since they always hold equal ones, and nothing else."""

    def __init__(self, model: nn.Module, workers: int, seed: int) -> None:
        self._seed = seed
        self._devices = [p.device for p in model.parameters() if p.is_cuda][:1]
        self._generators = [torch.default_generator, *(torch.cuda.default_generators[d.index] for d in self._devices)]
        self._statistics = WorkerStatistics(model, workers)

    def compute(self, step: int, batches: Sequence[Batch]) -> list[WorkerGradient]:
        """Every worker's share of a step; torch's generators are left as they were."""
        with torch.random.fork_rng(devices=self._devices):
            return self._compute(step, batches)

    @abstractmethod
    def _compute(self, step: int, batches: Sequence[Batch]) -> list[WorkerGradient]: ...

    def _draw(self, step: int, worker: int) -> None:
        """Have dropout draw as one worker does at a step."""
        for generator in self._generators:  # torch.manual_seed queues a call for every kind of device
            generator.manual_seed(dropout_seed(self._seed, step, worker))

    def settle(self) -> None:
        """Bring the model into the state that is evaluated."""
        self._statistics.average_()


@final
class SeparatePasses(SimulatedWorkers):
    """One pass after the other, of any model, operation by operation as torch runs it."""

    def __init__(self, model: nn.Module, task: Task, rule: Rule | None, workers: int, seed: int) -> None:
        super().__init__(model, workers, seed)
        self._model, self._task = model, task
        self._parameters = dict(model.named_parameters())
        self._moments = watch(model, rule=rule) if needs_moments(rule, model) else None

    def _compute(self, step: int, batches: Sequence[Batch]) -> list[WorkerGradient]:
        return [self._one(step, worker, batch) for worker, batch in enumerate(batches)]

    def _one(self, step: int, worker: int, batch: Batch) -> WorkerGradient:
        self._statistics.load_(worker)
        self._draw(step, worker)
        computed = self._pass(batch)
        self._statistics.save_(worker)
        return computed

    def _pass(self, batch: Batch) -> WorkerGradient:
        loss = self._task.loss(self._model, batch)
        gradients = torch.autograd.grad(loss, list(self._parameters.values()))
        gradient = dict(zip(self._parameters, gradients, strict=True))
        if self._moments is None:
            return WorkerGradient(loss.detach(), gradient, None, {})
        terms = {name: self._moments.terms(name) for name in self._moments.names}
        return WorkerGradient(loss.detach(), gradient, self._moments.take(), terms)


def dropout_seed(seed: int, step: int, worker: int) -> int:
    """Where torch's generator starts for one worker's pass."""
    return int(np.random.SeedSequence((seed, step, worker)).generate_state(1, np.uint64)[0] >> np.uint64(1))


@final
class WorkerStatistics:
    """The floating buffers of one model (the running statistics of batch norm), once for each of n workers.

    Every worker normalises with the statistics of its own batch and follows them with its own running mean and
    variance; a model that is evaluated gets the mean over workers.
    """

    def __init__(self, model: nn.Module, workers: int) -> None:
        self._shared = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._own = [[buffer.clone() for buffer in self._shared] for _ in range(workers)]

    def load_(self, worker: int) -> None:
        """Give the model one worker's statistics."""
        _copy_(self._shared, self._own[worker])

    def save_(self, worker: int) -> None:
        """Keep the model's statistics as one worker's."""
        _copy_(self._own[worker], self._shared)

    def of(self, worker: int, buffer: Tensor) -> Tensor:
        """One worker's own tensor for a buffer of the model."""
        place = next(place for place, shared in enumerate(self._shared) if shared is buffer)
        return self._own[worker][place]

    def reset_(self) -> None:
        """Give every worker the model's statistics."""
        for own in self._own:
            _copy_(own, self._shared)

    def average_(self) -> None:
        """Give the model the mean over workers."""
        for place, buffer in enumerate(self._shared):
            torch.mean(torch.stack([own[place] for own in self._own]), dim=0, out=buffer)


def _copy_(to: list[Tensor], source: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, source)

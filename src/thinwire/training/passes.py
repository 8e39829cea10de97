"""n simulated workers: each computes with its own batch, statistics and random numbers, on one model and one device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import nn

from thinwire.training.backward import Backward, Computed
from thinwire.training.statistics import WorkerStatistics
from thinwire.training.tasks.task import Batch


class Workers(ABC):
    """Workers that share the parameters, since they always hold equal ones, and nothing else."""

    def __init__(self, model: nn.Module, workers: int, seed: int) -> None:
        self._seed = seed
        self._devices = [p.device for p in model.parameters() if p.is_cuda][:1]
        self._generators = [torch.default_generator, *(torch.cuda.default_generators[d.index] for d in self._devices)]
        self._statistics = WorkerStatistics(model, workers)

    def compute(self, step: int, batches: Sequence[Batch]) -> list[Computed]:
        """Every worker's share of a step; torch's generators are left as they were."""
        with torch.random.fork_rng(devices=self._devices):
            return self._compute(step, batches)

    @abstractmethod
    def _compute(self, step: int, batches: Sequence[Batch]) -> list[Computed]: ...

    def _draw(self, step: int, worker: int) -> None:
        """Have dropout draw as one worker does at a step."""
        for generator in self._generators:  # torch.manual_seed queues a call for every kind of device
            generator.manual_seed(dropout_seed(self._seed, step, worker))

    def settle(self) -> None:
        """Bring the model into the state that is evaluated."""
        self._statistics.average_()


@final
class OneByOne(Workers):
    """One pass after the other, of any model."""

    def __init__(self, model: nn.Module, backward: Backward, workers: int, seed: int) -> None:
        super().__init__(model, workers, seed)
        self._backward = backward

    def _compute(self, step: int, batches: Sequence[Batch]) -> list[Computed]:
        return [self._one(step, worker, batch) for worker, batch in enumerate(batches)]

    def _one(self, step: int, worker: int, batch: Batch) -> Computed:
        self._statistics.load_(worker)
        self._draw(step, worker)
        computed = self._backward(batch)
        self._statistics.save_(worker)
        return computed


def dropout_seed(seed: int, step: int, worker: int) -> int:
    """Where torch's generator starts for one worker's pass."""
    return int(np.random.SeedSequence((seed, step, worker)).generate_state(1, np.uint64)[0] >> np.uint64(1))

"""What one worker computes at a step: loss and gradient of its batch, and second moments where a rule needs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from thinwire.experiments.statistics import WorkerStatistics
from thinwire.feedback import Need, Rule, rule_of
from thinwire.moments import watch
from thinwire.problems.task import Batch, Task

ByName = Mapping[str, Tensor]
"""Parameter name -> tensor of its shape."""

WARM_UP = 3
"""Passes before a capture: cuDNN tries its algorithms, and the moments check themselves, which reads from the GPU."""


def needs_moments(rule: Rule, model: nn.Module) -> bool:
    """Whether the rule of any parameter needs second moments."""
    parameters = model.named_parameters()
    return any(Need.MOMENTS in rule_of(rule, name, parameter.numel()).needs for name, parameter in parameters)


@dataclass(frozen=True)
class Computed:
    """One worker's share of a step."""

    loss: Tensor
    gradient: ByName
    moment: ByName | None


class Backward(ABC):
    """Forward and backward pass of one model over batches of one shape."""

    @abstractmethod
    def __call__(self, worker: int, batch: Batch) -> Computed:
        """What `worker` computes from its batch; valid until the same worker's next call."""


@final
class PlainBackward(Backward):
    """Operation by operation, as torch runs it."""

    def __init__(self, model: nn.Module, task: Task, moments: bool) -> None:
        self.model, self._task = model, task
        self._parameters = dict(model.named_parameters())
        self._moments = watch(model) if moments else None

    @property
    def device(self) -> torch.device:
        return next(iter(self._parameters.values())).device

    def __call__(self, worker: int, batch: Batch) -> Computed:
        loss = self._task.loss(self.model, batch)
        gradients = torch.autograd.grad(loss, list(self._parameters.values()))
        gradient = dict(zip(self._parameters, gradients, strict=True))
        return Computed(loss.detach(), gradient, self._moments.take() if self._moments else None)


@final
class GraphedBackward(Backward):
    """The same pass as one CUDA graph: launched as a whole, for each worker in turn.

    The VGG-like network's pass with moments is over a thousand kernels, most of them shorter than their launch.
    Inputs and outputs of a graph have fixed places, so each worker has a buffer that its results are copied to.
    """

    def __init__(self, plain: PlainBackward, example: Batch, workers: int) -> None:
        device = plain.device
        self._batch: Batch = (example[0].to(device), example[1].to(device))
        statistics = WorkerStatistics(plain.model, 1)
        with torch.random.fork_rng(devices=[device]):
            _warm_up(plain, self._batch)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                computed = plain(0, self._batch)
                self._loss = computed.loss
                self._flat = [_flat(named) for named in (computed.gradient, computed.moment) if named is not None]
        statistics.load_(0)
        self._results = [self._room(computed) for _ in range(workers)]

    def _room(self, computed: Computed) -> tuple[list[Tensor], Computed]:
        flat = [torch.empty_like(flat) for flat in self._flat]
        named = [_views(one, computed.gradient) for one in flat]
        return flat, Computed(torch.empty_like(self._loss), named[0], named[1] if computed.moment is not None else None)

    def __call__(self, worker: int, batch: Batch) -> Computed:
        for mine, given in zip(self._batch, batch, strict=True):
            mine.copy_(given, non_blocking=True)
        self._graph.replay()
        flat, computed = self._results[worker]
        torch._foreach_copy_([computed.loss, *flat], [self._loss, *self._flat])
        return computed


def _warm_up(plain: PlainBackward, batch: Batch) -> None:
    """On a stream of its own, as a capture will be."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            plain(0, batch)
    torch.cuda.current_stream().wait_stream(stream)


def _flat(named: ByName) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in named.values()])


def _views(flat: Tensor, like: ByName) -> dict[str, Tensor]:
    parts = torch.split(flat, [tensor.numel() for tensor in like.values()])
    return {name: part.view(tensor.shape) for part, (name, tensor) in zip(parts, like.items(), strict=True)}

"""All workers' passes as one, over their batches joined, with what belongs to a worker kept apart.

A GPU takes half the time for the convolutions of 512 images that it takes for eight times 64. Batch norm sees each
worker's images by themselves. The backward pass runs for the activations alone; each worker's gradients and second
moments are then formed from its part of the modules' inputs and of the gradients δ of their outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from thinwire.moments.layer import Layer, Setting, per_channel
from thinwire.moments.layers import layer_of
from thinwire.moments.rows import Formed, Rows
from thinwire.training.gradients import ByName, SimulatedWorkers, WorkerGradient, WorkerStatistics
from thinwire.training.tasks import Batch, Task

WARM_UP = 3
"""Passes before a capture: cuDNN tries its algorithms."""


def can_join(model: nn.Module) -> bool:
    """Whether the gradients of all parameters follow from inputs and δ, and only batch norm mixes the samples."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    untied = len(names) == len(dict(model.named_parameters()))
    return untied and all(_known(module) for module in model.modules())


def _known(module: nn.Module) -> bool:
    if isinstance(module, _BatchNorm):
        return module.affine and module.track_running_stats and module.momentum is not None and bool(layer_of(module))
    stateless = next(module.buffers(recurse=False), None) is None
    return stateless and (next(module.parameters(recurse=False), None) is None or layer_of(module) is not None)


@final
class JoinedPass(SimulatedWorkers):
    """Workers that compute in one pass; on a GPU it is a CUDA graph, launched as a whole.

    A graph's inputs and outputs have fixed places: what is computed is valid until the next step.
    """

    def __init__(self, model: nn.Module, task: Task, moments: bool, example: Sequence[Batch], seed: int) -> None:
        super().__init__(model, len(example), seed)
        self._model, self._task = model, task
        self._parameters = dict(model.named_parameters())
        device = next(iter(self._parameters.values())).device
        joined = [torch.cat(parts).to(device) for parts in zip(*example, strict=True)]
        self._batch: Batch = (joined[0], joined[1])
        self._calls = list(_calls(model, len(example), self._statistics))
        self._gradients = _Room(self._parameters, len(example))
        self._moments = _Room(self._parameters, len(example)) if moments else None
        self._loss = next(iter(self._parameters.values())).detach().new_zeros(())
        self._graph = self._capture() if device.type == "cuda" else None

    def _compute(self, step: int, batches: Sequence[Batch]) -> list[WorkerGradient]:
        for joined, parts in zip(self._batch, zip(*batches, strict=True), strict=True):
            for place, part in zip(joined.chunk(len(batches)), parts, strict=True):
                place.copy_(part, non_blocking=True)
        self._draw(step, 0)
        if self._graph is None:
            self._pass()
        else:
            self._graph.replay()
        moments = self._moments.named if self._moments else [None] * len(batches)
        terms = dict.fromkeys(self._parameters, len(batches[0][0])) if self._moments else {}
        return [WorkerGradient(self._loss, *both, terms) for both in zip(self._gradients.named, moments, strict=True)]

    def _pass(self) -> None:
        """δ of a worker's images is that of its own mean loss, and there are as many means as workers."""
        loss = self._task.loss(self._model, self._batch)
        first = next(iter(self._parameters.values()))
        torch.autograd.grad(len(self._gradients.named) * loss, [first])  # the only weight gradient that torch forms
        self._loss.copy_(loss.detach())
        with torch.no_grad():
            for call in self._calls:
                call.finish_(self._gradients, self._moments)

    def _capture(self) -> torch.cuda.CUDAGraph:
        with torch.random.fork_rng(devices=self._devices):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    self._pass()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._pass()
        self._statistics.reset_()
        return graph


class _Room:
    """A tensor for each parameter of each worker; a worker's lie one after the other."""

    def __init__(self, parameters: ByName, workers: int) -> None:
        numels = [parameter.numel() for parameter in parameters.values()]
        like = next(iter(parameters.values()))
        parts = torch.split(torch.zeros(workers, sum(numels), dtype=like.dtype, device=like.device), numels, 1)
        self.every: ByName = {
            name: part.view(workers, *parameter.shape)
            for part, (name, parameter) in zip(parts, parameters.items(), strict=True)
        }
        """All workers', in the first dimension."""
        self.named: list[ByName] = [
            {name: every[worker] for name, every in self.every.items()} for worker in range(workers)
        ]


class _Call:
    """A module with parameters: its input and δ in the joined pass, and what follows for each worker."""

    def __init__(self, prefix: str, module: nn.Module, layer: Layer, workers: int) -> None:
        self._layer, self._workers = layer, workers
        self._names = {local: f"{prefix}{local}" for local, _ in module.named_parameters(recurse=False)}
        self.module = module
        self.input: Tensor | None = None
        self.delta: Tensor | None = None
        module.register_forward_hook(self._after)

    def _after(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        if output.requires_grad:
            assert self.input is None, "a module that is called twice in a pass"
            self.input = arguments[0].detach()
            cast(Any, output).register_hook(self._keep)

    def _keep(self, delta: Tensor) -> None:
        self.delta = delta

    def finish_(self, gradients: _Room, moments: _Room | None) -> None:
        """Gradients, and moments where they are wanted, of all workers."""
        input, delta = self.seen()
        for local, name in self._names.items():
            rows = self.rows(local, input, delta)
            self._totals_(rows, gradients.every[name])
            if moments is not None:
                if not isinstance(rows, Formed):  # once for all, and not for each worker
                    rows = self.rows(local, input.contiguous(), delta.contiguous())
                self._squares_(rows, moments.every[name])
        self.input = self.delta = None

    def _totals_(self, rows: Rows, every: Tensor) -> None:
        if isinstance(rows, Formed):
            torch.sum(rows.formed.view(self._workers, -1, *rows.shape), 1, out=every)
            return
        for own, gradient in zip(self._parts(rows), every, strict=True):
            gradient.copy_(own.total())

    def _squares_(self, rows: Rows, every: Tensor) -> None:
        if isinstance(rows, Formed):
            torch.sum(rows.formed.square().view(self._workers, -1, *rows.shape), 1, out=every)
            return
        for own, squares in zip(self._parts(rows), every, strict=True):
            own.squares_(squares, 0)

    def _parts(self, rows: Rows) -> Iterator[Rows]:
        """Each worker's."""
        size = rows.samples // self._workers
        return (rows.part(slice(first, first + size)) for first in range(0, rows.samples, size))

    def rows(self, local: str, input: Tensor, delta: Tensor) -> Rows:
        """The per-sample gradients of one parameter, worker by worker."""
        return self._layer.rows(self.module, local, Setting(training=True), input, delta)

    def seen(self) -> tuple[Tensor, Tensor]:
        """Input and δ of the pass."""
        assert self.input is not None, "a module that took no part"
        assert self.delta is not None, "a module that the loss does not depend on, or that lies before the first weight"
        return self.input, self.delta


class _NormCall(_Call):
    """Batch norm: each worker's part by itself, with running statistics of its own.

    Its statistics are kept for the rows of the scale: c_z = Σ over positions of (x_z − mean) δ_z / deviation.
    """

    def __init__(
        self, prefix: str, module: _BatchNorm, layer: Layer, workers: int, statistics: WorkerStatistics
    ) -> None:
        super().__init__(prefix, module, layer, workers)
        self._running = [
            [statistics.of(worker, cast(Tensor, buffer)) for buffer in (module.running_mean, module.running_var)]
            for worker in range(workers)
        ]
        self._normal = module.forward
        cast(Any, module).forward = self._forward

    def _forward(self, input: Tensor) -> Tensor:
        norm = cast(_BatchNorm, self.module)
        if not norm.training:
            return self._normal(input)
        parts = [
            torch.ops.aten.native_batch_norm(part, norm.weight, norm.bias, *running, True, norm.momentum, norm.eps)
            for part, running in zip(input.chunk(self._workers), self._running, strict=True)
        ]
        self._mean, self._rate = (torch.stack(kept).detach() for kept in list(zip(*parts, strict=True))[1:])
        return torch.cat([part[0] for part in parts])

    def rows(self, local: str, input: Tensor, delta: Tensor) -> Rows:
        if local == "bias":
            return per_channel(delta)
        mean, rate = (t.repeat_interleave(len(input) // self._workers, 0) for t in (self._mean, self._rate))
        mean = mean.view(mean.shape + (1,) * (input.dim() - 2))
        return Formed(per_channel((input - mean).mul_(delta)).formed * rate)


def _calls(model: nn.Module, workers: int, statistics: WorkerStatistics) -> Iterator[_Call]:
    for name, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is not None:
            prefix, layer = f"{name}." if name else "", cast(Layer, layer_of(module))
            if isinstance(module, _BatchNorm):
                yield _NormCall(prefix, module, layer, workers, statistics)
            else:
                yield _Call(prefix, module, layer, workers)

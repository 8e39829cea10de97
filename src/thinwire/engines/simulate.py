"""n workers in one process, exchanging real messages: bitwise what n processes compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.checkpoint import OnResize, load_all_, merge_states, save
from thinwire.engines.needs import check_need
from thinwire.engines.step_sizes import StepSizes
from thinwire.errors import ConfigError
from thinwire.exchange import Loopback
from thinwire.feedback import Need, Rule, as_rule
from thinwire.layout import Layout
from thinwire.ledger import Ledger

Gradients = Mapping[str, Tensor]
"""Parameter name -> gradient of one worker."""
Moments = Mapping[str, Tensor]
"""Parameter name -> second moment of one worker, as `thinwire.moments.Moments.take` gives them."""


class Simulation:
    """n workers that share one copy of the parameters.

    `step(gradients)` takes each worker's gradients, exchanges them, writes `.grad` and lets the optimizer step, if
    one was given. `exchange(gradients)` does the first half only and returns the result. Both take each worker's
    second moments as well, for rules that need them.

    >>> import torch, thinwire
    >>> x = torch.nn.Parameter(torch.zeros(4))
    >>> rule = thinwire.MemSGD(thinwire.TopK(count=1))
    >>> sim = thinwire.Simulation({"x": x}, rule, workers=2, optimizer=torch.optim.SGD([x], lr=1.0))
    >>> sim.step([{"x": torch.tensor([4.0, 1, 0, 0])}, {"x": torch.tensor([0.0, 0, 0, 2])}])
    >>> x.tolist()
    [-2.0, 0.0, 0.0, -1.0]
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        rule: Rule,
        workers: int,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        seed: int = 0,
        ledger_every: int = 10,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"a simulation needs at least 1 worker, got {workers}")
        rule = as_rule(rule)
        self.parameters = dict(parameters)
        self.optimizer = optimizer
        self.channels = self._channels(rule, workers, seed)
        self._step_sizes = StepSizes(self.parameters, optimizer) if optimizer is not None else None
        self._layouts = [self.channels[0].layout(names) for names in _by_type(self.parameters)]
        self._loopback = Loopback(workers)
        self.ledger = Ledger(workers, every=ledger_every)

    def _channels(self, rule: Rule, workers: int, seed: int) -> list[Channel]:
        first = Channel(rule, self.parameters, rank=0, size=workers, seed=seed)
        return [first] + [
            Channel(rule, self.parameters, rank=rank, size=workers, seed=seed, server=first.server)
            for rank in range(1, workers)
        ]

    @property
    def workers(self) -> int:
        return len(self.channels)

    def exchange(
        self,
        gradients: Sequence[Gradients],
        step_sizes: Mapping[str, float] | None = None,
        moments: Sequence[Moments] | None = None,
    ) -> dict[str, Tensor]:
        """The gradient that every worker would get. One that a worker lacks counts as zero; a parameter that all lack
        is left out, and its state stays as it is."""
        if step_sizes is None and self._step_sizes is not None:
            step_sizes = self._step_sizes.now()
        remedy = "pass optimizer= to the simulation, or step_sizes= to exchange"
        check_need(self.channels[0], Need.STEP_SIZE, step_sizes is not None, remedy)
        remedy = "pass each worker's (thinwire.moments) as moments= to step or exchange"
        check_need(self.channels[0], Need.MOMENTS, moments is not None, remedy)
        self._check(gradients, "gradient")
        self._check_step_sizes(step_sizes)
        if moments is not None:
            self._check(moments, "second moment")
            moments = self._needed(moments, gradients)
        for channel in self.channels:
            channel.abandon()  # undoes an exchange that broke off half-way, as by Ctrl-C
        result: dict[str, Tensor] = {}
        for layout in self._layouts:
            used = [any(own.get(piece.name) is not None for own in gradients) for piece in layout.pieces]
            flat = self._exchange(layout, gradients, step_sizes, moments, used)
            pieces = zip(used, layout.views(flat), strict=True)
            result |= {piece.name: view.view(piece.shape) for some, (piece, view) in pieces if some}
        self._finish()
        return result

    def _check(self, given: Sequence[Mapping[str, Tensor]], what: str) -> None:
        """Refuse what does not belong to the parameters, before any worker has sent."""
        if len(given) != self.workers:
            raise ConfigError(f"{self.workers} workers need {self.workers} {what}s, got {len(given)}")
        for worker, own in enumerate(given):
            for name, tensor in own.items():
                known = self.parameters.get(name)
                if known is None:
                    raise ConfigError(f"worker {worker} gives a {what} of {name!r}, which is no parameter here")
                if tensor is not None and tensor.shape != known.shape:
                    raise ConfigError(
                        f"worker {worker}'s {what} of {name!r} has shape {tuple(tensor.shape)}, "
                        f"the parameter {tuple(known.shape)}"
                    )

    def _needed(self, moments: Sequence[Moments], gradients: Sequence[Gradients]) -> Sequence[Moments] | None:
        """The second moments of those parameters whose rule needs them, if any; a gradient without one is refused."""
        needed = {name: rule for name, rule in self.channels[0].rules.items() if Need.MOMENTS in rule.needs}
        for worker, (gradient, moment) in enumerate(zip(gradients, moments, strict=True)):
            for name, rule in needed.items():
                if gradient.get(name) is not None and moment.get(name) is None:
                    raise ConfigError(f"worker {worker} gives a gradient of {name!r} without the moment {rule} needs")
        return [{name: own[name] for name in needed if name in own} for own in moments] if needed else None

    def _check_step_sizes(self, step_sizes: Mapping[str, float] | None) -> None:
        for name in self.parameters:
            if step_sizes is not None and name not in step_sizes:
                raise ConfigError(f"step_sizes has none for {name!r}: give one for every parameter")

    def _exchange(
        self,
        layout: Layout,
        gradients: Sequence[Gradients],
        step_sizes: Mapping[str, float] | None,
        moments: Sequence[Moments] | None,
        used: Sequence[bool],
    ) -> Tensor:
        measure = self.ledger.due(self.channels[0].step)
        sent = [
            channel.send(
                layout,
                self._flat(layout, own),
                step_sizes=step_sizes,
                used=used,
                moment=None if moments is None else self._flat(layout, moments[channel.rank]),
                measure=measure and channel is self.channels[0],
            )
            for channel, own in zip(self.channels, gradients, strict=True)
        ]
        messages, traffic = self._loopback.gather([s.message for s in sent], fixed=sent[0].fixed)
        self.ledger.add(traffic, layout.numel, sent[0].norms, _mean([one.elements for one in sent]))
        like = self.parameters[layout.pieces[0].name]
        return self.channels[0].receive(
            sent[0], messages, torch.empty(layout.numel, dtype=like.dtype, device=like.device)
        )

    def _flat(self, layout: Layout, gradients: Gradients) -> Tensor:
        parts = (gradients.get(piece.name) for piece in layout.pieces)
        return torch.cat(
            [
                torch.zeros_like(self.parameters[piece.name]).view(-1) if part is None else part.detach().reshape(-1)
                for piece, part in zip(layout.pieces, parts, strict=True)
            ]
        )

    def _finish(self) -> None:
        fault = self.channels[0].finish()
        for channel in self.channels[1:]:
            if fault is None:
                channel.finish()
            else:
                channel.abandon()
        self.ledger.finish(skipped=fault is not None)
        if fault is not None:
            raise fault

    def step(self, gradients: Sequence[Gradients], moments: Sequence[Moments] | None = None) -> None:
        """Exchange, write the parameters' `.grad`, and step the optimizer."""
        result = self.exchange(gradients, moments=moments)
        for name, parameter in self.parameters.items():
            parameter.grad = result.get(name)
        if self.optimizer is not None:
            self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The state of all workers, in the form that a merged checkpoint of real ranks has."""
        return merge_states([save(channel) for channel in self.channels])

    def load_state_dict(self, state: Mapping[str, Any], *, on_resize: OnResize = "raise") -> None:
        """Load the merged state of all workers, or of another number of them."""
        load_all_(self.channels, state, on_resize)


def _mean(counts: Sequence[int | None]) -> float | None:
    """The mean over workers of what all of them count."""
    known = [count for count in counts if count is not None]
    return sum(known) / len(counts) if len(known) == len(counts) else None


def _by_type(parameters: Mapping[str, Tensor]) -> list[list[str]]:
    """Names that can share a flat buffer: one list for each type and device, as DDP buckets them."""
    groups: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, parameter in parameters.items():
        groups.setdefault((parameter.dtype, parameter.device), []).append(name)
    return list(groups.values())


class Problem(Protocol):
    """n functions whose mean is to be minimised."""

    workers: int

    def start(self) -> Mapping[str, Tensor]:
        """The point to start from."""

    def gradient(self, worker: int, x: Mapping[str, Tensor], step: int) -> Gradients:
        """One worker's gradient at x."""

    def loss(self, x: Mapping[str, Tensor]) -> float:
        """The mean of all functions at x."""


@dataclass
class Trajectory:
    """What a simulated run did: the last point, the losses, and the ledger of one worker's bytes."""

    x: dict[str, Tensor]
    ledger: Ledger
    losses: list[float] = field(default_factory=list)
    sent_bytes: list[float] = field(default_factory=list)


def simulate(
    problem: Problem,
    rule: Rule,
    *,
    steps: int,
    step_size: float | Callable[[int], float],
    seed: int = 0,
    every: int = 1,
) -> Trajectory:
    """Run x <- x - s_t * exchange(gradients at x) for `steps` steps; the loss is noted every `every` steps and last."""
    if steps < 0 or every < 1:
        raise ConfigError(f"simulate needs steps >= 0 and every >= 1, got {steps} and {every}")
    x = {name: tensor.detach().clone() for name, tensor in problem.start().items()}
    simulation = Simulation(x, rule, problem.workers, seed=seed)
    run = Trajectory(x, simulation.ledger)
    for step in _watched(run, problem, steps, every):
        size = step_size(step) if callable(step_size) else step_size
        gradients = [problem.gradient(worker, x, step) for worker in range(problem.workers)]
        for name, gradient in simulation.exchange(gradients, dict.fromkeys(x, size)).items():
            x[name].sub_(gradient, alpha=size)
    return run


def _watched(run: Trajectory, problem: Problem, steps: int, every: int) -> Iterator[int]:
    """The steps, with the loss noted before every `every`-th and after the last."""
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            run.losses.append(problem.loss(run.x))
            run.sent_bytes.append(run.ledger.summary()["sent_bytes"])
        if step < steps:
            yield step

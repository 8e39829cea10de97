"""A contender: one method's own model, DDP and optimizer on one host, trained a step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

import thinwire
from thinwire.exchange import Group, Link, allreduce_bytes, emulated, exchange_of
from thinwire.lab.setting import ALONE, LabSetting, is_rule, powersgd_rank, rule_and_exchange
from thinwire.moments import watch
from thinwire.training.admission import needs_moments
from thinwire.training.config import OPTIMIZERS, rule_in
from thinwire.training.tasks import Task
from thinwire.training.torch_hooks import ONE_BUCKET_MB, POWERSGD_START, powersgd_state, register, wrapped

SEED = 0
PARTS = {
    "send": "encode",
    "receive": "decode",
    "receive_total": "decode",
    "opened": "decode",
    "answer": "encode",
    "receive_answers": "decode",
}
"""The halves of a channel, those of an owner among them, and what their time is called."""


class Computing(Protocol):
    """Where a host's gradients come from."""

    @property
    def model(self) -> nn.Module: ...

    def loss(self, ddp: nn.Module, step: int) -> Tensor:
        """A scalar whose backward pass gives the gradients."""


@final
class Computed:
    """The task's own batches, forward and backward."""

    def __init__(self, task: Task, batch: int, rank: int, hosts: int) -> None:
        self.model = task.model(SEED)
        self._task, self._batch, self._place = task, batch, (rank, hosts)

    def loss(self, ddp: nn.Module, step: int) -> Tensor:
        return self._task.loss(ddp, self._task.batch(SEED, step, *self._place, self._batch))


@final
class Replayed:
    """A host that sleeps, and then has the gradients of its first batch at once: nothing travels while it sleeps."""

    def __init__(self, task: Task, batch: int, rank: int, hosts: int, milliseconds: float) -> None:
        self.model, self._seconds = task.model(SEED), milliseconds / 1e3
        parameters = list(self.model.parameters())
        loss = task.loss(self.model, task.batch(SEED, 0, rank, hosts, batch))
        self._gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        forward: Any = self._forward
        self.model.forward = forward  # DDP sees the task's own parameters under their own names

    def _forward(self) -> Tensor:
        time.sleep(self._seconds)
        loss: Tensor = _Given.apply(self._gradients, *self.model.parameters())  # type: ignore[no-untyped-call]
        return loss

    def loss(self, ddp: nn.Module, step: int) -> Tensor:
        return ddp()  # type: ignore[no-any-return]


class _Given(torch.autograd.Function):
    """A zero whose gradients are given."""

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        return None, *ctx.gradients


@final
class Contender:
    """A method on one host; all hosts make the same calls in the same order."""

    def __init__(self, method: str, setting: LabSetting, task: Task, rank: int, link: Link | None = None) -> None:
        config = setting.config(method)
        own = (task, config.batch, rank, setting.hosts)
        self._computing: Computing = Computed(*own) if setting.replay is None else Replayed(*own, setting.replay)
        self.method, self.hosts, self.done = method, setting.hosts, 0
        model = self._computing.model
        self.numel = sum(parameter.numel() for parameter in model.parameters())
        self._optimizer = OPTIMIZERS[config.optimizer](model.parameters(), config.lr, config.weight_decay)
        one = powersgd_rank(method) is not None  # torch's PowerSGD hook hangs on gloo with several buckets in flight
        self._ddp = wrapped(model, ONE_BUCKET_MB if one else None)
        self.seconds = dict.fromkeys(PARTS.values(), 0.0)
        """Spent in each part so far."""
        self._handle: thinwire.Handle | None = None
        self._powersgd: Any = None
        self._register(link)

    def _register(self, link: Link | None) -> None:
        """Give DDP the method's hook, behind an emulated link where that takes the place of a wire."""
        if is_rule(self.method):
            return self._attach(link)
        rank = powersgd_rank(self.method)
        self._powersgd = None if rank is None else powersgd_state(rank, SEED)
        return register(self._ddp, self.method, link, self._powersgd)

    def _attach(self, link: Link | None) -> None:
        text, name = rule_and_exchange(self.method)
        rule = rule_in(text)
        moments = watch(self._ddp, rule=rule) if needs_moments(rule, self._computing.model) else None
        carrier = exchange_of(name, lambda: emulated(Group(), link))
        self._handle = thinwire.attach(self._ddp, text, self._optimizer, moments=moments, exchange=carrier, seed=SEED)
        for half, part in PARTS.items():
            setattr(self._handle.channel, half, self._timed(part, getattr(self._handle.channel, half)))

    def _timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return work(*arguments)
            finally:
                self.seconds[part] += time.perf_counter() - start

        return timed

    @property
    def has_parts(self) -> bool:
        """Whether encoding and decoding can be told apart: torch's hooks do both out of sight."""
        return self._handle is not None

    def explained(self) -> str | None:
        """What was chosen so far, and why; None of a method that chooses nothing."""
        return None if self._handle is None or self._handle.auto is None else self._handle.explain()

    def step(self) -> None:
        """Compute, exchange, and move the parameters."""
        self._optimizer.zero_grad()
        with self._ddp.no_sync() if self.method == ALONE else nullcontext():
            self._computing.loss(self._ddp, self.done).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.done += 1

    def sent(self) -> int:
        """Bytes that left this host so far, by the account: thinwire's ledger, or a ring all-reduce's."""
        if self.method == ALONE:
            return 0
        if self._handle is not None:
            return int(self._handle.ledger.summary()["sent_bytes"])
        if self._powersgd is not None:
            dense = min(self.done, POWERSGD_START) * self.numel
            return allreduce_bytes(4 * (dense + self._powersgd.total_numel_after_compression), self.hosts)
        return self.done * allreduce_bytes((2 if self.method == "fp16" else 4) * self.numel, self.hosts)

"""Actors: copies of a model, each trained by one rank alone under one method, for what a step takes of the machine.

Every rank of a group rehearses at the same time, so that ranks of one machine share its cores as they will later.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import thinwire
from thinwire.advice.candidates import one_bucket, outer_of, own_optimizer
from thinwire.channel import Channel
from thinwire.engines.ddp.hook import plug_in
from thinwire.errors import ConfigError
from thinwire.feedback import Rule
from thinwire.lab.contender import Computed, Computing, Replayed
from thinwire.lab.setting import ALONE, DENSE, LabSetting, is_rule, powersgd_rank
from thinwire.outgoing import Given, Outgoing
from thinwire.training.config import OPTIMIZERS
from thinwire.training.tasks import Task
from thinwire.training.torch_hooks import ONE_BUCKET_MB, powersgd_state, register

KEPT = 3
"""Steps whose gradients are kept, for messages to be made of."""
SEED, STEP_SIZE = 0, 1e-3


@dataclass(frozen=True)
class Split:
    """Seconds of one step by its phases."""

    forward: float
    backward: float
    optimizer: float


def typical(splits: Sequence[Split]) -> Split:
    """The middle of each phase."""
    return Split(*(middle([getattr(s, name) for s in splits]) for name in ("forward", "backward", "optimizer")))


def middle(values: Sequence[float]) -> float:
    """The mean without a quarter at each end.

    >>> middle([2.0, 4.0]), middle([1000.0, 1.0, 2.0, 3.0])
    (3.0, 2.5)
    """
    cut = len(values) // 4
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


@dataclass(frozen=True)
class Mark:
    """One bucket of one step: when its last gradient was there, since the backward pass began, and whose it is."""

    ready: float
    names: tuple[str, ...]
    numel: int
    nbytes: int


@final
class Watch:
    """In the place of an exchange: notes when buckets are ready, keeps their gradients, and sends nothing."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._names = {id(parameter): name for name, parameter in ddp.module.named_parameters()}
        self.began = 0.0
        self.steps: list[list[Mark]] = []
        self.kept: list[list[Tensor]] = []

    def exchange(self, bucket: GradBucket) -> Future[Tensor]:
        """Note one bucket."""
        now, flat = time.perf_counter(), bucket.buffer()
        if bucket.index() == 0:
            self.steps.append([])
        names = tuple(self._names[id(parameter)] for parameter in bucket.parameters())
        self.steps[-1].append(Mark(now - self.began, names, flat.numel(), flat.nbytes))
        result: Future[Tensor] = Future(devices=[flat.device] if flat.is_cuda else None)
        result.set_result(flat)
        return result


@final
class Actor:
    """A model under one method on a group of one rank."""

    def __init__(self, method: str, workload: Workload, group: dist.ProcessGroup) -> None:
        prepared = workload.prepared(method)
        self.method, self._computing, self.optimizer = method, prepared.computing, prepared.optimizer
        options: dict[str, Any] = {
            **workload.options,
            **({"bucket_cap_mb": ONE_BUCKET_MB} if one_bucket(method) else {}),
        }
        self.ddp = DistributedDataParallel(self._computing.model, process_group=group, **options)
        self.splits: list[Split] = []
        self.parts: dict[str, list[float]] = defaultdict(list)
        """Seconds of every call of a channel's halves, and of an outer step, in order."""
        self.channels: list[Channel] = []
        self.powersgd: Any = None
        self.watch: Watch | None = None
        self._register(group)
        self._done = 0

    def _register(self, group: dist.ProcessGroup) -> None:
        if self.method == ALONE:
            self.watch = Watch(self.ddp)
            plug_in(self.ddp, self.watch)
        elif (outer := outer_of(self.method)) is not None:
            handle = thinwire.attach_outer(self.ddp, self.optimizer, outer, every=1, group=group)
            self.channels = handle.replica.channels
            handle.advance = self._timed("outer", handle.advance)  # type: ignore[method-assign]
            handle.unhook()
            self.optimizer.register_step_post_hook(handle.advance)
        elif is_rule(self.method):
            self.channels = [thinwire.attach(self.ddp, self.method, self.optimizer).channel]
        else:
            rank = powersgd_rank(self.method)
            self.powersgd = None if rank is None else powersgd_state(rank, SEED, group)
            register(self.ddp, self.method, None, self.powersgd)
        for channel in self.channels:
            for half in ("send", "receive"):
                setattr(channel, half, self._timed(half, getattr(channel, half)))

    def _timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return work(*arguments, **options)
            finally:
                self.parts[part].append(time.perf_counter() - start)

        return timed

    def step(self) -> None:
        """One step, its phases timed apart."""
        self.optimizer.zero_grad()
        clock = [_now(self.ddp)]
        loss = self._computing.loss(self.ddp, self._done)
        clock.append(_now(self.ddp))
        if self.watch is not None:
            self.watch.began = clock[-1]
        loss.backward()  # type: ignore[no-untyped-call]
        clock.append(_now(self.ddp))
        if self.watch is not None:
            self._keep(self.watch)
        before = time.perf_counter()
        self.optimizer.step()
        clock.append(_now(self.ddp))
        self.splits.append(Split(clock[1] - clock[0], clock[2] - clock[1], clock[3] - before))
        self._done += 1

    def _keep(self, watch: Watch) -> None:
        """The gradients of this step, bucket by bucket."""
        named = {
            name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self.ddp.module.named_parameters()
        }
        kept = [torch.cat([named[name].reshape(-1) for name in mark.names]) for mark in watch.steps[-1]]
        watch.kept = [*watch.kept[-(KEPT - 1) :], kept]

    def forget(self) -> None:
        """What was done so far was for warming up."""
        self.splits.clear()
        self.parts.clear()
        if self.watch is not None:
            self.watch.steps.clear()


def _now(ddp: DistributedDataParallel) -> float:
    """The clock, once the GPU has done what it was given."""
    if ddp.device_type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass(frozen=True)
class Posted:
    """One worker's message about one bucket, and what decoding everyone's took."""

    nbytes: int
    fixed: bool
    summed: int
    """Bytes of the numbers that may be added up on their way; 0 where none may."""
    decode: float


@final
class Ensemble:
    """A few workers' channels in one process, fed with gradients that were kept: what decoding their messages takes."""

    def __init__(self, rule: Rule, parameters: Mapping[str, Tensor], size: int) -> None:
        first = Channel(rule, parameters, rank=0, size=size)
        rest = [Channel(rule, parameters, rank=rank, size=size, beside=first) for rank in range(1, size)]
        self._channels, self._sizes = [first, *rest], dict.fromkeys(parameters, STEP_SIZE)

    def step(self, buckets: Sequence[tuple[str, ...]], kept: Sequence[Sequence[Tensor]], turn: int) -> list[Posted]:
        """All workers send about all buckets; the first one decodes."""
        layouts = [self._channels[0].layout(names) for names in buckets]
        sent = [
            [
                channel.send(layout, Given(kept[(turn + rank) % len(kept)][place], step_sizes=self._sizes))
                for rank, channel in enumerate(self._channels)
            ]
            for place, layout in enumerate(layouts)
        ]
        posted = [self._received(letters) for letters in sent]
        self._channels[0].judge()
        fault = self._channels[0].finish()
        for channel in self._channels[1:]:
            channel.keep()
        if fault is not None:
            raise fault
        return posted

    def _received(self, sent: Sequence[Outgoing]) -> Posted:
        own = sent[0]
        out = torch.empty(own.layout.numel, dtype=torch.float32, device=own.message.device)
        start = time.perf_counter()
        self._channels[0].receive(own, [each.message for each in sent], out)
        seconds = time.perf_counter() - start
        return Posted(own.message.numel(), own.fixed, 0 if own.summand is None else own.summand.numbers.nbytes, seconds)


# ------------------------------------------------------------------------------ where copies come from


LR = 1e-3
"""Where no optimizer tells one: times do not depend on it."""
OPTIONS = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
"""Of DDP, which copies take over with the size of its buckets."""


@dataclass(frozen=True)
class Prepared:
    """A fresh copy of the model under one method."""

    computing: Computing
    optimizer: Optimizer


class Workload(Protocol):
    """Where copies of a model come from."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Of DDP."""

    def prepared(self, method: str) -> Prepared:
        """A copy of its own, to be trained by the method."""


@final
@dataclass(frozen=True)
class TaskLoad:
    """A task of the package, as the laboratory trains it: computed, or replayed."""

    task: Task
    setting: LabSetting
    rank: int

    @property
    def options(self) -> Mapping[str, Any]:
        return {}

    def prepared(self, method: str) -> Prepared:
        config, hosts = self.setting.config(DENSE if outer_of(method) else method), self.setting.hosts
        own = (self.task, config.batch, self.rank, hosts)
        replay = self.setting.replay
        computing: Computing = Computed(*own) if replay is None else Replayed(*own, replay)
        parameters = computing.model.parameters()
        return Prepared(computing, OPTIMIZERS[config.optimizer](parameters, config.lr, config.weight_decay))


@final
@dataclass(frozen=True)
class _Copied:
    """A copy of a model, and a function that takes the loss of it."""

    model: nn.Module
    function: Callable[[nn.Module], Tensor]

    def loss(self, ddp: nn.Module, step: int) -> Tensor:
        return self.function(ddp)


@final
@dataclass(frozen=True)
class OwnLoad:
    """A user's DDP model. It is never touched: copies of it are trained, and thrown away."""

    ddp: DistributedDataParallel
    loss: Callable[[nn.Module], Tensor]
    optimizer: Optimizer | None = None

    @property
    def options(self) -> Mapping[str, Any]:
        given = {name: getattr(self.ddp, name) for name in OPTIONS if hasattr(self.ddp, name)}
        return {"bucket_cap_mb": self.ddp.bucket_bytes_cap / 2**20, **given}

    def prepared(self, method: str) -> Prepared:
        try:
            model, optimizer = copy.deepcopy((self.ddp.module, self.optimizer))
        except Exception as error:
            raise ConfigError(
                f"advise trains copies of the model, and this one cannot be copied ({error}): give a model that "
                "copy.deepcopy takes"
            ) from error
        if optimizer is None or own_optimizer(method):
            lr = LR if optimizer is None else float(optimizer.param_groups[0]["lr"])
            optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        return Prepared(_Copied(model, self.loss), optimizer)


@final
@dataclass(frozen=True)
class MatrixLoad:
    """So many parameters in square matrices, whose gradients cost next to nothing."""

    parameters: int
    width: int = 1024

    @property
    def options(self) -> Mapping[str, Any]:
        return {}

    def prepared(self, method: str) -> Prepared:
        model = nn.ParameterList(nn.Parameter(torch.randn(rows, self.width)) for rows in self._rows())
        optimizer = OPTIMIZERS["sgd" if own_optimizer(method) else "adamw"](model.parameters(), LR, 0.0)
        return Prepared(_Copied(_Products(model), lambda ddp: ddp()), optimizer)

    def _rows(self) -> list[int]:
        whole, rest = divmod(max(self.parameters // self.width, 1), self.width)
        return [self.width] * whole + [rest] * bool(rest)


class _Products(nn.Module):
    """A loss whose gradients are noise: the sum of all parameters times numbers of a normal distribution."""

    def __init__(self, matrices: nn.ParameterList) -> None:
        super().__init__()
        self.matrices = matrices
        self.noise = [torch.randn_like(each) for each in matrices]

    def forward(self) -> Tensor:
        return torch.stack([(m * n).sum() for m, n in zip(self.matrices, self.noise, strict=True)]).sum()

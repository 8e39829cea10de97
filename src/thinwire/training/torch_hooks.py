"""torch's own ways to average gradients, put on a DDP model: as they are, or as an emulated link would carry them.

Over an emulated link a bucket's all-reduce begins when the bucket is ready, as ever, and its bytes queue behind those
of the buckets before it. All are awaited in the body of the last bucket's hook, where no gradient is left to compute:
what a link carries beside the backward pass is over by then. So no thread and no callback of ours completes a future;
such a callback, in a thread of the process group, can outlive the interpreter and end the process.
"""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from thinwire.exchange import Link, allreduce_bytes

POWERSGD_START = 2
"""Dense steps before torch's PowerSGD begins; 2 is the least that its warm start allows."""
ONE_BUCKET_MB = 4096
"""torch's PowerSGD hook hangs on gloo with several buckets in flight, so it gets one."""


def wrapped(model: nn.Module, bucket_cap_mb: int | None = None) -> DistributedDataParallel:
    """A model under DDP, whose gradients are views of its buckets: a copy of each is saved, both ways."""
    return DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)


def powersgd_state(rank: int, seed: int, group: Any = None) -> Any:
    """What torch's PowerSGD hook of this rank keeps, among the ranks of a group: by default all."""
    return powerSGD_hook.PowerSGDState(
        group, matrix_approximation_rank=rank, start_powerSGD_iter=POWERSGD_START, random_seed=seed
    )


def register(ddp: DistributedDataParallel, method: str, link: Link | None, powersgd: Any = None) -> None:
    """Give DDP torch's hook of this name; without a link `dense` is DDP as it is."""
    if link is not None:
        ddp.register_comm_hook(Carried(link, _started(ddp, method, powersgd), one_by_one=powersgd is not None), hook)
    elif powersgd is not None:
        ddp.register_comm_hook(powersgd, powerSGD_hook.powerSGD_hook)
    elif method == "fp16":
        ddp.register_comm_hook(ddp.process_group, default_hooks.fp16_compress_hook)


@dataclass(frozen=True)
class Started:
    """A bucket's all-reduce under way, and the bytes that leave this rank for it."""

    wait: Callable[[], Tensor]
    sent: int


Start = Callable[[GradBucket], Started]


def _started(ddp: DistributedDataParallel, method: str, powersgd: Any) -> Start:
    """How torch starts to average a bucket under this method."""
    if powersgd is not None:
        return partial(_start_powersgd, powersgd)
    return _start_fp16 if method == "fp16" else partial(_start_dense, ddp.process_group)


def _start_dense(group: dist.ProcessGroup, bucket: GradBucket) -> Started:
    """As DDP does without a hook, bit for bit: times 1 / n, then summed."""
    buffer, workers = bucket.buffer(), dist.get_world_size(group)
    work: Any = dist.all_reduce(buffer.mul_(1.0 / workers), group=group, async_op=True)

    def wait() -> Tensor:
        work.wait()
        return buffer

    return Started(wait, allreduce_bytes(buffer.nbytes, workers))


def _start_fp16(bucket: GradBucket) -> Started:
    future: Any = default_hooks.fp16_compress_hook(None, bucket)  # type: ignore[arg-type]
    return Started(future.wait, allreduce_bytes(2 * bucket.buffer().numel(), dist.get_world_size()))


def _start_powersgd(state: Any, bucket: GradBucket) -> Started:
    dense, before = state.iter < POWERSGD_START, state.total_numel_after_compression
    future: Any = powerSGD_hook.powerSGD_hook(state, bucket)
    numel = bucket.buffer().numel() if dense else state.total_numel_after_compression - before
    return Started(future.wait, allreduce_bytes(4 * numel, dist.get_world_size()))


@final
class Carried:
    """The buckets of a step as a link carries them: the state of DDP's hook.

    `one_by_one` is for PowerSGD, whose rounds compute between their collectives: its bytes take their time after it.
    """

    def __init__(self, link: Link, start: Start, *, one_by_one: bool = False) -> None:
        self._link, self._start, self._one_by_one = link, start, one_by_one
        self._under_way: list[tuple[Started, float, Future[Tensor]]] = []
        self._before: list[tuple[Started, float, Future[Tensor]]] = []

    def exchange(self, bucket: GradBucket) -> Future[Tensor]:
        """Start to average one bucket; with the last one, wait for all."""
        if bucket.index() == 0:  # of the step before the last, the process group's threads hold nothing any more
            self._before, self._under_way = self._under_way, []
        started, result = self._start(bucket), Future[Tensor]()
        due = 0.0 if self._one_by_one else self._link.carry(started.sent, started.sent)
        self._under_way.append((started, due, result))
        if bucket.is_last():
            for each in self._under_way:
                self._end(*each)
        return result

    def _end(self, started: Started, due: float, result: Future[Tensor]) -> None:
        averaged = started.wait()
        self._link.wait(self._link.carry(started.sent, started.sent) if self._one_by_one else due)
        result.set_result(averaged)


def hook(state: Carried, bucket: GradBucket) -> Future[Tensor]:
    """What DDP calls for each bucket."""
    return state.exchange(bucket)

"""Moves bytes between ranks, knowing nothing of what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor


def allgather_bytes(nbytes: int, workers: int) -> int:
    """Bytes that leave one worker when n workers gather messages of this size from each other: (n - 1) B."""
    return (workers - 1) * nbytes


def allreduce_bytes(nbytes: int, workers: int) -> int:
    """Bytes that leave one worker in a ring all-reduce of a buffer of this size: 2 (n - 1) / n D."""
    return 2 * (workers - 1) * nbytes // workers


@dataclass(frozen=True)
class Traffic:
    """What one exchange cost one worker, in bytes."""

    message: float
    """Length of this worker's own message; in a simulation, the mean over its workers."""
    sent: int
    """What left the worker: its share of the collective, padding and sizes included."""
    received: int
    """What arrived at the worker."""


def _traffic(message: float, longest: int, workers: int, sizes_exchanged: bool) -> Traffic:
    moved = allgather_bytes(longest + 8 * sizes_exchanged, workers)
    return Traffic(message, moved, moved)


class Loopback:
    """n workers in one process: a gather hands every message to everyone, and counts as the real one would."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def gather(self, messages: Sequence[Tensor], *, fixed: bool) -> tuple[list[Tensor], Traffic]:
        """All messages in rank order, and what the exchange would cost each worker."""
        return list(messages), self.cost([message.numel() for message in messages], fixed=fixed)

    def cost(self, sizes: Sequence[int], *, fixed: bool) -> Traffic:
        """What each worker would pay to exchange messages of these sizes (one stands for n equal ones)."""
        mean, rest = divmod(sum(sizes), len(sizes))
        return _traffic(mean + rest / len(sizes) if rest else mean, max(sizes), self._workers, not fixed)


@dataclass(frozen=True)
class Pending:
    """Messages on their way."""

    work: dist.Work
    messages: Sequence[Tensor] | Tensor

    def wait(self) -> Sequence[Tensor] | Tensor:
        """The messages, in rank order (rows of one tensor where they are of one size); raises what the collective
        raised."""
        self.work.wait()
        return self.messages


class Group:
    """The ranks of a torch process group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group if group is not None else dist.group.WORLD
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self._in_use: list[object] = []
        self._done: list[object] = []

    def next_round(self) -> None:
        """Let go of what the collectives before the last round used.

        A thread of the process group lets go of a finished collective's tensors a moment after `wait` returns. Were it
        the last to do so, it would need the interpreter, and abort the process if that is just ending (1 of 75 exits):
        so these tensors are held here until the next round is over.
        """
        self._done, self._in_use = self._in_use, []

    def gather(self, message: Tensor, *, fixed: bool) -> tuple[Pending, Traffic]:
        """All messages in rank order, once they arrive; sizes, where they may differ, are exchanged at once."""
        sizes = [message.numel()] * self.size if fixed else self._sizes(message)
        longest = max(sizes)
        short = longest - message.numel()
        padded = torch.nn.functional.pad(message, (0, short)) if short else message  # padding by nothing would copy
        gathered = padded.new_empty(self.size * longest)
        work = _start_all_gather(gathered, padded, self.group)
        self._in_use += [work, padded, gathered]
        rows = gathered.view(self.size, longest)
        messages = rows if fixed else [row[:size] for row, size in zip(rows, sizes, strict=True)]
        return Pending(work, messages), _traffic(message.numel(), longest, self.size, not fixed)

    def _sizes(self, message: Tensor) -> list[int]:
        mine = torch.tensor([message.numel()], dtype=torch.int64, device=message.device)
        every = mine.new_empty(self.size)
        work = _start_all_gather(every, mine, self.group)
        self._in_use += [work, mine, every]
        work.wait()
        return [int(size) for size in every.tolist()]

    def any(self, marks: Tensor) -> Tensor:
        """For each place, whether any rank marks it; waits for the answer."""
        summed = marks.to(torch.int32)
        self._in_use.append(summed)
        dist.all_reduce(summed, op=dist.ReduceOp.MAX, group=self.group)
        return summed > 0

    def least(self, numbers: Tensor) -> Tensor:
        """For each place, the least number of any rank; waits for the answer."""
        least = numbers.clone()
        self._in_use.append(least)
        dist.all_reduce(least, op=dist.ReduceOp.MIN, group=self.group)
        return least

    def agree(self, item: object) -> list[Any]:
        """Every rank's item, in rank order; waits for all."""
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item, group=self.group)
        return items


def _start_all_gather(out: Tensor, mine: Tensor, group: Any) -> dist.Work:
    """The one place that names torch's gather of equal tensors, which is being renamed."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return cast(dist.Work, gather(out, mine, group=group, async_op=True))

"""Moves bytes between ranks, knowing nothing of what they mean."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import json
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.errors import PeerLost, WireError
from thinwire.roll_call import missing_words

T = TypeVar("T")
LONGEST_TEXT = 1 << 24
"""The longest text in bytes that a rank takes from another: a description of 100,000 parameters is shorter."""


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


class _Held:
    """What the last collectives of a group used, where a thread of the process group may still hold it too."""

    def __init__(self) -> None:
        self.in_use: list[object] = []
        self.done: list[object] = []
        _ALL.add(self)


_ALL: weakref.WeakSet[_Held] = weakref.WeakSet()
_LAST: deque[_Held] = deque(maxlen=4)
"""Of groups that are gone: a program may drop a group and end at once."""


@atexit.register
def _keep_for_good() -> None:
    """At the interpreter's end nobody may be the last to let go of these: they are left to the system."""
    for held in list(_ALL):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


@dataclass(frozen=True)
class Pending:
    """Messages on their way."""

    work: dist.Work
    messages: Sequence[Tensor] | Tensor
    group: Group

    def wait(self, what: str) -> Sequence[Tensor] | Tensor:
        """The messages, in rank order (rows of one tensor where they are of one size); a `PeerLost` where the
        collective failed."""
        self.group.guarded(what, self.work.wait)
        return self.messages


class Group:
    """The ranks of a torch process group. Nothing that travels is pickled: texts are JSON, all else is numbers."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group if group is not None else dist.group.WORLD
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.moment = "attach"
        """What is going on, for the errors of collectives."""
        self._held = _Held()
        weakref.finalize(self, _LAST.append, self._held).atexit = False

    @cached_property
    def _device(self) -> torch.device:
        """Where the tensors of small collectives may lie: on the CPU, or under NCCL alone on this rank's GPU."""
        kinds = {device.type for device in cast(Any, self.group)._device_types}
        return torch.device("cpu" if "cpu" in kinds else sorted(kinds)[0])

    def next_round(self, moment: str) -> None:
        """Let go of what the collectives before the last round used.

        A thread of the process group lets go of a finished collective's tensors a moment after `wait` returns. Were it
        the last to do so, it would need the interpreter, and abort the process if that is just ending (1 of 75 exits):
        so these tensors are held here until the next round is over, and at the interpreter's end for good.
        """
        self.moment = moment
        self._held.done, self._held.in_use = self._held.in_use, []

    def gather(self, message: Tensor, *, fixed: bool, longest: int, what: str) -> tuple[Pending, Traffic]:
        """All messages in rank order, once they arrive; sizes, where they may differ, are exchanged at once.

        `longest` bounds what a rank may announce: no memory is taken for more.
        """
        sizes = [message.numel()] * self.size if fixed else self._sizes(message, longest, what)
        width = max(sizes)
        short = width - message.numel()
        padded = torch.nn.functional.pad(message, (0, short)) if short else message  # padding by nothing would copy
        gathered = padded.new_empty(self.size * width)
        work = self.guarded(what, lambda: _start_all_gather(gathered, padded, self.group))
        self._held.in_use += [work, padded, gathered]
        rows = gathered.view(self.size, width)
        messages = rows if fixed else [row[:size] for row, size in zip(rows, sizes, strict=True)]
        return Pending(work, messages, self), _traffic(message.numel(), width, self.size, not fixed)

    def _sizes(self, message: Tensor, longest: int, what: str) -> list[int]:
        sizes = [size for (size,) in self.everyone([message.numel()], what, message.device)]
        for rank, size in enumerate(sizes):
            if not 0 <= size <= longest:
                raise WireError(
                    f"rank {rank} announces a message of {size} bytes for {what}, where none can be longer than "
                    f"{longest}: its announcement is damaged, or forged"
                )
        return sizes

    def everyone(self, numbers: Sequence[int], what: str, device: torch.device | None = None) -> list[list[int]]:
        """Every rank's few numbers, in rank order; waits for all.

        By all-to-all, each rank tells each other directly: on gloo, four ranks on two cores, 1.4 ms where an all-gather
        takes 5 and an all-reduce 3.
        """
        if self.size == 1:
            return [list(numbers)]
        mine = torch.tensor(numbers, dtype=torch.int64).repeat(self.size).to(device or self._device)
        every = torch.empty_like(mine)
        self._held.in_use += [mine, every]
        self.guarded(what, lambda: dist.all_to_all_single(every, mine, group=self.group))
        return cast(list[list[int]], every.view(self.size, len(numbers)).tolist())

    def any(self, marks: Tensor) -> Tensor:
        """For each place, whether any rank marks it; waits for the answer."""
        return self._reduced(marks.to(torch.int32), dist.ReduceOp.MAX) > 0

    def least(self, numbers: Tensor) -> Tensor:
        """For each place, the least number of any rank; waits for the answer."""
        return self._reduced(numbers.clone(), dist.ReduceOp.MIN)

    def _reduced(self, numbers: Tensor, operation: Any) -> Tensor:
        self._held.in_use.append(numbers)
        self.guarded("a small reduction", lambda: dist.all_reduce(numbers, op=operation, group=self.group))
        return numbers

    def agree(self, item: Any, what: str) -> list[Any]:
        """Every rank's item (made of texts, numbers, lists and dicts), in rank order; waits for all.

        First a digest of fixed size: texts travel only where two of them differ.
        """
        text = json.dumps(item).encode()
        mine = [len(text), *_words(hashlib.sha256(text).digest())]
        every = self.everyone(mine, what)
        if all(theirs == mine for theirs in every):
            return [item] * self.size
        texts = self._texts(text, [theirs[0] for theirs in every], what)
        for rank, (theirs, digest) in enumerate(zip(texts, every, strict=True)):
            if _words(hashlib.sha256(theirs).digest()) != digest[1:]:
                raise WireError(f"rank {rank}'s words for {what} were damaged on their way")
        return [json.loads(theirs) for theirs in texts]

    def _texts(self, text: bytes, sizes: Sequence[int], what: str) -> list[bytes]:
        for rank, size in enumerate(sizes):
            if not 0 <= size <= LONGEST_TEXT:
                raise WireError(f"rank {rank} announces {size} bytes for {what}; at most {LONGEST_TEXT} are taken")
        mine = torch.zeros(max(sizes), dtype=torch.uint8)
        mine[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        mine = mine.to(self._device)
        every = mine.new_empty(self.size * len(mine))
        self._held.in_use += [mine, every]
        self.guarded(what, lambda: _start_all_gather(every, mine, self.group).wait())
        rows = every.view(self.size, -1).cpu().numpy()
        return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]

    def guarded(self, what: str, collective: Callable[[], T]) -> T:
        """What a collective returns; a `PeerLost` in place of what torch raises where somebody is gone."""
        try:
            return collective()
        except (NotImplementedError, torch.OutOfMemoryError):
            raise
        except RuntimeError as error:
            missing = missing_words(self.group)
            raise PeerLost(self.rank, self.size, self.moment, what, self.timeout, str(error), missing) from error

    @property
    def timeout(self) -> timedelta | None:
        """How long a collective waits for the others."""
        try:
            options: Any = cast(Any, self.group)._get_backend(self._device).options
            return cast(timedelta, options._timeout)
        except (AttributeError, RuntimeError):  # a back-end that does not tell
            return None


def _words(digest: bytes) -> list[int]:
    return [int.from_bytes(digest[i : i + 8], "little", signed=True) for i in range(0, len(digest), 8)]


def _start_all_gather(out: Tensor, mine: Tensor, group: Any) -> dist.Work:
    """The one place that names torch's gather of equal tensors, which is being renamed."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return cast(dist.Work, gather(out, mine, group=group, async_op=True))

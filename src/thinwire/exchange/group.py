"""The ranks of a torch process group: what moves bytes between them, and who of them is there.

Who is there is told by the group's store, for collectives cannot tell: gloo's monitored barrier has a limit on rank 0
alone, and other back-ends have none.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import threading
import time
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

from thinwire.errors import AttachError, PeerLost, WireError
from thinwire.exchange.protocol import Traffic

T = TypeVar("T")
DIRECT = 1 << 16
"""Bytes up to which gloo's ranks tell each other directly, by all-to-all, and not around a ring: as many bytes in W - 1
hops fewer. Four ranks on two busy cores: 3.1 to 3.6 ms in place of 4.1 to 4.6, from 1 to 200 kB."""
PATIENCE = 1.0
"""Seconds that other ranks get to say that they too have lost somebody."""


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
    what: str
    traffic: Traffic

    def wait(self) -> Sequence[Tensor] | Tensor:
        """The messages, in rank order (rows of one tensor where they are of one size); a `PeerLost` where the
        collective failed."""
        self.group.guarded(self.what, self.work.wait)
        return self.messages


class Group:
    """The ranks of a torch process group: an `Exchange`. Nothing that travels is pickled."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group if group is not None else dist.group.WORLD
        self.rank, self.size = _place_in(self.group)
        self.moment = "attach"
        """What is going on, for the errors of collectives."""
        self._held = _Held()
        weakref.finalize(self, _LAST.append, self._held).atexit = False

    @cached_property
    def _kinds(self) -> frozenset[str]:
        """The kinds of devices whose tensors the group can move."""
        return frozenset(device.type for device in cast(Any, self.group)._device_types)

    @cached_property
    def _is_gloo(self) -> bool:
        group = cast(Any, self.group)
        return self._kinds == {"cpu"} and isinstance(group._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)

    @cached_property
    def _device(self) -> torch.device:
        """Where the tensors of small collectives may lie: on the CPU, or under NCCL alone on this rank's GPU."""
        return torch.device("cpu" if "cpu" in self._kinds else sorted(self._kinds)[0])

    def begin(self, moment: str) -> None:
        """A round of collectives begins: let go of what those before the last round used.

        A thread of the process group lets go of a finished collective a moment after `wait` returns. Where only Python
        holds its tensors then, that thread needs the interpreter, and aborts the process if it is just ending (1 of 75
        exits; 47 of 80 where the thread is starved). The collective itself holds its tensors, outside Python: so it is
        held here until the next round is over, and at the interpreter's end for good.
        """
        self.moment = moment
        self._held.done, self._held.in_use = self._held.in_use, []

    def gather(self, message: Tensor, *, fixed: bool, longest: int, what: str) -> Pending:
        """All messages in rank order, once they arrive; sizes, where they may differ, are exchanged at once.

        `longest` bounds what a rank may announce: no memory is taken for more.
        """
        message = message if message.device.type in self._kinds else message.to(self._device)
        sizes = [message.numel()] * self.size if fixed else self._sizes(message, longest, what)
        width = max(sizes)
        short = width - message.numel()
        padded = torch.nn.functional.pad(message, (0, short)) if short else message  # padding by nothing would copy
        gathered = padded.new_empty(self.size * width)
        if self._is_gloo and width <= DIRECT:
            padded = padded.repeat(self.size)
            work = self.guarded(what, lambda: _start_all_to_all(gathered, padded, self.group))
        else:
            work = self.guarded(what, lambda: _start_all_gather(gathered, padded, self.group))
        self._held.in_use += [work, padded, gathered]
        rows = gathered.view(self.size, width)
        messages = rows if fixed else [row[:size] for row, size in zip(rows, sizes, strict=True)]
        traffic = Traffic.of_gather(message.numel(), width, self.size, sizes_exchanged=not fixed)
        return Pending(work, messages, self, what, traffic)

    def scatter(self, rows: Tensor, what: str) -> Pending:
        """Row j to rank j; all ranks' rows are of one size."""
        got = torch.empty_like(rows)
        work = self.guarded(what, lambda: _start_all_to_all(got.view(-1), rows.view(-1), self.group))
        self._held.in_use += [work, rows, got]
        size = rows.shape[1]
        return Pending(work, got, self, what, Traffic.of_gather(size, size, self.size, sizes_exchanged=False))

    def trade(self, letters: Sequence[Tensor], sizes: Sequence[int], what: str) -> Pending:
        """Letter j to rank j; rank i's has the i-th of these sizes."""
        own = [letter.numel() for letter in letters]
        sent = torch.cat([*letters])
        sent = sent if sent.device.type in self._kinds else sent.to(self._device)
        got = sent.new_empty(sum(sizes))
        work = self.guarded(what, lambda: _start_all_to_all(got, sent, self.group, list(sizes), own))
        self._held.in_use += [work, sent, got]
        return Pending(work, torch.split(got, list(sizes)), self, what, Traffic.of_trade(own, sizes, self.rank))

    def reduce_(self, numbers: Tensor, what: str) -> Pending:
        """Numbers in place of their sum over all ranks."""
        work = self.guarded(what, lambda: _start_all_reduce(numbers, self.group))
        self._held.in_use += [work, numbers]
        return Pending(work, numbers, self, what, Traffic.of_reduce(numbers.nbytes, self.size))

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
        work = self.guarded(what, lambda: _start_all_to_all(every, mine, self.group))
        self._held.in_use += [work, mine, every]
        self.guarded(what, work.wait)
        return cast(list[list[int]], every.view(self.size, len(numbers)).tolist())

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


def _start_all_gather(out: Tensor, mine: Tensor, group: Any) -> dist.Work:
    """The one place that names torch's gather of equal tensors, which is being renamed."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return cast(dist.Work, gather(out, mine, group=group, async_op=True))


def _start_all_reduce(numbers: Tensor, group: Any) -> dist.Work:
    return cast(dist.Work, dist.all_reduce(numbers, group=group, async_op=True))


def _start_all_to_all(
    out: Tensor, mine: Tensor, group: Any, received: list[int] | None = None, sent: list[int] | None = None
) -> dist.Work:
    return cast(dist.Work, dist.all_to_all_single(out, mine, received, sent, group=group, async_op=True))


# --------------------------------------------------------------------------------------------------------- who is there


def assemble(group: Any, what: str, limit: timedelta) -> None:
    """Wait until every rank has come here as often as this one, for no longer than the limit."""
    store, (rank, size) = _store(group), _place_in(group)
    if store is None or size == 1:
        return
    places = [f"thinwire/{what}/{each}" for each in range(size)]
    mine = store.add(places[rank], 1)
    deadline, pause = time.monotonic() + limit.total_seconds(), 0.001
    while missing := [each for each, place in enumerate(places) if store.add(place, 0) < mine]:
        if time.monotonic() > deadline:
            store.add(places[rank], -1)
            raise AttachError(
                f"{what} must be called on every rank at the same point of the program: rank {rank} has waited "
                f"{limit.total_seconds():g} s (patience= of {what}) for {_named(missing)} of {size}"
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.25)


def missing_words(group: Any) -> str:
    """Words for an error: which ranks do not say, within a second, that they too have lost somebody. Of a group that
    torch has no record of, and so no store, nothing can be said."""
    if _store(group) is None:
        return ""
    silent = _silent(group)
    if silent is None:
        return "; the group's store does not answer either, so look at the host that runs it"
    if not silent:
        return "; all ranks still run, so it was the network between them"
    return f"; {_named(silent)} {'does' if len(silent) == 1 else 'do'} not answer"


def _silent(group: Any) -> list[int] | None:
    """The ranks that do not answer; None where the store does not. In a thread, for asking a store has no time-out."""
    rank, size = _place_in(group)
    heard, over = {rank}, threading.Event()

    def ask() -> None:
        with contextlib.suppress(Exception):
            store = _store(group)
            store.set(f"thinwire/lost/{rank}", "here")
            deadline = time.monotonic() + PATIENCE
            while len(heard) < size and time.monotonic() < deadline:
                heard.update(each for each in range(size) if each in heard or store.check([f"thinwire/lost/{each}"]))
                time.sleep(0.02)
            over.set()

    threading.Thread(target=ask, daemon=True).start()
    return [each for each in range(size) if each not in heard] if over.wait(1.5 * PATIENCE) else None


def _place_in(group: Any) -> tuple[int, int]:
    """This process's rank, and how many there are: also of a group that torch has no record of."""
    if isinstance(group, dist.ProcessGroup):
        return group.rank(), group.size()
    return dist.get_rank(group), dist.get_world_size(group)


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _store(group: Any) -> Any:
    """The group's store, where torch gives it; it is private there."""
    with contextlib.suppress(Exception):
        return dist.distributed_c10d._get_process_group_store(group)
    return None

"""Replays: what a worker launches on a GPU about a bucket is recorded once, and from then on repeated by one launch.

A step under top-k is about forty launches for each bucket and way, of 5 to 10 microseconds of the host's each: more
than the kernels take. They are the same in every step but for a few numbers (a key's words, step sizes, the digest in
the head of a letter). Those lie on `Dials`, in memory that stays, and the launches become a CUDA graph.

Rules and compressors know nothing of it but for `pattern`, by which they say which steps are alike.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from thinwire.ops.keys import Key
from thinwire.ops.live import Dials, LiveKey, LiveRatios, NotRepeatable, recording

LOG = logging.getLogger("thinwire")
SWITCH = "THINWIRE_REPLAY"
"""The environment variable that turns replays off, by 0."""
ALIKE = 2
"""How often the same is done launch by launch before it is recorded: kernels are compiled and tables made in these."""
MOST = 512
"""Recordings of one worker: a bucket and way has one, or a few."""
Extra = TypeVar("Extra")
Told = TypeVar("Told", covariant=True)


@dataclass(frozen=True)
class Now:
    """The numbers of a step: as the host knows them, or on dials."""

    key: Key
    ratios: tuple[Sequence[float] | None, ...] = ()
    """For each part of a bucket the previous step size over this one, where its rule needs it."""
    digest: int | Tensor | None = None
    """Of what ranks must have in common, where it is asked for."""

    def on(self, dials: Dials, told: Callable[[], Now]) -> Now:
        """The same on dials, set from what is `told` later on."""

        def ratios_of(place: int, count: int) -> LiveRatios:
            def now(step: int) -> Tensor:
                return torch.tensor([*(told().ratios[place] or ())], dtype=torch.float64).view(torch.int64)

            return LiveRatios(dials.add(count, now).view(torch.float64))

        return Now(
            LiveKey.of(self.key, dials),
            tuple(None if each is None else ratios_of(place, len(each)) for place, each in enumerate(self.ratios)),
            None
            if self.digest is None
            else dials.add(1, lambda step: torch.tensor([told().digest], dtype=torch.int64)),
        )


class Work(Protocol[Told]):
    """Operations on a device: what they read, what they write, and a step's numbers; gives tensors, and what else is
    known of them without looking at the device."""

    def __call__(self, read: Sequence[Tensor], written: Sequence[Tensor], now: Now) -> tuple[list[Tensor], Told]: ...


class Replays(Generic[Extra]):
    """One worker's recordings, each known by what was asked for."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, _Seen] = {}
        self._tapes: dict[Hashable, Tape[Extra] | None] = {}
        self._pool: Any = None
        self._lies: Hashable = None

    def at(self, lies: Hashable) -> Self:
        """These recordings, if what they move still lies where it did; else none of them."""
        if lies != self._lies:
            self.clear()
            self._lies = lies
        return self

    def do(
        self, what: Hashable | None, read: Sequence[Tensor], written: Sequence[Tensor], now: Now, work: Work[Extra]
    ) -> tuple[list[Tensor], Extra]:
        """The work, launch by launch or by a recording of it: the same numbers either way. None has no recording."""
        if what is None or not is_on():
            return work(read, written, now)
        if what not in self._tapes and not self._is_due(what):
            found, extra = work(read, written, now)
            self._see(what, found)
            return found, extra
        tape = self._tapes[what] if what in self._tapes else self._record(what, read, written, now, work)
        repeated = None if tape is None else tape.run(read, written, now)
        if tape is not None and repeated is None:
            tape = self._record(what, read, written, now, work, staged=True)
            repeated = None if tape is None else tape.run(read, written, now)
        return work(read, written, now) if tape is None or repeated is None else (repeated, tape.extra)

    def clear(self) -> None:
        """Forget everything, for much has changed."""
        self._seen, self._tapes = {}, {}

    def __reduce__(self) -> tuple[type[Replays[Extra]], tuple[()]]:
        return type(self), ()  # a copy records its own

    def _is_due(self, what: Hashable) -> bool:
        """Whether the same was done often enough; what comes once and not again is not recorded."""
        return len(self._tapes) < MOST and what in self._seen and self._seen[what].times >= ALIKE

    def _see(self, what: Hashable, found: Sequence[Tensor]) -> None:
        if len(self._seen) >= 2 * MOST:
            self._seen = {each: self._seen[each] for each in self._tapes}
        times = 1 + (self._seen[what].times if what in self._seen else 0)
        self._seen[what] = _Seen(times, tuple((each.shape, each.dtype) for each in found))

    def _record(
        self,
        what: Hashable,
        read: Sequence[Tensor],
        written: Sequence[Tensor],
        now: Now,
        work: Work[Extra],
        *,
        staged: bool = False,
    ) -> Tape[Extra] | None:
        """A recording; None where it cannot be had, and then never again for the same."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        device = (*read, *written)[0].device
        found = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self._seen[what].made]
        self._tapes[what] = None
        try:
            self._tapes[what] = Tape(self._pool, read, written, found, now, work, staged=staged)
        except (NotRepeatable, RuntimeError) as error:
            self._pool = None  # after a failure it cannot be recorded to
            LOG.info("a step is launched kernel by kernel, for it cannot be recorded: %s", error)
        return self._tapes[what]


@dataclass(frozen=True)
class _Seen:
    """How often work was done launch by launch, and the shapes and types of what it gave."""

    times: int
    made: tuple[tuple[Any, torch.dtype], ...]


def is_on() -> bool:
    """Whether replays are wanted, and possible: not where the user records the whole step."""
    recorded_by_user = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]
    return os.environ.get(SWITCH, "1") != "0" and not recorded_by_user


class Tape(Generic[Extra]):
    """Work as a CUDA graph.

    What it gives lies in memory of its own. All else that it makes on the way lies in a pool that a worker's tapes
    share, for they run one after the other.
    """

    def __init__(
        self,
        pool: Any,
        read: Sequence[Tensor],
        written: Sequence[Tensor],
        found: list[Tensor],
        now: Now,
        work: Work[Extra],
        *,
        staged: bool,
    ) -> None:
        device = (*read, *written)[0].device
        self._found = found
        self._read, self._written = ([torch.empty_like(t) if staged else t for t in each] for each in (read, written))
        self._staged, self._now = staged, now
        self._dials = Dials(device, 64 + 8 * sum(len(each or ()) for each in now.ratios) + ROOM)
        live = now.on(self._dials, lambda: self._now)
        self._graph, keeper = torch.cuda.CUDAGraph(), Keeper()
        here, beside = torch.cuda.current_stream(device), _recording_stream(device)
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            self.extra = self._recorded(pool, keeper, work, live)
        here.wait_stream(beside)
        self._kept = keeper.kept

    def _recorded(self, pool: Any, keeper: Keeper, work: Work[Extra], live: Now) -> Extra:
        with _without_collection():
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                with keeper:
                    made, extra = work(self._read, self._written, live)
                    _copy_all_(self._found, made)
            finally:
                self._graph.capture_end()
        return extra

    def run(self, read: Sequence[Tensor], written: Sequence[Tensor], now: Now) -> list[Tensor] | None:
        """Do it again with these numbers; None where tensors lie elsewhere than when it was recorded."""
        if not self._staged and not all(
            own.data_ptr() == given.data_ptr()
            for own, given in zip((*self._read, *self._written), (*read, *written), strict=True)
        ):
            return None
        self._now = now
        self._dials.set_(now.key.step)
        if self._staged:
            _copy_all_(self._read, read)
        self._graph.replay()
        if self._staged:
            _copy_all_(written, self._written)
        return self._found


WAITING = {
    torch.ops.aten._local_scalar_dense,
    torch.ops.aten.nonzero,
    torch.ops.aten.masked_select,
    torch.ops.aten._unique2,
    torch.ops.aten.unique_dim,
}
"""Operations whose result the host has to look at, if only to know its size."""
ROOM = 1 << 13
"""Words on dials beside the step sizes: keys of 8,000 parameters."""


def _copy_all_(into: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    for own, each in zip(into, given, strict=True):
        own.copy_(each)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Without the garbage collector: another graph that it destroys would spoil the recording."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@lru_cache(maxsize=16)
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Nothing can be recorded on the default stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Keeper(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Holds on to every tensor that was there before a recording and is used in it, such as a table: the graph knows
    its address alone. Refuses to bring anything from the host, which a graph would read anew from where it was."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: list[Tensor] = []
        self._old: set[int] = set()
        self._made: set[int] = set()

    def __enter__(self) -> Keeper:
        recording.keeper = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        recording.keeper = None
        super().__exit__(*exception)  # type: ignore[no-untyped-call]

    def _check(self, func: Any, given: Sequence[Any]) -> None:
        """Refuse what would spoil a recording, before it does: torch could not go on from that."""
        counts = func.overloadpacket is torch.ops.aten.repeat_interleave and not any(isinstance(n, int) for n in given)
        waits = counts or func.overloadpacket in WAITING
        if waits and any(isinstance(each, Tensor) and each.is_cuda for each in given):
            raise NotRepeatable(f"{func} makes the host wait")
        here = {each.device.type for each in given if isinstance(each, Tensor) and each.dim()}
        here |= {each.type for each in given if isinstance(each, torch.device)}
        if len(here) > 1:
            raise NotRepeatable(f"{func} takes numbers from the host")

    def take(self, given: Iterable[Any]) -> None:
        """Tensors that a launch is given."""
        for each in given:
            place = each.untyped_storage().data_ptr() if isinstance(each, Tensor) and each.is_cuda else 0
            if place and place not in self._made and place not in self._old:
                self._old.add(place)
                self.kept.append(each)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_leaves((args, kwargs))
        self._check(func, given)
        self.take(given)
        found = func(*args, **(kwargs or {}))
        made = [each for each in tree_leaves(found) if isinstance(each, Tensor) and each.is_cuda]
        self._made |= {place for each in made if (place := each.untyped_storage().data_ptr()) not in self._old}
        return found

"""Steps: how far the channels of a process have come, and what the step under way has done so far."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from thinwire.feedback import Feedback, Need
from thinwire.layout import Layout
from thinwire.ops import first_nonfinite
from thinwire.ops.blocks import on_device
from thinwire.payload.letter import FINITE, Expected, refuse
from thinwire.store import Store


@dataclass(frozen=True)
class Progress:
    """What has been finished so far."""

    step: int = 0
    started: frozenset[str] = frozenset()
    """The parameters that were exchanged before."""
    step_sizes: Mapping[str, float] = field(default_factory=dict)
    """The step size with which each parameter was exchanged last."""
    turn: int = 0
    """A number for each step that was begun, finished or not: what moved in an earlier turn has settled."""


class Clock:
    """The present progress.

    `finish` is a single assignment. So whoever interrupts a step at any point, as a signal handler does, sees all of
    the last finished step and nothing of the present one; another thread does so while it holds the lock, in which
    nothing can begin to move and no step can finish.
    """

    def __init__(self) -> None:
        self.now = Progress()
        self.lock = threading.RLock()

    def finish(self, exchanged: Collection[str], step_sizes: Mapping[str, float]) -> None:
        """A step is done: these parameters were exchanged, with these step sizes."""
        now = self.now
        started = now.started if now.started.issuperset(exchanged) else now.started.union(exchanged)
        with self.lock:
            self.now = Progress(now.step + 1, started, {**now.step_sizes, **step_sizes}, now.turn + 1)

    def abandon(self) -> None:
        """A step is given up, and all that moved in it is back in its place."""
        with self.lock:
            self.now = replace(self.now, turn=self.now.turn + 1)

    def __getstate__(self) -> Progress:
        return self.now

    def __setstate__(self, now: Progress) -> None:
        self.now, self.lock = now, threading.RLock()


@dataclass(frozen=True)
class Part:
    """The pieces of a bucket that share a rule and a phase, packed together."""

    rule: Feedback
    layout: Layout
    places: tuple[int, ...]
    first: bool

    def take(self, flat: Tensor, bucket: Layout, dtype: torch.dtype, scale: float) -> Tensor:
        """This part of the bucket, in the state's type and unscaled units; the bucket is left as it is."""
        whole = len(self.places) == len(bucket.pieces)
        part = flat if whole else torch.cat([flat[bucket.pieces[i].part] for i in self.places])
        part = part.to(dtype)
        return part if scale == 1.0 else part.div(scale)

    def put(self, part: Tensor, flat: Tensor, bucket: Layout) -> None:
        """Write this part back into the bucket, in the bucket's type."""
        if len(self.places) == len(bucket.pieces):
            flat.copy_(part)
            return
        for place, (_, view) in zip(self.places, self.layout.views(part), strict=True):
            flat[bucket.pieces[place].part] = view.to(flat.dtype)


@lru_cache(maxsize=1024)
def part_of(bucket: Layout, rule: Feedback, first: bool, places: tuple[int, ...]) -> Part:
    """The part of a bucket at these places; kept, for each step asks for it."""
    return Part(rule, _packed(bucket, places), places, first)


def parts_of(
    bucket: Layout, used: Sequence[bool], rules: Mapping[str, Feedback], started: Collection[str]
) -> tuple[Part, ...]:
    """The pieces of a bucket that are used, grouped by rule and by whether they were exchanged before."""
    groups: dict[tuple[Feedback, bool], list[int]] = {}
    for place, piece in enumerate(bucket.pieces):
        if used[place]:
            groups.setdefault((rules[piece.name], piece.name not in started), []).append(place)
    return tuple(part_of(bucket, rule, first, tuple(places)) for (rule, first), places in groups.items())


def held_of(part: Part, step_sizes: Mapping[str, float] | None) -> set[str]:
    """Parameters about which nothing can be said in units of updates, for their step size is zero."""
    if step_sizes is None or Need.STEP_SIZE not in part.rule.needs:
        return set()
    return {piece.name for piece in part.layout.pieces if step_sizes[piece.name] == 0}


@lru_cache(maxsize=1024)
def _packed(bucket: Layout, places: tuple[int, ...]) -> Layout:
    """The layout of some pieces, one and the same object at every step: tables are looked up by it a dozen times a
    step, and a layout that is merely equal is compared piece by piece."""
    chosen = set(places)
    packed = bucket.select([i in chosen for i in range(len(bucket.pieces))])
    return bucket if packed == bucket else packed


@dataclass(frozen=True)
class Fault:
    """Whose numbers are not finite, in which parameter: a gradient's, or a memory's that overflows."""

    rank: int | None
    """None where it is what all ranks' messages add up to."""
    parameter: str
    overflows: bool = False


@dataclass(frozen=True)
class Unjudged:
    """An answer that was decoded on a GPU without waiting: its verdict is still there."""

    messages: Sequence[Tensor] | Tensor
    expected: Expected | None
    """None of a mean, of which there are no messages."""
    layout: Layout
    out: Tensor
    verdict: Tensor
    """For each rank its flag, for each rank whether its message was sound, and the place of an overflow or -1."""


class Underway:
    """The step under way on one worker: what moved in it, and whether it can be taken.

    It ends by `finish`, which keeps what was done, or by `undo_`.
    """

    def __init__(self, worker: Store, server: Store, clock: Clock) -> None:
        self._worker, self._server, self._clock = worker, server, clock
        self._sent: list[Part] = []
        self._moved: list[tuple[Store, Layout]] = []
        self.unjudged: list[Unjudged] = []
        """What was received without looking at it."""
        self.held: set[str] = set()
        """Parameters about which nothing could be said."""
        self.step_sizes: dict[str, float] = {}
        """The step sizes with which parameters are exchanged in this step."""
        self.fault: Fault | None = None
        """What was not finite, as far as was judged."""
        self._memories_checked = False
        self._cleared: set[tuple[Store, Layout]] = set()
        """What is known to be finite of what has moved: which store's, and of whom."""
        self._look: Inspection | None = None

    @property
    def has_begun(self) -> bool:
        """Whether anything was sent or received in it."""
        return bool(self._moved)

    def begin_sending(self, part: Part) -> None:
        """The worker's state of a part is about to move."""
        self.begin(self._worker, part.layout)
        self._sent.append(part)

    def begin_receiving(self, part: Part) -> None:
        """The common state of a part is about to move."""
        self.begin(self._server, part.layout)

    def begin(self, store: Store, layout: Layout) -> None:
        """Note a layout's state before it moves: what `undo_` goes back to, and what is saved meanwhile."""
        self._moved.append((store, layout))
        store.remember(layout)
        with self._clock.lock:
            store.move(layout, self._clock.now.turn)

    def clear(self, parts: Sequence[Part]) -> None:
        """What this worker remembers of some parts is known to be finite."""
        for part in parts:
            self.clear_in(self._worker, part.layout)

    def clear_in(self, store: Store, layout: Layout) -> None:
        """The same of a layout in one of the stores."""
        self._cleared.add((store, layout))

    def take_back(self, parts: Sequence[Part]) -> None:
        """Put this worker's state of some parts back as it was before they were sent; they may be sent again."""
        for part in parts:
            self._worker.restore(part.layout, self._clock.now.turn)

    def refuse(self, layout: Layout, flags: Sequence[int], overflow: int) -> bool:
        """Note a gradient that some rank flags as not finite, or a sum that overflows; whether there is either."""
        flagged = ((rank, place) for rank, place in enumerate(flags) if place != FINITE)
        rank, place = next(flagged, (None, overflow))
        if place == FINITE:
            return False
        self.fault = self.fault or Fault(rank, layout.pieces[place].name)
        return True

    def judge(self, rank: int, ranks: int) -> None:
        """Inspection at what was received without waiting, and once at what is remembered after it."""
        self.look()
        assert self._look is not None
        verdicts, suspects = self._look.found()
        unjudged, self.unjudged, self._look = self.unjudged, [], None
        for one, verdict in zip(unjudged, verdicts, strict=True):
            flags, sound, overflow = verdict[:ranks], verdict[ranks:-1], verdict[-1]
            if not all(sound) and one.expected is not None:
                one.out.fill_(math.nan)
                for spoilt in (place for place, is_sound in enumerate(sound) if not is_sound):
                    refuse(one.messages[spoilt], one.expected, spoilt)
            if self.refuse(one.layout, flags, overflow):
                one.out.fill_(math.nan)
        self._memories_checked = True
        self._check(suspects, rank)

    def overflow(self, parts: Sequence[Part]) -> str | None:
        """The first parameter of some parts of which this worker remembers what is not finite."""
        memories = [pair for part in parts for pair in self._worker.vectors(part.layout)]
        for layout, flat in Inspection([], memories).found()[1]:
            if (place := int(first_nonfinite(flat, layout))) != FINITE:
                return layout.pieces[place].name
        self.clear(parts)
        return None

    def look(self) -> None:
        """Begin to look at what was received, and at what is remembered: whoever judges may do something else before it
        waits for the GPU."""
        if self._look is None:
            memories = [] if self._memories_checked else self._memories()
            self._look = Inspection([one.verdict for one in self.unjudged], memories)

    def refused(self) -> Tensor | None:
        """What `judge` will find, as 0 or 1 on the device that it is known on; None where that is the host."""
        self.look()
        assert self._look is not None
        return self._look.refused()

    def _memories(self) -> list[tuple[Layout, Tensor]]:
        """All that this rank remembers, or all ranks hold in common, of what moved in the step."""
        moved = ((store, layout) for store, layout in self._moved if (store, layout) not in self._cleared)
        return [pair for store, layout in moved for pair in store.vectors(layout)]

    def _check(self, memories: Sequence[tuple[Layout, Tensor]], rank: int) -> None:
        """Find out whether memories are still finite."""
        for layout, flat in memories if self.fault is None else ():
            place = int(first_nonfinite(flat, layout))
            if place != FINITE and self.fault is None:
                self.fault = Fault(rank, layout.pieces[place].name, overflows=True)

    def finish(self) -> None:
        """The step is taken: the clock moves on, for all channels that share it."""
        sent = {piece.name for part in self._sent for piece in part.layout.pieces}
        self._clock.finish(sent - self.held, self.step_sizes)
        self.forget()

    def undo_(self) -> None:
        """Put all that moved back into its place."""
        turn = self._clock.now.turn
        for store, layout in self._moved:
            store.restore(layout, turn)
        self.forget()

    def forget(self) -> None:
        """Let go of what `undo_` would need; the next step begins."""
        self._sent, self._moved, self.unjudged = [], [], []
        self.held, self.step_sizes = set(), {}
        self.fault, self._memories_checked, self._look = None, False, None
        self._cleared = set()


class Inspection:
    """A look at some verdicts, and at memories that may hold NaN or infinity: on a GPU by each one's largest magnitude,
    in a few launches, and one wait."""

    def __init__(self, verdicts: Sequence[Tensor], memories: Sequence[tuple[Layout, Tensor]]) -> None:
        self._memories = [(layout, flat) for layout, flat in memories if flat.numel()]
        self._number, self._width = len(verdicts), verdicts[0].numel() if verdicts else 1
        self._on_gpu = bool(self._memories) and self._memories[0][1].is_cuda
        largest = torch._foreach_norm([flat for _, flat in self._memories], math.inf) if self._on_gpu else ()
        fine = [torch.isfinite(torch.stack([each.double() for each in largest]))] if largest else []
        told = [*verdicts, *fine]
        self._all = torch.cat(told).to(torch.int64) if told else None
        self._told = None if self._all is None else _Told(self._all)

    def refused(self) -> Tensor | None:
        """1 if anything is not as it should be, else 0: on the device, where nobody waits for it. None of nothing."""
        if self._all is None:
            return None
        ranks = (self._width - 1) // 2
        right = (*(FINITE,) * ranks, *(1,) * ranks, FINITE) * self._number
        right += (1,) * (self._all.numel() - len(right))
        return (self._all != on_device(right, torch.int64, self._all.device)).any().to(torch.float32)

    def found(self) -> tuple[list[list[int]], Sequence[tuple[Layout, Tensor]]]:
        """The verdicts, and the memories that are not finite for sure."""
        told = [] if self._told is None else self._told.numbers()
        end = self._width * self._number
        rows = [told[start : start + self._width] for start in range(0, end, self._width)]
        if not self._on_gpu:
            return rows, self._memories
        return rows, [pair for pair, is_fine in zip(self._memories, told[end:], strict=True) if not is_fine]


class _Told:
    """A few numbers on their way from a GPU to the host."""

    def __init__(self, numbers: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._numbers = numbers
        if numbers.is_cuda:
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def numbers(self) -> list[int]:
        """Once they are here. What was launched after them is not waited for."""
        if self._event is not None:
            self._event.synchronize()
        return [int(number) for number in self._numbers.tolist()]

"""The arrays that the compiled steps work on: those that all threads share, and those of one thread."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from thinwire.linear.steps.maxima import level_offsets, padded
from thinwire.ops.cpu.intrinsics import LANES

LINE = 64
"""Bytes of a cache line: what two threads write to lies in different ones."""
NEXT, STOP, LEFT, BROKEN = 0, LINE // 8, 2 * LINE // 8, 3 * LINE // 8
"""Places in `Shared.counter`: the next step that nobody has taken, whether to take no more, how many threads are done,
and whether one of them never will be."""
OWN, END, ROOM = 0, 1, 2
"""Places in `Private.log`: which log is the thread's own, where it ends, and where it has to wait for its readers."""
LOG = 1 << 14
"""Numbers in a log: the steps of some hundred microseconds or more."""
COUNT, FLOOR = 0, 1
"""Places in `Private.heap`: how many entries are in it, and the magnitude that all of them have at least."""


class Shared(NamedTuple):
    """One vector v with x = s v, the intercept, the counter of steps, and the threads' logs."""

    v: Any
    """In units: u x/s."""
    squares: Any
    """u² of 64 neighbours each, empty where all units are one."""
    intercept: Any
    counter: Any
    atomic: bool
    """Whether several threads add to v, and none of what they add may be lost."""
    columns: Any
    """Where each thread has added something to its copy of v, one log in a row; empty where there are no copies."""
    changes: Any
    """What it was."""
    ends: Any
    """How much of each log may be read: the first number of a row."""
    seen: Any
    """How much of each log (columns) each thread (rows) has read."""

    def with_logs(self, size: int) -> Shared:
        """Logs of another size, all empty: nothing in them is needed between runs."""
        columns, changes = (np.zeros((len(self.ends), size), log.dtype) for log in (self.columns, self.changes))
        return self._replace(columns=columns, changes=changes)


class Private(NamedTuple):
    """A thread's own arrays: its memories m (in units: m/u), one in a row; what it needs to choose, and to average."""

    memory: Any
    bits: Any
    """The same memory as integers."""
    maxima: Any
    """The tree over each memory; see `maxima`."""
    keys: Any
    """Magnitudes in the heap of each memory; see `choice`."""
    places: Any
    """Whose they are."""
    heap: Any
    margin: Any
    """By how many bits the floor of a heap lies below the threshold: by 2⁻⁷ to 2⁻⁸ of it."""
    block: Any
    """Room for 64 numbers."""
    block_bits: Any
    offsets: Any
    mask: Any
    marks: Any
    """The last step at which a coordinate was drawn."""
    row: Any
    """Room for one row, all zero between steps."""
    v: Any
    """Its own copy of v, or v itself."""
    fresh: Any
    """What the step at hand has added to its copy: how many numbers, and where."""
    changes: Any
    """What they were."""
    log: Any
    """Three numbers about its log: see `OWN`."""
    seen: Any
    """How much it has read of each log."""
    credit: Any
    """Σ_u (change of v at u) · (weight of the iterates before it): see `Stretch.weight`. The last: the intercept's."""

    def joined(self, shared: Shared) -> Private:
        """Pickled arrays come back apart: numbers as integers must be the numbers themselves, and v that of all."""
        whole = self.bits.dtype
        v = self.v if len(shared.ends) else shared.v
        return self._replace(bits=self.memory.view(whole), block_bits=self.block.view(whole), v=v)


class Settings(NamedTuple):
    """What stays the same for a whole run."""

    loss: int
    strength: float
    """λ, where the regulariser goes through the memory; else 0."""
    intercept: float
    """The share of the step size that the intercept moves with; 0 for none."""
    key: Any
    """Of the masks of RANDOM and the levels of LEVELS."""


def shared_state(v: Any, squares: Any, threads: int, *, atomic: bool, copies: bool) -> Shared:
    """With logs, where every thread has a copy of v."""
    logs = threads if copies else 0
    return Shared(
        v=v,
        squares=squares,
        intercept=np.zeros(LINE // 8),
        counter=np.zeros(4 * LINE // 8, np.int64),
        atomic=atomic and threads > 1 and not copies,
        columns=np.zeros((logs, LOG), np.int32),
        changes=np.zeros((logs, LOG), v.dtype),
        ends=np.zeros((logs, LINE // 8), np.int64),
        seen=np.zeros((logs, max(logs, LINE // 8)), np.int64),
    )


def private_state(
    shared: Shared, worker: int, memories: int, most: int, *, tree: bool, heap: bool, marks: bool, row: bool, mean: bool
) -> Private:
    """Zeros, of no size where a run has no use for them; `most` is what a step may write."""
    d, dtype, logs = shared.v.size, shared.v.dtype, len(shared.ends)
    width, whole = padded(d), np.dtype(f"i{np.dtype(dtype).itemsize}")
    offsets = level_offsets(d)
    memory, block = np.zeros((memories, width), dtype), np.zeros(LANES, dtype)
    entries = 2 * width if heap else 0
    return Private(
        memory=memory,
        bits=memory.view(whole),
        maxima=np.zeros((memories, offsets[-1] if tree else 0), whole),
        keys=np.zeros((memories, entries), whole),
        places=np.zeros((memories, entries), np.uint32),
        heap=np.tile(np.array([0, np.iinfo(whole).max], whole), (memories, 1)),
        margin=whole.type(1 << (np.finfo(dtype).nmant - 7)),
        block=block,
        block_bits=block.view(whole),
        offsets=offsets,
        mask=whole.type(np.iinfo(whole).max),
        marks=np.zeros(d if marks else 0, np.int64),
        row=np.zeros(d if row else 0, dtype),
        v=np.zeros_like(shared.v) if logs else shared.v,
        fresh=np.zeros(most + 1 if logs else 0, np.int64),
        changes=np.zeros(most if logs else 0, dtype),
        log=np.array([worker, 0, 0]),
        seen=np.zeros(logs, np.int64),
        credit=np.zeros(d + 1 if mean else 0),
    )

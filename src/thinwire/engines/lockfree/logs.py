"""Copies of x, one a thread, kept alike by logs: a thread adds to its own copy, and writes down what it added.

The others read that and add it to theirs. So no number is written by two threads, nothing is lost, and nobody reads
what is not in a cache of its own but the logs, one line for eight numbers or more. (Atomic additions to one vector take
some 28 ns each where another core reads the same line, and send its readers to that core.) Whoever is done last has
seen all logs: its copy is x.

A log is a ring. Where it is full, its thread waits until all others that still take steps have read its oldest part.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.engines.lockfree import atomics
from thinwire.engines.lockfree.kernel import kernel
from thinwire.engines.lockfree.state import BROKEN, END, LEFT, OWN, ROOM

# numba's types would have their callers pass the compiler's own first argument
fetch_add_: Any = atomics.fetch_add_
read: Any = atomics.read
write_: Any = atomics.write_
GONE = np.iinfo(np.int64).max
"""What a thread has read that will read no more."""


@kernel
def enter_(shared: Any, private: Any) -> None:  # pragma: no cover
    """A copy of x, before the first step of a stretch."""
    for j in range(shared.v.size):
        private.v[j] = shared.v[j]
    private.seen[:] = 0
    private.log[END], private.log[ROOM] = 0, shared.columns.shape[1]


@kernel
def write_down_(shared: Any, private: Any, j: int, change: Any) -> None:  # pragma: no cover
    """v_j += change in the own copy; `publish_` tells the others."""
    if private.log[END] == private.log[ROOM]:
        wait_(shared, private)
    own, place = private.log[OWN], private.log[END] & (shared.columns.shape[1] - 1)
    shared.columns[own, place], shared.changes[own, place] = j, change
    private.log[END] += 1
    private.v[j] += change


@kernel
def publish_(shared: Any, private: Any) -> None:  # pragma: no cover
    """What is in the log so far may be read."""
    write_(shared.ends, private.log[OWN] * shared.ends.shape[1], private.log[END])


@kernel
def catch_up_(shared: Any, private: Any) -> None:  # pragma: no cover
    """Add to the own copy what the others have published."""
    own, last = private.log[OWN], shared.columns.shape[1] - 1
    for other in range(shared.ends.shape[0]):
        end = read(shared.ends, other * shared.ends.shape[1])
        if other != own and end != private.seen[other]:
            for entry in range(private.seen[other], end):
                private.v[shared.columns[other, entry & last]] += shared.changes[other, entry & last]
            private.seen[other] = end
            write_(shared.seen, own * shared.seen.shape[1] + other, end)


@kernel
def wait_(shared: Any, private: Any) -> None:  # pragma: no cover
    """Until there is room in the log; meanwhile the others' logs are read, so that they need not wait for this one."""
    own = private.log[OWN]
    publish_(shared, private)
    while private.log[END] == private.log[ROOM]:
        catch_up_(shared, private)
        least = GONE
        for other in range(shared.ends.shape[0]):
            if other != own:
                least = min(least, read(shared.seen, other * shared.seen.shape[1] + own))
        if read(shared.counter, BROKEN):
            least = GONE
        private.log[ROOM] = min(least, private.log[END]) + shared.columns.shape[1]


@kernel
def leave_(shared: Any, private: Any) -> None:  # pragma: no cover
    """After the last step of a stretch: the log is complete, and of the last thread to leave, the copy is x."""
    own = private.log[OWN]
    publish_(shared, private)
    if fetch_add_(shared.counter, LEFT, 1) + 1 < shared.ends.shape[0]:
        for other in range(shared.ends.shape[0]):
            write_(shared.seen, own * shared.seen.shape[1] + other, GONE)
    else:
        catch_up_(shared, private)
        for j in range(shared.v.size):
            shared.v[j] = private.v[j]

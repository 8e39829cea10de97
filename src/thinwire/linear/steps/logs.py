"""Copies of x, one a thread, kept alike by logs: a thread adds to its own copy, and writes down what it added.

The others read that and add it to theirs, every few steps. So no number of x is written by two threads, nothing is
lost, and of x nothing but the logs comes from another core's cache, eight numbers or more in a line. (An atomic
addition to one vector takes some 28 ns where another core reads the same line, and that core has to fetch it anew.)
Whoever is done last has read all logs: its copy is x.

A log is a ring. Where it is full, its thread waits until all others that still take steps have read its oldest part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from thinwire.linear.steps.kernel import fetch_add_, inlined, kernel, read, write_
from thinwire.linear.steps.state import BROKEN, END, LEFT, OWN, ROOM

pass_on: Any = types.ExternalFunction("sched_yield", types.int32())
"""Of the C library: let another thread have the core."""
GONE = np.iinfo(np.int64).max
"""What a thread has read that will read no more."""


@kernel
def enter_(shared: Any, private: Any) -> None:  # pragma: no cover
    """A copy of x, before the first step of a stretch."""
    for j in range(shared.v.size):
        private.v[j] = shared.v[j]
    private.seen[:] = 0
    private.log[END], private.log[ROOM] = 0, shared.columns.shape[1]


@inlined
def add_own_(private: Any, j: int, change: Any) -> None:  # pragma: no cover
    """v_j += change in the own copy; `write_down_` and `publish_` tell the others."""
    place = private.fresh[0]
    private.fresh[place + 1], private.changes[place] = j, change
    private.fresh[0] = place + 1
    private.v[j] += change


@inlined
def write_down_(shared: Any, private: Any) -> None:  # pragma: no cover
    """What a step has added goes into the log, all at once: so the code of a step stays small."""
    own, last = private.log[OWN], shared.columns.shape[1] - 1
    for each in range(private.fresh[0]):
        if private.log[END] == private.log[ROOM]:
            wait_(shared, private)
        place = private.log[END] & last
        shared.columns[own, place], shared.changes[own, place] = private.fresh[each + 1], private.changes[each]
        private.log[END] += 1
    private.fresh[0] = 0


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
        pass_on()
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

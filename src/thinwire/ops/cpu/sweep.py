"""One pass over a vector that computes it, and takes out of it what is large, compiled by numba.

The vector is e <- r e + v (memory), target - local (difference) or x itself (plain). Magnitudes are compared as
integers: for floats of one sign the order of the bits is the order of the numbers, and 64 are compared at a time. What
reaches the level is written down in order and taken at once, while it is in the cache: zero is left in a memory, and a
local state is moved. Whoever takes too much puts it back.

Bytes moved for each number: memory step 12 (read e, read v, write e), difference 8 (read both), plain 4, and what is
found.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from thinwire.ops.cpu.lanes import LANES, at_least, lowest

MEMORY, DIFFERENCE, PLAIN = (0,), (0, 0), (0, 0, 0)
"""Kinds of step: numba compiles a function anew for each length of a tuple, so a branch on the kind costs nothing."""
ONE = np.uint64(1)


@njit(nogil=True, cache=True)
def is_memory(kind: Any) -> bool:  # pragma: no cover
    return len(kind) == 1


@njit(nogil=True, cache=True)
def is_difference(kind: Any) -> bool:  # pragma: no cover
    return len(kind) == 2


@njit(nogil=True, cache=True)
def compute(kind: Any, a: Any, b: Any, ratio: Any, low: int, high: int, scratch: Any) -> None:  # pragma: no cover
    """The vector's numbers from a[low:high] and b[low:high]: into `a` (memory) or to the front of `scratch`."""
    part_a, part_b = a[low:high], b[low:high]
    if is_memory(kind):
        for j in range(part_a.size):
            part_a[j] = ratio * part_a[j] + part_b[j]
    elif is_difference(kind):
        for j in range(part_a.size):
            scratch[j] = part_b[j] - part_a[j]


@njit(nogil=True, cache=True)
def take(
    kind: Any, a: Any, i: int, x: Any, c: int, places: Any, entries: Any, before: Any
) -> None:  # pragma: no cover
    """Write down as the c-th find that x stands at i, and take it."""
    places[c] = i
    entries[c] = x
    if is_memory(kind):
        a[i] = 0
    elif is_difference(kind):
        before[c] = a[i]
        a[i] += x


@njit(nogil=True, cache=True)
def collect(
    kind: Any,
    a: Any,
    b: Any,
    ratio: Any,
    low: int,
    high: int,
    level: Any,
    mask: Any,
    used: int,
    places: Any,
    entries: Any,
    before: Any,
) -> tuple[int, bool]:  # pragma: no cover
    """Compute [low, high) and take what reaches the level: how much is written down now, and whether it is all."""
    scratch = np.empty(LANES, a.dtype)
    here = scratch if is_difference(kind) else a
    bits = here.view(mask.dtype)
    room = places.size - LANES
    overfull = 0
    full = low + (high - low) // LANES * LANES
    for s in range(low, full, LANES):
        compute(kind, a, b, ratio, s, s + LANES, scratch)
        shift = s if is_difference(kind) else 0
        found = at_least(bits, s - shift, mask[0], level)
        if found and used > room:
            overfull, found = 1, np.uint64(0)
        while found:
            i = s + lowest(found)
            take(kind, a, i, here[i - shift], used, places, entries, before)
            used += 1
            found &= found - ONE
    compute(kind, a, b, ratio, full, high, scratch)
    shift = full if is_difference(kind) else 0
    for i in range(full, high):
        if (bits[i - shift] & mask[0]) >= level:
            if used < places.size:
                take(kind, a, i, here[i - shift], used, places, entries, before)
                used += 1
            else:
                overfull = 1
    return used, overfull == 0


@njit(nogil=True, cache=True)
def put_back(kind: Any, a: Any, places: Any, entries: Any, before: Any) -> None:  # pragma: no cover
    """Undo what was taken."""
    old = before if is_difference(kind) else entries
    if is_memory(kind) or is_difference(kind):
        for c in range(places.size):
            a[places[c]] = old[c]

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

from thinwire.ops.cpu.compiler import compiled
from thinwire.ops.cpu.intrinsics import LANES, at_least, differ_at_least, lowest

MEMORY, DIFFERENCE, PLAIN = (0,), (0, 0), (0, 0, 0)
"""Kinds of step: numba compiles a function anew for each length of a tuple, so a branch on the kind costs nothing."""
STRETCH = 4 * LANES
"""Numbers computed before they are compared: 12.5 M take 3.9 ms in stretches of 256 on an EPYC core, 5.0 in 64, 4.5 in
1,024."""
ONE = np.uint64(1)


@compiled
def is_memory(kind: Any) -> bool:  # pragma: no cover
    return len(kind) == 1


@compiled
def is_difference(kind: Any) -> bool:  # pragma: no cover
    return len(kind) == 2


@compiled
def entry(kind: Any, a: Any, b: Any, i: int) -> Any:  # pragma: no cover
    """The i-th number of the vector (a memory step's sum stands in `a` already)."""
    return b[i] - a[i] if is_difference(kind) else a[i]


@compiled
def accumulate(a: Any, b: Any, ratio: Any, low: int, width: int) -> None:  # pragma: no cover
    """a <- ratio a + b, from `low` on."""
    part_a, part_b = a[low : low + width], b[low : low + width]
    for j in range(width):
        part_a[j] = ratio * part_a[j] + part_b[j]


@compiled
def large(kind: Any, a: Any, b: Any, s: int, mask: Any, level: Any) -> Any:  # pragma: no cover
    """Which of the LANES numbers of the vector from s on reach the level."""
    if is_difference(kind):
        return differ_at_least(a, b, s, mask[0], level)
    return at_least(a, s, mask[0], level)


@compiled
def take(kind: Any, a: Any, b: Any, i: int, c: int, places: Any, entries: Any, before: Any) -> None:  # pragma: no cover
    """Write down the vector's i-th number as the c-th find, and take it."""
    places[c] = i
    entries[c] = entry(kind, a, b, i)
    if is_memory(kind):
        a[i] = 0
    elif is_difference(kind):
        before[c] = a[i]
        a[i] += entries[c]


@compiled
def collect(
    kind: Any, a: Any, b: Any, ratio: Any, low: int, high: int, level: Any, mask: Any, used: int, places: Any,
    entries: Any, before: Any,
) -> tuple[int, bool]:  # fmt: skip  # pragma: no cover
    """Compute [low, high) and take what reaches the level: how much is written down now, and whether it is all."""
    room = places.size - LANES
    complete = True
    full = low + (high - low) // STRETCH * STRETCH
    for s in range(low, full, STRETCH):
        if is_memory(kind):
            accumulate(a, b, ratio, s, STRETCH)
        for t in range(s, s + STRETCH, LANES):
            found = large(kind, a, b, t, mask, level)
            if found and used > room:
                complete, found = False, np.uint64(0)
            while found:
                take(kind, a, b, t + lowest(found), used, places, entries, before)
                used += 1
                found &= found - ONE
    if is_memory(kind):
        accumulate(a, b, ratio, full, high - full)
    one = np.empty(1, a.dtype)
    bits = one.view(mask.dtype)
    for i in range(full, high):
        one[0] = entry(kind, a, b, i)
        if (bits[0] & mask[0]) >= level:
            if used < places.size:
                take(kind, a, b, i, used, places, entries, before)
                used += 1
            else:
                complete = False
    return used, complete


@compiled
def put_back(kind: Any, a: Any, places: Any, entries: Any, before: Any) -> None:  # pragma: no cover
    """Undo what was taken."""
    old = before if is_difference(kind) else entries
    if is_memory(kind) or is_difference(kind):
        for c in range(places.size):
            a[places[c]] = old[c]

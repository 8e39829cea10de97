"""What a step takes out of the memory and adds to x: the largest entries, random ones, those above a threshold, or all.

x_j ← x_j − g_j and m_j ← 0 for the chosen j; in terms of v = x/s that is v_j ← v_j − g_j/s (for units see `post_`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.linear.steps.kernel import add_float_, below, inlined, kernel
from thinwire.linear.steps.logs import add_own_
from thinwire.linear.steps.maxima import SHIFT, find, settle_
from thinwire.linear.steps.state import COUNT, FLOOR
from thinwire.ops.cpu.intrinsics import LANES, at_least, lowest
from thinwire.ops.cpu.select_random import word

COIN, FIRST_DRAW = np.uint64(0), np.uint64(1)
ONE, ALL_LANES = np.uint64(1), ~np.uint64(0)


@kernel
def add_(shared: Any, j: int, change: Any) -> None:  # pragma: no cover
    """v_j += change."""
    if shared.atomic:
        add_float_(shared.v, j, shared.v.dtype.type(change))
    else:
        shared.v[j] += shared.v.dtype.type(change)


@kernel
def send_(shared: Any, credit: Any, j: int, g: Any, per_scale: float, weight: float) -> None:  # pragma: no cover
    """x_j −= g, credited with the weight of all iterates that had not seen it."""
    change = -g * per_scale
    add_(shared, j, change)
    if credit.size:
        credit[j] -= change * weight


@inlined
def post_(shared: Any, private: Any, j: int, g: Any, per_scale: Any, weight: float) -> None:  # pragma: no cover
    """x_j −= g: in v itself, or in the thread's copy of it and in its log.

    In units, g is p_j/u_j and v is u_j x_j/s."""
    if shared.squares.size:
        g = g * shared.squares[j >> SHIFT]
    if private.seen.size == 0:
        send_(shared, private.credit, j, g, per_scale, weight)
        return
    change = shared.v.dtype.type(-g * per_scale)
    add_own_(private, j, change)
    if private.credit.size:
        private.credit[j] -= change * weight


@inlined
def send_largest_(
    shared: Any, private: Any, own: int, k: int, per_scale: Any, weight: float
) -> Any:  # pragma: no cover
    """The k largest of a memory whose tree is in order; how many were not zero."""
    memory, bits, maxima = private.memory[own], private.bits[own], private.maxima[own]
    for sent in range(k):
        j = find(bits, maxima, private.offsets, private.mask)
        if j < 0:
            return sent
        post_(shared, private, j, memory[j], per_scale, weight)
        memory[j] = 0
        settle_(bits, maxima, private.offsets, private.mask, 0, j >> SHIFT)
    return k


@inlined
def send_drawn_(
    shared: Any, private: Any, own: int, rule: Any, key: Any, t: int, per_scale: float, weight: float
) -> Any:  # pragma: no cover
    """k entries drawn without replacement, k < 1: one with that probability; how many were not zero."""
    memory, d = private.memory[own], shared.v.size
    base = np.uint64(word(key, np.uint64(t)))
    if rule.probability < 1.0 and below(word(base, COIN), 1 << 53) >= rule.probability * 2.0**53:
        return 0
    sent, drawn, draw = 0, 0, FIRST_DRAW
    while drawn < rule.kept:
        j = below(word(base, draw), d)
        draw += FIRST_DRAW
        if private.marks[j] == t + 1:
            continue
        private.marks[j] = t + 1
        drawn += 1
        if memory[j] != 0:
            post_(shared, private, j, memory[j], per_scale, weight)
            memory[j] = 0
            sent += 1
    return sent


@kernel
def level(share: float, levels: int, bits: Any) -> Any:  # pragma: no cover
    """A whole number of levels, at random one of the two about share · levels, so that its mean is just that."""
    exact = share * levels
    low = np.floor(exact)
    return low + 1 if below(bits, 1 << 53) < (exact - low) * 2.0**53 else low


# ---------------------------------------------------------------------------------------------------- above a threshold
#
# What reaches a threshold that falls with the step size: of the row at once, of the rest when it gets there.
#
# No row need touch an entry for the threshold to reach it. A heap holds the entries not far below: all whose magnitudes
# are at least a floor. An entry that changes is put in anew; what the heap says of it may be out of date, and is then
# passed over. When the threshold falls below the floor, the memory is looked through once for another heap: in a run
# that is done some 180 log(η_0/η_T) times, whatever the number of steps.
#
# Magnitudes are compared as integers, as in `maxima`.


@inlined
def send_above_(
    columns: Any, values: Any, c: Any, shared: Any, private: Any, own: int, least: Any, per_scale: Any, weight: float
) -> Any:  # pragma: no cover
    """m ← m + c a, and every entry with a magnitude of `least` bits or more is sent. How many they were."""
    memory, bits, mask = private.memory[own], private.bits[own], private.mask
    keys, places, heap = private.keys[own], private.places[own], private.heap[own]
    if least < heap[FLOOR] or heap[COUNT] + values.size > keys.size:
        renew_(bits, keys, places, heap, mask, max(least - private.margin, 1))
    sent = 0
    for first in range(0, values.size, LANES):
        reached = accumulate_(columns, values, c, first, memory, private.block, private.block_bits, mask, heap[FLOOR])
        while reached:
            place = lowest(reached)
            reached &= reached - ONE
            j, magnitude = columns[first + place], private.block_bits[place] & mask
            if magnitude >= least:
                post_(shared, private, j, memory[j], per_scale, weight)
                memory[j] = 0
                sent += 1
            else:
                push_(keys, places, heap, magnitude, j)
    while heap[COUNT] and keys[0] >= least:
        j = places[0]
        pop_(keys, places, heap)
        if bits[j] & mask >= least:
            post_(shared, private, j, memory[j], per_scale, weight)
            memory[j] = 0
            sent += 1
    return sent


@inlined
def accumulate_(
    columns: Any, values: Any, c: Any, first: int, memory: Any, block: Any, block_bits: Any, mask: Any, floor: Any
) -> Any:  # pragma: no cover
    """m ← m + c a for 64 entries of the row; which of them reach the floor, one bit for each.

    A branch for each entry would be guessed wrongly at each that is sent, and that takes as long as ten entries.
    """
    length = min(LANES, values.size - first)
    for p in range(length):
        j = columns[first + p]
        block[p] = memory[j] + c * values[first + p]
    found = at_least(block_bits, 0, mask, floor) & (ALL_LANES >> np.uint64(LANES - length))
    for p in range(length):
        memory[columns[first + p]] = block[p]
    return found


@kernel
def renew_(bits: Any, keys: Any, places: Any, heap: Any, mask: Any, floor: Any) -> None:  # pragma: no cover
    """A heap of what is at or above another floor."""
    heap[FLOOR], heap[COUNT] = floor, 0
    for first in range(0, bits.size, LANES):
        reached = at_least(bits, first, mask, heap[FLOOR])
        while reached:
            j = first + lowest(reached)
            reached &= reached - ONE
            push_(keys, places, heap, bits[j] & mask, j)


@kernel
def push_(keys: Any, places: Any, heap: Any, key: Any, place: int) -> None:  # pragma: no cover
    """One entry more: those above it that are smaller make way."""
    node = heap[COUNT]
    heap[COUNT] = node + 1
    while node and keys[(node - 1) >> 1] < key:
        keys[node], places[node] = keys[(node - 1) >> 1], places[(node - 1) >> 1]
        node = (node - 1) >> 1
    keys[node], places[node] = key, place


@kernel
def pop_(keys: Any, places: Any, heap: Any) -> None:  # pragma: no cover
    """The largest goes: the last takes its place, and moves down below those that are larger."""
    count = heap[COUNT] - 1
    heap[COUNT] = count
    node, child = 0, 1
    while child < count:
        child += child + 1 < count and keys[child + 1] > keys[child]
        if keys[child] <= keys[count]:
            break
        keys[node], places[node] = keys[child], places[child]
        node, child = child, 2 * child + 1
    keys[node], places[node] = keys[count], places[count]

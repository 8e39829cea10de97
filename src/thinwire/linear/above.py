"""What reaches a threshold that falls with the step size: of the row at once, of the rest when it gets there.

No row need touch an entry for the threshold to reach it. A heap holds the entries not far below: all whose magnitudes
are at least a floor. An entry that changes is put in anew, and what the heap says of it may be out of date; then it is
passed over. When the threshold falls below the floor, the memory is looked through once for another heap: in a run
that is done some 180 log(η_0/η_T) times, whatever the number of steps.

Magnitudes are compared as integers, as in `maxima`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.linear.choice import post_
from thinwire.linear.kernel import inlined, kernel
from thinwire.linear.state import COUNT, FLOOR
from thinwire.ops.cpu import lanes
from thinwire.ops.cpu.lanes import LANES

# numba's types would have their callers pass the compiler's own first argument
at_least: Any = lanes.at_least
lowest: Any = lanes.lowest
ONE, ALL_LANES = np.uint64(1), ~np.uint64(0)


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

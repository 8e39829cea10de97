"""The largest entries of a memory that changes in few places: a tree of maxima, 64 children to a node.

The memory's magnitudes are compared as integers (for floats of one sign the order of the bits is that of the numbers).
A node holds a bound: no entry below it is larger. An entry that grows lifts the bounds above it; one that shrinks
leaves them, and a bound that turns out too high is lowered on the way down. So a change costs a comparison or two, and
finding the largest entry three scans of 64 numbers for d up to 262,144. Of equal magnitudes the lower index is found.

All levels lie in one array: level l + 1 has one node for 64 of level l, and room for whole scans; `offsets[l]` is where
level l + 1 begins. The highest level has 64 nodes at most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.linear.steps.kernel import kernel
from thinwire.ops.cpu.intrinsics import LANES, at_least, largest, lowest

SHIFT: Any = np.uint32(6)
"""64 = 2^6 children; unsigned, as columns are."""


def padded(numel: int) -> int:
    """The next multiple of 64."""
    return -(-numel // LANES) * LANES


def level_offsets(numel: int) -> NDArray[np.int64]:
    """Where the levels above `numel` entries begin, and where the highest ends."""
    offsets, nodes = [0], max(1, numel)
    while nodes > LANES or len(offsets) == 1:
        nodes = -(-nodes // LANES)
        offsets.append(offsets[-1] + padded(nodes))
    return np.array(offsets, np.int64)


@kernel
def lift_(maxima: Any, offsets: Any, j: int, magnitude: Any) -> None:  # pragma: no cover
    """Entry j has this magnitude now."""
    node = j
    for level in range(offsets.size - 1):
        node >>= SHIFT
        if magnitude <= maxima[offsets[level] + node]:
            return
        maxima[offsets[level] + node] = magnitude


@kernel
def below(bits: Any, maxima: Any, offsets: Any, mask: Any, level: int, node: int) -> Any:  # pragma: no cover
    """The largest child of a node of level + 1."""
    if level == 0:
        return largest(bits, node << SHIFT, mask)
    return largest(maxima, offsets[level - 1] + (node << SHIFT), mask)


@kernel
def settle_(bits: Any, maxima: Any, offsets: Any, mask: Any, level: int, node: int) -> None:  # pragma: no cover
    """Lower the bound of a node of level + 1 to its largest child, and those above it."""
    while level < offsets.size - 1:
        bound = below(bits, maxima, offsets, mask, level, node)
        if bound == maxima[offsets[level] + node]:
            return
        maxima[offsets[level] + node] = bound
        level += 1
        node >>= SHIFT


@kernel
def refresh_(bits: Any, maxima: Any, offsets: Any, mask: Any, entries: int) -> None:  # pragma: no cover
    """Every bound anew, after a change of every entry."""
    for level in range(offsets.size - 1):
        entries = (entries + LANES - 1) >> SHIFT
        for node in range(entries):
            maxima[offsets[level] + node] = below(bits, maxima, offsets, mask, level, node)


@kernel
def children(
    bits: Any, maxima: Any, offsets: Any, mask: Any, level: int, node: int, bound: Any
) -> Any:  # pragma: no cover
    """Which children of a node of level + 1 reach a bound, one bit for each."""
    if level == 0:
        return at_least(bits, node << SHIFT, mask, bound)
    return at_least(maxima, offsets[level - 1] + (node << SHIFT), mask, bound)


@kernel
def find(bits: Any, maxima: Any, offsets: Any, mask: Any) -> Any:  # pragma: no cover
    """The first of the entries of largest magnitude; -1 where all are zero."""
    top = offsets.size - 1
    while True:
        bound = largest(maxima, offsets[top - 1], mask)
        if bound == 0:
            return -1
        node = lowest(at_least(maxima, offsets[top - 1], mask, bound))
        level = top - 1
        while level >= 0:
            reached = children(bits, maxima, offsets, mask, level, node, bound)
            if reached == 0:
                settle_(bits, maxima, offsets, mask, level, node)
                break
            node = (node << SHIFT) + lowest(reached)
            level -= 1
        if level < 0:
            return node

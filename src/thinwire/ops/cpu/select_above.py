"""All that reaches a fixed threshold, in one pass over memory, compiled by numba.

The pass is that of `one_pass`; whatever reaches the threshold is sent, so nothing is put back. How many numbers reach
it is not known beforehand: a thread whose buffers are full returns, is given others of the size that the density so far
lets expect, and goes on where it was.

Bytes moved for each number: memory step 12, difference 8, plain 4, and 24 for each find (12 written twice).
25 M float32 on two cores of an EPYC (AVX-512), as multiples of an in-place add: 1.1 to 1.6 where 1 % reaches the
threshold, 0.8 to 1.1 at 0.1 %, 20 to 35 where every number does, once 85 (plain torch: 50 to 85).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops.blocks import one_piece
from thinwire.ops.cpu.compiler import compiled
from thinwire.ops.cpu.intrinsics import LANES, lowest
from thinwire.ops.cpu.one_pass import (
    DIFFERENCE,
    MEMORY,
    ONE,
    PLAIN,
    STRETCH,
    accumulate,
    entry,
    is_difference,
    is_memory,
    large,
)
from thinwire.ops.cpu.threads import at_once, in_parallel

WHOLE = -1.0
"""The quantum that stands for: entries are sent as they are."""
Search = Callable[..., tuple[int, int]]
"""search(begin, end, places, *entries): how many finds it wrote down, and where the room came to an end."""


class Segments(NamedTuple):
    """Where which number holds."""

    starts: Any
    stops: Any
    numbers: Any


def segments_of(layout: Layout, numbers: Any) -> Segments:
    """A layout's pieces, each with its number; the whole buffer where all have the same."""
    if (numbers == numbers[:1]).all():
        return Segments(np.zeros(1, np.int64), np.array([layout.numel]), numbers[:1])
    starts = np.array([piece.offset for piece in layout.pieces], np.int64)
    return Segments(starts, starts + np.array([piece.numel for piece in layout.pieces], np.int64), numbers)


def found(search: Search, numel: int, *dtypes: torch.dtype) -> tuple[Tensor, ...]:
    """All finds in [0, numel): their places, and one vector for each type of entry."""

    def run(share: int, begin: int, end: int) -> list[list[Any]]:
        parts, at, room = [], begin, (end - begin) // 64 + 16 * STRETCH
        while at < end:
            buffers = [torch.empty(room, dtype=dtype).numpy() for dtype in (torch.int64, *dtypes)]
            used, now = search(at, end, *buffers)
            parts.append([buffer[:used] for buffer in buffers])
            room, at = min(end - now, 5 * used * (end - now) // (4 * (now - at))) + 16 * STRETCH, now
        return parts

    parts = [part for share in in_parallel(run, numel) for part in share]
    return _joined(parts, (torch.int64, *dtypes))


def _joined(parts: list[list[Any]], dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
    """The parts one after the other, copied by as many threads as there are parts."""
    ends = np.cumsum([0] + [part[0].size for part in parts])
    whole = tuple(torch.empty(int(ends[-1]), dtype=dtype) for dtype in dtypes)

    def copy(i: int) -> None:
        for target, source in zip(whole, parts[i], strict=True):
            target.numpy()[ends[i] : ends[i + 1]] = source

    at_once(copy, len(parts))
    return whole


@compiled
def send(
    kind: Any, a: Any, b: Any, i: int, quantum: Any, c: int, places: Any, entries: Any
) -> None:  # pragma: no cover
    """Write down as the c-th find what is sent of the vector's i-th number, x or sign(x) * quantum, and take it."""
    x = entry(kind, a, b, i)
    sent = x if quantum < 0 else a.dtype.type((x > 0) - (x < 0)) * quantum
    places[c] = i
    entries[c] = sent
    if is_memory(kind):
        a[i] = x - sent
    elif is_difference(kind):
        a[i] += sent


@compiled
def send_above(
    kind: Any, a: Any, b: Any, parts: Segments, begin: int, end: int, level: Any, quantum: Any, mask: Any, places: Any,
    entries: Any,
) -> tuple[int, int]:  # fmt: skip  # pragma: no cover
    """Compute [begin, end) and take what reaches the level, in order: how many, and where the room came to an end."""
    used = 0
    one = np.empty(1, a.dtype)
    bits = one.view(mask.dtype)
    for p in range(parts.starts.size):
        low, high = max(parts.starts[p], begin), min(parts.stops[p], end)
        for s in range(low, high, STRETCH):
            width = min(STRETCH, high - s)
            if used + width > places.size:
                return used, s
            if is_memory(kind):
                accumulate(a, b, parts.numbers[p], s, width)
            full = s + width // LANES * LANES
            for t in range(s, full, LANES):
                left = large(kind, a, b, t, mask, level)
                while left:
                    send(kind, a, b, t + lowest(left), quantum, used, places, entries)
                    used += 1
                    left &= left - ONE
            for i in range(full, s + width):
                one[0] = entry(kind, a, b, i)
                if (bits[0] & mask[0]) >= level:
                    send(kind, a, b, i, quantum, used, places, entries)
                    used += 1
    return used, end


def above(
    kind: tuple[int, ...],
    first: Tensor,
    second: Tensor,
    pieces: tuple[Layout, Sequence[float]] | None,
    tau: float,
    quantum: float | None,
) -> tuple[Tensor, Tensor]:
    """What reaches tau in one kind of step, positions and values: the entries, or their signs times the quantum."""
    work = first.contiguous()
    a, b = work.numpy(), second.contiguous().numpy()
    integer = np.int32 if a.dtype == np.float32 else np.int64
    level, step = torch.tensor([tau, WHOLE if quantum is None else quantum], dtype=first.dtype).numpy()
    mask = np.array([np.iinfo(integer).max], integer)
    layout, ratios = pieces or (one_piece(a.size), [1.0])
    parts = segments_of(layout, np.array(ratios, a.dtype))

    def search(begin: int, end: int, places: Any, entries: Any) -> Any:
        return send_above(kind, a, b, parts, begin, end, level.view(integer), step, mask, places, entries)

    positions, values = found(search, a.size, first.dtype)
    if work is not first and kind != PLAIN:
        first.copy_(work)
    return positions, values


def threshold(x: Tensor, tau: float, signs: bool = False) -> tuple[Tensor, Tensor]:
    """See `reference.threshold`."""
    return above(PLAIN, x, x, None, tau, tau if signs else None)


def memory_threshold_(
    error: Tensor, value: Tensor, layout: Layout, tau: float, ratios: Sequence[float] | None, signs: bool = False
) -> tuple[Tensor, Tensor]:
    """See `reference.memory_threshold_`."""
    return above(MEMORY, error, value, (layout, ratios) if ratios else None, tau, tau if signs else None)


def difference_threshold_(local: Tensor, target: Tensor, tau: float, signs: bool = False) -> tuple[Tensor, Tensor]:
    """See `reference.difference_threshold_`."""
    return above(DIFFERENCE, local, target, None, tau, tau if signs else None)

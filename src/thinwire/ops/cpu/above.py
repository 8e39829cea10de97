"""All that reaches a fixed threshold, in one pass over memory, compiled by numba.

The pass is that of `sweep`; whatever reaches the threshold is sent, so nothing is put back. How much that will be is
not known beforehand: a thread whose buffer is full returns, is given another of the size that the density so far lets
expect, and goes on where it was.

Bytes moved for each number: memory step 12, difference 8, plain 4, and 24 for each find (12 written twice).
25 M float32 on two cores of an EPYC (AVX-512), as multiples of an in-place add: 1.1 to 1.6 where 1 % reaches the
threshold, 0.8 to 1.1 at 0.1 %, 20 to 35 where every number does, once 85 (plain torch: 50 to 85).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops.cpu.lanes import LANES
from thinwire.ops.cpu.sweep import ONE, PLAIN, STRETCH, accumulate, entry, is_difference, is_memory, large, lowest
from thinwire.ops.cpu.threads import at_once, in_parallel

WHOLE = -1.0
"""The quantum that stands for: entries are sent as they are."""


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def send_above(
    kind: Any,
    a: Any,
    b: Any,
    ratios: Any,
    starts: Any,
    stops: Any,
    begin: int,
    end: int,
    level: Any,
    quantum: Any,
    mask: Any,
    places: Any,
    entries: Any,
) -> tuple[int, int]:  # pragma: no cover
    """Compute [begin, end) and take what reaches the level, in order: how many, and where the room came to an end."""
    used = 0
    one = np.empty(1, a.dtype)
    bits = one.view(mask.dtype)
    for p in range(starts.size):
        low, high = max(starts[p], begin), min(stops[p], end)
        for s in range(low, high, STRETCH):
            width = min(STRETCH, high - s)
            if used + width > places.size:
                return used, s
            if is_memory(kind):
                accumulate(a, b, ratios[p], s, width)
            full = s + width // LANES * LANES
            for t in range(s, full, LANES):
                found = large(kind, a, b, t, mask, level)
                while found:
                    send(kind, a, b, t + lowest(found), quantum, used, places, entries)
                    used += 1
                    found &= found - ONE
            for i in range(full, s + width):
                one[0] = entry(kind, a, b, i)
                if (bits[0] & mask[0]) >= level:
                    send(kind, a, b, i, quantum, used, places, entries)
                    used += 1
    return used, end


class _Segments:
    """Where which ratio holds: a layout's pieces, or the whole buffer with ratio one."""

    def __init__(self, numel: int, pieces: tuple[Layout, Sequence[float]] | None, dtype: Any) -> None:
        if pieces is None or set(pieces[1]) == {1.0}:
            self.starts, self.stops, self.ratios = np.array([0]), np.array([numel]), np.ones(1, dtype)
        else:
            layout, ratios = pieces
            self.starts = np.array([piece.offset for piece in layout.pieces], np.int64)
            self.stops = self.starts + np.array([piece.numel for piece in layout.pieces], np.int64)
            self.ratios = np.array(ratios, dtype)


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
    segments = _Segments(a.size, pieces, a.dtype)

    def run(share: int, begin: int, end: int) -> list[tuple[Any, Any]]:
        parts, at, room = [], begin, (end - begin) // 64 + 16 * STRETCH
        while at < end:
            places, entries = np.empty(room, np.int64), np.empty(room, a.dtype)
            used, now = send_above(
                kind, a, b, segments.ratios, segments.starts, segments.stops, at, end, level.view(integer), step, mask,
                places, entries,
            )  # fmt: skip
            parts.append((places[:used], entries[:used]))
            room, at = min(end - now, 5 * used * (end - now) // (4 * (now - at))) + 16 * STRETCH, now
        return parts

    found = [part for parts in in_parallel(run, a.size) for part in parts]
    if work is not first and kind != PLAIN:
        first.copy_(work)
    return _joined(found, first.dtype)


def _joined(parts: list[tuple[Any, Any]], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The parts one after the other, copied by as many threads as there are parts."""
    ends = np.cumsum([0] + [places.size for places, _ in parts])
    positions, values = torch.empty(int(ends[-1]), dtype=torch.int64), torch.empty(int(ends[-1]), dtype=dtype)

    def copy(i: int) -> None:
        positions.numpy()[ends[i] : ends[i + 1]], values.numpy()[ends[i] : ends[i + 1]] = parts[i]

    at_once(copy, len(parts))
    return positions, values

"""Finds whose number is not known beforehand, written down in order by several threads.

A thread whose buffers are full returns, is given others of the size that the density so far lets expect, and goes on
where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops.cpu.sweep import STRETCH
from thinwire.ops.cpu.threads import at_once, in_parallel

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

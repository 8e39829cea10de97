"""The CPU back-end: numba kernels on torch's memory, on as many threads as torch uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import reference
from thinwire.ops.cpu import finite, wire
from thinwire.ops.cpu import select as kernels
from thinwire.ops.cpu.fields import pack_bits as pack_bits
from thinwire.ops.cpu.fields import pack_codes as pack_codes
from thinwire.ops.cpu.fields import unpack_bits as unpack_bits
from thinwire.ops.cpu.fields import unpack_codes as unpack_codes
from thinwire.ops.cpu.norms import block_norms as block_norms
from thinwire.ops.cpu.quantise import add_levels_ as add_levels_
from thinwire.ops.cpu.quantise import add_powers_ as add_powers_
from thinwire.ops.cpu.quantise import add_signs_ as add_signs_
from thinwire.ops.cpu.quantise import level_codes as level_codes
from thinwire.ops.cpu.quantise import levels_within as levels_within
from thinwire.ops.cpu.quantise import negative_bits as negative_bits
from thinwire.ops.cpu.quantise import power_codes as power_codes

SMALLEST_SHARE = 1 << 16
"""Numbers below which another thread is not worth its 50 microseconds."""


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="thinwire")


def in_parallel(task: Callable[[int, int, int], Any], numel: int) -> list[Any]:
    """task(share, begin, end) over contiguous shares of [0, numel), on torch's number of threads."""
    shares = max(1, min(torch.get_num_threads(), numel // SMALLEST_SHARE))
    ends = [numel * i // shares // kernels.BLOCK * kernels.BLOCK for i in range(shares)] + [numel]
    if shares == 1:
        return [task(0, 0, numel)]
    return list(_pool().map(task, range(shares), ends[:-1], ends[1:]))


def topk(x: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """See `reference.topk`."""
    return _select(kernels.PLAIN, x, x, layout, counts, None)


def memory_topk_(
    error: Tensor, value: Tensor, layout: Layout, counts: Sequence[int], ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """See `reference.memory_topk_`."""
    return _select(kernels.MEMORY, error, value, layout, counts, ratios)


def difference_topk_(local: Tensor, target: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """See `reference.difference_topk_`."""
    return _select(kernels.DIFFERENCE, local, target, layout, counts, None)


def pack_positions(positions: Tensor, width: int, length: int) -> Tensor:
    """See `reference.pack_positions`."""
    low_bytes = (positions.numel() * width + 7) // 8
    packed = torch.zeros(low_bytes + (length + 7) // 8, dtype=torch.uint8)
    array = packed.numpy()
    wire.pack(positions.numpy(), width, array[:low_bytes], array[low_bytes:])
    return packed


def unpack_positions(
    low: Tensor, bitmap: Tensor, width: int, length: int, count: int, bound: int
) -> tuple[Tensor, int, bool]:
    """See `reference.unpack_positions`."""
    positions = torch.zeros(count, dtype=torch.int64)
    marks, ascending = wire.unpack(low.numpy(), bitmap.numpy(), width, length, positions.numpy())
    return positions, marks, ascending and (count == 0 or int(positions[-1]) < bound)


def add_at_(out: Tensor, positions: Tensor, values: Tensor, alpha: float) -> Tensor:
    """See `reference.add_at_`."""
    wire.add(out.numpy(), positions.numpy(), values.numpy(), out.numpy().dtype.type(alpha))
    return out


def first_nonfinite(x: Tensor, layout: Layout) -> Tensor:
    """See `reference.first_nonfinite`."""
    if x.dtype not in (torch.float32, torch.float64):
        return reference.first_nonfinite(x, layout)
    array = x.numpy()
    mask = finite.masks(array.dtype)
    bits = array.view(mask.dtype)
    found = in_parallel(lambda _, begin, end: finite.first_bad(bits, mask, begin, end), x.numel())
    first = next((place for place in found if place >= 0), None)
    if first is None:
        return torch.tensor(-1)
    return torch.tensor(next(i for i, piece in enumerate(layout.pieces) if first < piece.part.stop))


class _Pieces:
    """A layout's non-empty pieces as arrays for the kernels."""

    def __init__(self, layout: Layout, counts: Sequence[int], ratios: Sequence[float] | None, dtype: Any) -> None:
        filled = [i for i, piece in enumerate(layout.pieces) if piece.numel]
        self.starts = np.array([layout.pieces[i].offset for i in filled], np.int64)
        self.stops = np.array([layout.pieces[i].part.stop for i in filled], np.int64)
        self.counts = np.array([counts[i] for i in filled], np.int64)
        self.ratios = np.array([ratios[i] if ratios else 1.0 for i in filled], dtype)
        self.ends = np.cumsum(self.counts)


def _select(
    kind: int, first: Tensor, second: Tensor, layout: Layout, counts: Sequence[int], ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    a, b = first.numpy(), second.numpy()
    pieces = _Pieces(layout, counts, ratios, a.dtype)
    mask = np.array([np.iinfo(np.int32 if a.dtype == np.float32 else np.int64).max])
    mask = mask.astype(np.int32 if a.dtype == np.float32 else np.int64)
    total = int(pieces.counts.sum())
    places, entries = torch.empty(total, dtype=torch.int64), torch.empty(total, dtype=first.dtype)
    if total:
        _Selection(kind, a, b, pieces, mask, places.numpy(), entries.numpy()).run()
    return places, entries


class _Selection:
    """One selection: sample, collect, settle."""

    def __init__(self, kind: int, a: Any, b: Any, pieces: _Pieces, mask: Any, places: Any, entries: Any) -> None:
        self.kind, self.a, self.b, self.pieces, self.mask = kind, a, b, pieces, mask
        self.places, self.entries = places, entries
        self.floors = np.zeros(pieces.starts.size, mask.dtype)

    def run(self) -> None:
        pieces = self.pieces
        in_parallel(self._estimate, self.a.size)
        shares = in_parallel(self._collect, self.a.size)
        found, kept = (sum(share[i] for share in shares) for i in (2, 3))
        # shares follow each other, and so do the pieces in a share: a piece's candidates stand together
        places = _joined([share[0][: share[3].sum()] for share in shares])
        entries = _joined([share[1][: share[3].sum()] for share in shares])
        kernels.settle_all(
            self.kind, self.a, self.b, places, entries, found, kept, pieces.counts, self.mask, self.places, self.entries
        )
        offsets = np.cumsum(kept) - kept
        for p in np.flatnonzero((found != kept) | (kept < pieces.counts)):
            mine = slice(offsets[p], offsets[p] + kept[p])
            self._settle_exactly(int(p), places[mine], entries[mine])

    def _estimate(self, share: int, begin: int, end: int) -> None:
        pieces = self.pieces
        kernels.estimate(
            self.kind, self.a, self.b, pieces.ratios, pieces.starts, pieces.stops, pieces.counts, self.mask,
            begin, end, self.floors,
        )  # fmt: skip

    def _collect(self, share: int, begin: int, end: int) -> tuple[Any, Any, Any, Any]:
        pieces = self.pieces
        room = min(4 * int(pieces.counts.sum()) + 64 * pieces.starts.size + 4096, end - begin)
        places, entries = np.empty(room, np.int64), np.empty(room, self.a.dtype)
        found, kept = np.zeros(pieces.starts.size, np.int64), np.zeros(pieces.starts.size, np.int64)
        kernels.COLLECTORS[self.kind](
            self.a, self.b, pieces.ratios, pieces.starts, pieces.stops, self.floors, self.mask,
            begin, end, places, entries, found, kept,
        )  # fmt: skip
        return places, entries, found, kept

    def _settle_exactly(self, p: int, places: Any, entries: Any) -> None:
        """The sample misjudged the piece: find its k-th magnitude by counting, then take the winners."""
        if self.kind == kernels.MEMORY:
            kernels.put_back(self.a, places, entries)
        start, stop, k = int(self.pieces.starts[p]), int(self.pieces.stops[p]), int(self.pieces.counts[p])
        out = slice(int(self.pieces.ends[p]) - k, int(self.pieces.ends[p]))
        kth, ties = self._kth(start, stop, k, self.floors[p])
        kernels.take_exact(
            self.kind, self.a, self.b, start, stop, self.mask, kth, ties, self.places[out], self.entries[out], k
        )

    def _kth(self, start: int, stop: int, k: int, floor: Any) -> tuple[Any, int]:
        """The k-th magnitude of a piece: the floor itself where there are many ties, else digit by digit."""
        around = in_parallel(
            lambda _, i, j: kernels.count_around(self.kind, self.a, self.b, start + i, start + j, floor, self.mask),
            stop - start,
        )
        above, upon = (sum(part[i] for part in around) for i in range(2))
        if above < k <= above + upon:
            return floor, k - above
        prefix, done, left = self.mask.dtype.type(0), 63, k
        for shift in (20, 8, 0) if self.mask.dtype == np.int32 else (52, 40, 28, 16, 4, 0):
            counts = self._digits(start, stop, prefix, done, shift)
            width = min(12, done - shift)
            digit = (1 << width) - 1 if done < 63 else 4095
            while counts[digit] < left:
                left -= int(counts[digit])
                digit -= 1
            prefix = self.mask.dtype.type((int(prefix) << width if done < 63 else 0) | digit)
            done = shift
        return prefix, left

    def _digits(self, start: int, stop: int, prefix: Any, done: int, shift: int) -> Any:
        def count(share: int, i: int, j: int) -> Any:
            counts = np.zeros((4, 4096), np.int64)
            kernels.histogram_of(
                self.kind, self.a, self.b, start + i, start + j, self.mask, prefix, done, shift, counts
            )
            return counts.sum(0)

        counts = sum(in_parallel(count, stop - start))
        if done < 63 and done - shift < 12:  # the last digit is narrower: fold the bits of the prefix away
            counts = counts.reshape(-1, 1 << (done - shift)).sum(0)
        return counts


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

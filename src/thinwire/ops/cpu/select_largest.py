"""Exact top-k on the CPU in one pass over memory, compiled by numba.

A slightly low threshold is estimated from a sample of each piece; one pass computes the vector and takes out of it
every entry at or above the threshold; the exact k are settled among these few candidates, and the others put back. A
thread does all of this for the pieces that lie wholly in its share, one after the other, while their candidates are in
the cache; pieces that several threads share are settled together at the end. Where the sample misjudged a piece, its
exact k-th magnitude is found by counting.

Bytes moved for each number: memory step 12, difference 8, plain 4, and 12 to 16 for each candidate (1.15 k of them in
one large piece). 25 M float32 on two cores of a busy EPYC (AVX-512), as multiples of an in-place add beside it, medians
in four runs: memory 1.6 to 2.3 at k = 1 %, 0.9 to 2.1 at 0.1 %; difference 1.4 to 2.1 and 0.9 to 1.6; 300 pieces take
0.9 to 1.3 times as long as one. `thinwire bench kernels` measures it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops.cpu.compiler import compiled
from thinwire.ops.cpu.one_pass import (
    DIFFERENCE,
    MEMORY,
    PLAIN,
    accumulate,
    collect,
    entry,
    is_difference,
    is_memory,
    put_back,
)
from thinwire.ops.cpu.threads import alone, at_once, bounds, in_parallel

LINE = 16
"""Numbers of a sample that are read together: a cache line."""
FEW = 2048
"""Candidates up to which a partition beats a histogram of 4,096 counters."""
SHORT = 1024
"""Numbers up to which a piece is settled without a sample: 10,000 pieces of 123 take 2 ms in place of 25 at k = 1."""

MASKS = {kind().itemsize: np.array([np.iinfo(kind).max], kind) for kind in (np.int32, np.int64)}
"""All bits of a number but its sign, by the number's bytes."""


@compiled
def forecast(kind: Any, a: Any, b: Any, ratio: Any, i: int) -> Any:  # pragma: no cover
    """The vector's i-th number, before the pass."""
    return ratio * a[i] + b[i] if is_memory(kind) else entry(kind, a, b, i)


@compiled
def kth_magnitude(entries: Any, mask: Any, k: int) -> tuple[Any, int]:  # pragma: no cover
    """The k-th largest magnitude of a short vector, and how many entries of just that magnitude are among the k."""
    inside = entries.view(mask.dtype) & mask[0]
    if k == 1:
        return inside.max(), 1
    above = 0
    if inside.size > FEW:
        inside, above = fullest(inside, k)
    rank = inside.size - (k - above)
    kth = np.partition(inside, rank)[rank]
    for m in inside:
        above += m > kth
    return kth, k - above


@compiled
def fullest(magnitudes: Any, k: int) -> tuple[Any, int]:  # pragma: no cover
    """Those of 4,096 equal ranges of magnitudes that hold the k-th largest, and how many lie above the range."""
    low, high = magnitudes[0], magnitudes[0]
    for m in magnitudes:
        low, high = min(low, m), max(high, m)
    shift = 0
    while (high - low) >> shift >= 4096:
        shift += 1
    histogram = np.zeros(4096, np.int64)
    for m in magnitudes:
        histogram[(m - low) >> shift] += 1
    above, slot = 0, 4095
    while above + histogram[slot] < k:
        above += histogram[slot]
        slot -= 1
    inside = np.empty(histogram[slot], magnitudes.dtype)
    j = 0
    for m in magnitudes:
        if (m - low) >> shift == slot:
            inside[j] = m
            j += 1
    return inside, above


@compiled
def sample_threshold(
    kind: Any, a: Any, b: Any, ratio: Any, start: int, stop: int, k: int, mask: Any
) -> Any:  # pragma: no cover
    """A magnitude that slightly more than k of the piece's numbers should reach: order statistic of a strided sample.

    Of s sampled numbers s k/n are expected among the k largest, give or take sqrt(s k/n); three of these are added.
    A sample has 1/256 of a piece, 256 to 32,768 numbers.
    """
    n = stop - start
    lines = min(32768, max(256, n // 256)) // LINE
    sample = np.empty(min(n, lines * LINE), a.dtype)
    if sample.size == n:
        for j in range(n):
            sample[j] = forecast(kind, a, b, ratio, start + j)
    else:
        stride = n // lines
        for i in range(lines):
            for j in range(LINE):
                sample[i * LINE + j] = forecast(kind, a, b, ratio, start + i * stride // LINE * LINE + j)
    expected = sample.size * k / n
    rank = k if sample.size == n else int(expected + 3 * np.sqrt(expected) + 3)
    return kth_magnitude(sample, mask, max(1, min(rank, sample.size)))[0]


@compiled
def settle(
    kind: Any, a: Any, places: Any, entries: Any, before: Any, mask: Any, kth: Any, ties: int, out_places: Any,
    out_entries: Any,
) -> None:  # fmt: skip  # pragma: no cover
    """Write the winners among the candidates, in order, and put the losers back."""
    n = 0
    bits = entries.view(mask.dtype)
    old = before if is_difference(kind) else entries
    for c in range(places.size):
        magnitude = bits[c] & mask[0]
        wins = magnitude > kth
        if magnitude == kth and ties > 0:
            wins = True
            ties -= 1
        if wins:
            out_places[n] = places[c]
            out_entries[n] = entries[c]
            n += 1
        elif is_memory(kind) or is_difference(kind):
            a[places[c]] = old[c]


@compiled
def settle_short(
    kind: Any, a: Any, b: Any, ratio: Any, low: int, high: int, k: int, mask: Any, short: Any, out_places: Any,
    out_entries: Any,
) -> None:  # fmt: skip  # pragma: no cover
    """The winners of a short piece, whose numbers are computed once and looked at twice while in the cache."""
    if is_memory(kind):
        accumulate(a, b, ratio, low, high - low)
    numbers = short[: high - low]
    for i in range(numbers.size):
        numbers[i] = entry(kind, a, b, low + i)
    kth, ties = kth_magnitude(numbers, mask, k)
    bits, n, i = numbers.view(mask.dtype), 0, 0
    while n < k:
        magnitude = bits[i] & mask[0]
        if magnitude > kth or (magnitude == kth and ties > 0):
            ties -= magnitude == kth
            out_places[n] = low + i
            out_entries[n] = numbers[i]
            n += 1
            if is_memory(kind):
                a[low + i] = 0
            elif is_difference(kind):
                a[low + i] += numbers[i]
        i += 1


@compiled
def settle_each(
    kind: Any, a: Any, b: Any, ratios: Any, starts: Any, stops: Any, counts: Any, ends: Any, mask: Any,
    out_places: Any, out_entries: Any,
) -> None:  # fmt: skip  # pragma: no cover
    """The winners of short pieces, one piece after the other."""
    short = np.empty(SHORT, a.dtype)
    for p in range(starts.size):
        out = slice(ends[p] - counts[p], ends[p])
        settle_short(
            kind, a, b, ratios[p], starts[p], stops[p], counts[p], mask, short, out_places[out], out_entries[out]
        )


@compiled
def sweep(
    kind: Any, a: Any, b: Any, ratios: Any, starts: Any, stops: Any, counts: Any, ends: Any, floors: Any, mask: Any,
    begin: int, end: int, places: Any, entries: Any, before: Any, kept: Any, failed: Any, out_places: Any,
    out_entries: Any,
) -> None:  # fmt: skip  # pragma: no cover
    """Sample, collect and settle the pieces of [begin, end); of those it shares, collect: kept[p] candidates."""
    used: Any = np.int64(0)  # not a literal, for which `collect` would be compiled once more
    short = np.empty(SHORT, a.dtype)
    for p in range(starts.size):
        low, high, k = max(starts[p], begin), min(stops[p], end), counts[p]
        if low >= high:
            continue
        whole = low == starts[p] and high == stops[p]
        if whole and high - low <= SHORT and k > 0:
            out = slice(ends[p] - k, ends[p])
            settle_short(kind, a, b, ratios[p], low, high, k, mask, short, out_places[out], out_entries[out])
            continue
        if whole:
            floors[p] = sample_threshold(kind, a, b, ratios[p], low, high, k, mask)
        now, complete = collect(
            kind, a, b, ratios[p], low, high, floors[p], mask, used, places, entries, before
        )  # fmt: skip
        mine = slice(used, now)
        if not complete or (whole and now - used < k):
            put_back(kind, a, places[mine], entries[mine], before[mine])
            failed[p] = True
        elif whole:
            kth, ties = kth_magnitude(entries[mine], mask, k)
            out = slice(ends[p] - k, ends[p])
            settle(
                kind, a, places[mine], entries[mine], before[mine], mask, kth, ties,
                out_places[out], out_entries[out],
            )  # fmt: skip
        else:
            kept[p] = now - used
            used = now


@compiled
def count_around(
    kind: Any, a: Any, b: Any, start: int, stop: int, level: Any, mask: Any
) -> tuple[int, int]:  # pragma: no cover
    """How many magnitudes lie above a level, and how many upon it (a memory step's sum stands in `a` already)."""
    above, upon = 0, 0
    scratch = np.empty(1, a.dtype)
    bits = scratch.view(mask.dtype)
    for i in range(start, stop):
        scratch[0] = entry(kind, a, b, i)
        magnitude = bits[0] & mask[0]
        above += magnitude > level
        upon += magnitude == level
    return above, upon


@compiled
def histogram_of(
    kind: Any, a: Any, b: Any, start: int, stop: int, mask: Any, prefix: Any, done: int, shift: int, counts: Any
) -> None:  # pragma: no cover
    """Count the 12-bit digits at `shift` of the magnitudes whose bits above `done` equal the prefix."""
    scratch = np.empty(1, a.dtype)
    bits = scratch.view(mask.dtype)
    for i in range(start, stop):
        scratch[0] = entry(kind, a, b, i)
        magnitude = bits[0] & mask[0]
        if done >= 63 or magnitude >> done == prefix:
            counts[i & 3, (magnitude >> shift) & 4095] += 1


@compiled
def take_exact(
    kind: Any, a: Any, b: Any, start: int, stop: int, mask: Any, kth: Any, ties: int, out_places: Any,
    out_entries: Any, k: int,
) -> None:  # fmt: skip  # pragma: no cover
    """Find the winners of a whole piece once its k-th magnitude is known; stops at the k-th."""
    n = 0
    scratch = np.empty(1, a.dtype)
    bits = scratch.view(mask.dtype)
    for i in range(start, stop):
        scratch[0] = entry(kind, a, b, i)
        magnitude = bits[0] & mask[0]
        if magnitude > kth or (magnitude == kth and ties > 0):
            ties -= magnitude == kth
            out_places[n] = i
            out_entries[n] = scratch[0]
            n += 1
            if is_memory(kind):
                a[i] = 0
            elif is_difference(kind):
                a[i] += scratch[0]
            if n == k:
                return


class _Pieces:
    """A layout's non-empty pieces as arrays for the kernels."""

    def __init__(self, layout: Layout, counts: Sequence[int], ratios: Sequence[float] | None, dtype: Any) -> None:
        self.starts, self.stops, self.counts, self.ends, ones, self.short = _bounds_of(layout, tuple(counts), dtype)
        pairs = zip(ratios, layout.pieces, strict=True) if ratios else ()
        self.ratios = np.array([ratio for ratio, piece in pairs if piece.numel], dtype) if ratios else ones


@lru_cache(maxsize=64)
def _bounds_of(layout: Layout, counts: tuple[int, ...], dtype: Any) -> tuple[Any, Any, Any, Any, Any, bool]:
    """Where pieces start and stop, how many numbers of each are wanted, these added up, and ratios of one; whether all
    pieces are short, and want some. Kept, because there may be 10,000 pieces."""
    filled = [(piece, count) for piece, count in zip(layout.pieces, counts, strict=True) if piece.numel]
    starts = np.array([piece.offset for piece, _ in filled], np.int64)
    numels = np.array([piece.numel for piece, _ in filled], np.int64)
    wanted = np.array([count for _, count in filled], np.int64)
    short = bool((numels <= SHORT).all() and (wanted > 0).all())
    return starts, starts + numels, wanted, np.cumsum(wanted), np.ones(starts.size, dtype), short


def largest(
    kind: Any, first: Tensor, second: Tensor, layout: Layout, counts: Sequence[int], ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """The top-k of one kind of step: positions and values."""
    work = first.contiguous()
    a, b = work.numpy(), second.contiguous().numpy()
    pieces = _Pieces(layout, counts, ratios, a.dtype)
    total = int(pieces.ends[-1]) if pieces.ends.size else 0
    found = torch.empty(total, dtype=torch.int64), torch.empty(total, dtype=first.dtype)
    places, entries = (each.numpy() for each in found)
    if total and pieces.short and alone(a.size):
        settle_each(
            kind, a, b, pieces.ratios, pieces.starts, pieces.stops, pieces.counts, pieces.ends, MASKS[a.dtype.itemsize],
            places, entries,
        )  # fmt: skip
    elif total:
        _Selection(kind, a, b, pieces, places, entries).run()
    if work is not first and kind != PLAIN:
        first.copy_(work)
    return found


class _Selection:
    """One selection: the threads' sweeps, then the pieces they share, then those that were misjudged."""

    def __init__(self, kind: Any, a: Any, b: Any, pieces: _Pieces, places: Any, entries: Any) -> None:
        self.kind, self.a, self.b, self.pieces = kind, a, b, pieces
        self.places, self.entries = places, entries
        self.mask = MASKS[a.dtype.itemsize]
        self.floors = np.zeros(pieces.starts.size, self.mask.dtype)
        self.failed = np.zeros(pieces.starts.size, np.bool_)

    def run(self) -> None:
        shared = self._shared()
        at_once(lambda i: self._estimate(shared[i]), len(shared))
        shares = in_parallel(self._sweep, self.a.size)
        for p in shared:
            self._settle_together(p, [_Share(p, *share) for share in shares])
        for misjudged in np.flatnonzero(self.failed):
            self._settle_exactly(int(misjudged))

    def _shared(self) -> list[int]:
        """The pieces that are cut by the end of a thread's share."""
        cuts = bounds(self.a.size)[1:-1]
        if not cuts:
            return []
        owners = np.searchsorted(self.pieces.stops, cuts, side="right")
        return sorted({int(p) for p, cut in zip(owners, cuts, strict=True) if self.pieces.starts[p] < cut})

    def _estimate(self, p: int) -> None:
        pieces = self.pieces
        self.floors[p] = sample_threshold(
            self.kind, self.a, self.b, pieces.ratios[p], pieces.starts[p], pieces.stops[p], pieces.counts[p], self.mask
        )

    def _sweep(self, share: int, begin: int, end: int) -> tuple[Any, Any, Any, Any]:
        pieces = self.pieces
        room = min(4 * self.places.size + 4096, end - begin + 64)
        places, entries = np.empty(room, np.int64), np.empty(room, self.a.dtype)
        before = np.empty(room if is_difference(self.kind) else 0, self.a.dtype)
        kept = np.zeros(pieces.starts.size, np.int64)
        sweep(
            self.kind, self.a, self.b, pieces.ratios, pieces.starts, pieces.stops, pieces.counts, pieces.ends,
            self.floors, self.mask, begin, end, places, entries, before, kept, self.failed, self.places, self.entries,
        )  # fmt: skip
        return places, entries, before, kept

    def _settle_together(self, p: int, shares: list[_Share]) -> None:
        """A piece that several threads share: one k-th magnitude, then each thread's winners go to their place."""
        k = int(self.pieces.counts[p])
        if self.failed[p] or sum(share.places.size for share in shares) < k:
            for share in shares:
                put_back(self.kind, self.a, share.places, share.entries, share.before)
            self.failed[p] = True
            return
        kth, ties = kth_magnitude(np.concatenate([share.entries for share in shares]), self.mask, k)
        place = int(self.pieces.ends[p]) - k
        tasks = []
        for share in shares:
            magnitudes = share.entries.view(self.mask.dtype) & self.mask
            above, upon = int((magnitudes > kth).sum()), min(int((magnitudes == kth).sum()), ties)
            tasks.append((share, upon, slice(place, place + above + upon)))
            ties, place = ties - upon, place + above + upon
        at_once(lambda i: self._settle(kth, *tasks[i]), len(tasks))

    def _settle(self, kth: Any, share: _Share, ties: int, out: slice) -> None:
        settle(
            self.kind, self.a, share.places, share.entries, share.before, self.mask, kth, ties,
            self.places[out], self.entries[out],
        )  # fmt: skip

    def _settle_exactly(self, p: int) -> None:
        """The sample misjudged the piece: find its k-th magnitude by counting, then take the winners."""
        start, stop, k = int(self.pieces.starts[p]), int(self.pieces.stops[p]), int(self.pieces.counts[p])
        out = slice(int(self.pieces.ends[p]) - k, int(self.pieces.ends[p]))
        kth, ties = self._kth(start, stop, k, self.floors[p])
        take_exact(self.kind, self.a, self.b, start, stop, self.mask, kth, ties, self.places[out], self.entries[out], k)

    def _kth(self, start: int, stop: int, k: int, floor: Any) -> tuple[Any, int]:
        """The k-th magnitude of a piece: the floor itself where there are many ties, else digit by digit."""
        around = in_parallel(
            lambda _, i, j: count_around(self.kind, self.a, self.b, start + i, start + j, floor, self.mask),
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
            down = np.cumsum(counts[digit::-1])  # a vector of zeros but for a few numbers is at its last digit
            steps = int(np.searchsorted(down, left))
            left -= int(down[steps - 1]) if steps else 0
            digit -= steps
            prefix = self.mask.dtype.type((int(prefix) << width if done < 63 else 0) | digit)
            done = shift
        return prefix, left

    def _digits(self, start: int, stop: int, prefix: Any, done: int, shift: int) -> Any:
        def count(share: int, i: int, j: int) -> Any:
            counts = np.zeros((4, 4096), np.int64)
            histogram_of(self.kind, self.a, self.b, start + i, start + j, self.mask, prefix, done, shift, counts)
            return counts.sum(0)

        counts = sum(in_parallel(count, stop - start))
        if done < 63 and done - shift < 12:  # the last digit is narrower: fold the bits of the prefix away
            counts = counts.reshape(-1, 1 << (done - shift)).sum(0)
        return counts


class _Share:
    """One thread's candidates of a piece that it shares with others."""

    def __init__(self, p: int, places: Any, entries: Any, before: Any, kept: Any) -> None:
        start = int(kept[:p].sum())
        mine = slice(start, start + int(kept[p]))
        self.places, self.entries, self.before = places[mine], entries[mine], before[mine]


def topk(x: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """See `reference.topk`."""
    return largest(PLAIN, x, x, layout, counts, None)


def memory_topk_(
    error: Tensor, value: Tensor, layout: Layout, counts: Sequence[int], ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """See `reference.memory_topk_`."""
    return largest(MEMORY, error, value, layout, counts, ratios)


def difference_topk_(local: Tensor, target: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """See `reference.difference_topk_`."""
    return largest(DIFFERENCE, local, target, layout, counts, None)

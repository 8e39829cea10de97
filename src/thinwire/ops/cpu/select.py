"""Exact top-k on the CPU in one pass over memory, compiled by numba.

A low threshold is estimated from a sample of each piece; one pass computes the vector (e <- r e + v, or target -
local), and collects every entry at or above the threshold; the exact k are settled among these few candidates.
Magnitudes are compared as integers: for floats of one sign the order of the bits is the order of the numbers, so
whole blocks of 64 are tested with vector instructions and most of them are passed over. Where the sample misjudged a
piece, its exact k-th magnitude is found by counting.

Bytes moved for each number: memory step 12 (read e, read v, write e), difference 8 (read both; only k are written),
plain 4. 25 M float32 on two cores of an EPYC (AVX-512), k = 1 %: see `thinwire bench kernels`, which measures it
beside an in-place add.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

BLOCK = 64
MEMORY, DIFFERENCE, PLAIN = 0, 1, 2


@njit(nogil=True, cache=True)
def sample_threshold(
    kind: int, a: Any, b: Any, ratio: Any, start: int, stop: int, k: int, mask: Any, want: int
) -> Any:  # pragma: no cover
    """A magnitude that slightly more than k of the piece's numbers should reach: order statistic of a strided sample.

    Of s sampled numbers s k/n are expected among the k largest, give or take sqrt(s k/n); three of these are added.
    """
    n = stop - start
    run = 16  # numbers of one cache line
    runs = max(1, want // run)
    sample = np.empty(min(n, runs * run), a.dtype)
    if sample.size == n:
        for j in range(n):
            sample[j] = _entry(kind, a, b, ratio, start + j)
    else:
        stride = n // runs
        for i in range(runs):
            for j in range(run):
                sample[i * run + j] = _entry(kind, a, b, ratio, start + i * stride + j)
    expected = sample.size * k / n
    rank = k if sample.size == n else int(expected + 3 * np.sqrt(expected) + 3)
    magnitudes = sample.view(mask.dtype) & mask[0]
    if rank >= magnitudes.size:
        return magnitudes.min()
    return np.partition(magnitudes, magnitudes.size - rank)[magnitudes.size - rank]


@njit(nogil=True, cache=True, inline="always")
def _entry(kind: int, a: Any, b: Any, ratio: Any, i: int) -> Any:  # pragma: no cover
    if kind == MEMORY:
        return ratio * a[i] + b[i]
    if kind == DIFFERENCE:
        return b[i] - a[i]
    return a[i]


@njit(nogil=True, cache=True)
def estimate(
    kind: int,
    a: Any,
    b: Any,
    ratios: Any,
    starts: Any,
    stops: Any,
    counts: Any,
    mask: Any,
    begin: int,
    end: int,
    floors: Any,
) -> None:  # pragma: no cover
    """The floors of the pieces that begin in [begin, end). A sample has 1/256 of a piece, 256 to 32,768 numbers."""
    for p in range(starts.size):
        if begin <= starts[p] < end:
            want = min(32768, max(256, (stops[p] - starts[p]) // 256))
            floors[p] = sample_threshold(kind, a, b, ratios[p], starts[p], stops[p], counts[p], mask, want)


def _collector(kind: int) -> Any:
    """The one pass, compiled for one kind of step: with `kind` a constant, the inner loops become vector code."""

    @njit(nogil=True, cache=True)
    def scan(
        entries_here: Any,
        bits: Any,
        part: Any,
        sign: Any,
        floor: Any,
        s: int,
        width: int,
        used: int,
        places: Any,
        entries: Any,
    ) -> int:  # pragma: no cover
        """Collect the entries of one block that reach the floor; counts on where there is no more room."""
        for j in range(width):
            if (bits[j] & sign) >= floor:
                if used < places.size:
                    places[used] = s + j
                    entries[used] = entries_here[j]
                    if kind == MEMORY:
                        part[j] = 0
                used += 1
        return used

    @njit(nogil=True, cache=True)
    def collect(
        a: Any,
        b: Any,
        ratios: Any,
        starts: Any,
        stops: Any,
        floors: Any,
        mask: Any,
        begin: int,
        end: int,
        places: Any,
        entries: Any,
        found: Any,
        kept: Any,
    ) -> None:  # pragma: no cover
        """Over [begin, end): compute, and collect what reaches its piece's floor, in order.

        found[p] counts what reached the floor, kept[p] what there was room for. In a memory step the collected entries
        are taken out of `a` at once, while they are in the cache: only those that lose have to be put back.
        """
        used = 0
        scratch = np.empty(BLOCK, a.dtype)
        scratch_bits, a_bits = scratch.view(mask.dtype), a.view(mask.dtype)
        sign = mask[0]
        for p in range(starts.size):
            low, high = max(starts[p], begin), min(stops[p], end)
            floor, ratio = floors[p], ratios[p]
            first = used
            blocks = max(0, high - low) // BLOCK
            for q in range(blocks):
                s = low + q * BLOCK
                part_a, part_b = a[s : s + BLOCK], b[s : s + BLOCK]
                bits = scratch_bits if kind == DIFFERENCE else a_bits[s : s + BLOCK]
                if kind == MEMORY:
                    for j in range(BLOCK):
                        part_a[j] = ratio * part_a[j] + part_b[j]
                elif kind == DIFFERENCE:
                    for j in range(BLOCK):
                        scratch[j] = part_b[j] - part_a[j]
                largest = bits[0] & sign
                for j in range(BLOCK):
                    largest = max(largest, bits[j] & sign)
                if largest >= floor:
                    here = scratch if kind == DIFFERENCE else part_a
                    if used <= places.size:
                        used = scan(here, bits, part_a, sign, floor, s, BLOCK, used, places, entries)
                    else:
                        used += 1  # no more room: the piece goes to the exact count, whatever the number
            s = low + blocks * BLOCK
            width = max(0, high - s)
            part_a, part_b = a[s : s + width], b[s : s + width]
            for j in range(width):
                if kind == MEMORY:
                    part_a[j] = ratio * part_a[j] + part_b[j]
                elif kind == DIFFERENCE:
                    scratch[j] = part_b[j] - part_a[j]
            bits = scratch_bits if kind == DIFFERENCE else a_bits[s : s + width]
            here = scratch if kind == DIFFERENCE else part_a
            used = scan(here, bits, part_a, sign, floor, s, width, used, places, entries)
            found[p] = used - first
            used = min(used, places.size)
            kept[p] = used - first

    return collect


COLLECTORS = {kind: _collector(kind) for kind in (MEMORY, DIFFERENCE, PLAIN)}


@njit(nogil=True, cache=True)
def kth_of_candidates(entries: Any, mask: Any, k: int) -> tuple[Any, int]:  # pragma: no cover
    """The k-th largest magnitude of a short vector, and how many entries of just that magnitude are among the k."""
    magnitudes = entries.view(mask.dtype) & mask[0]
    low, high = magnitudes.min(), magnitudes.max()
    shift = 0
    while (high - low) >> shift >= 4096:
        shift += 1
    histogram = np.zeros(4096, np.int64)
    for m in magnitudes:
        histogram[(m - low) >> shift] += 1
    above = 0
    slot = 4095
    while above + histogram[slot] < k:
        above += histogram[slot]
        slot -= 1
    inside = np.empty(histogram[slot], mask.dtype)
    j = 0
    for m in magnitudes:
        if (m - low) >> shift == slot:
            inside[j] = m
            j += 1
    rank = inside.size - (k - above)
    kth = np.partition(inside, rank)[rank]
    for m in inside:
        if m > kth:
            above += 1
    return kth, k - above


@njit(nogil=True, cache=True)
def settle(
    kind: int,
    a: Any,
    b: Any,
    places: Any,
    entries: Any,
    mask: Any,
    kth: Any,
    ties: int,
    out_places: Any,
    out_entries: Any,
) -> int:  # pragma: no cover
    """Write the winners among the candidates, in order; put losers back (memory) or add winners (difference)."""
    n = 0
    bits = entries.view(mask.dtype)
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
            if kind == DIFFERENCE:
                a[places[c]] += entries[c]
        elif kind == MEMORY:
            a[places[c]] = entries[c]
    return n


@njit(nogil=True, cache=True)
def settle_all(
    kind: int,
    a: Any,
    b: Any,
    places: Any,
    entries: Any,
    found: Any,
    kept: Any,
    counts: Any,
    mask: Any,
    out_places: Any,
    out_entries: Any,
) -> None:  # pragma: no cover
    """Settle every piece whose candidates are all there and at least k; the others are left to the exact count."""
    c, o = 0, 0
    for p in range(counts.size):
        k = counts[p]
        if found[p] == kept[p] and kept[p] >= k:
            part = slice(c, c + kept[p])
            kth, ties = kth_of_candidates(entries[part], mask, k)
            out = slice(o, o + k)
            settle(kind, a, b, places[part], entries[part], mask, kth, ties, out_places[out], out_entries[out])
        c += kept[p]
        o += k


@njit(nogil=True, cache=True)
def put_back(a: Any, places: Any, entries: Any) -> None:  # pragma: no cover
    for c in range(places.size):
        a[places[c]] = entries[c]


@njit(nogil=True, cache=True)
def count_around(
    kind: int, a: Any, b: Any, start: int, stop: int, level: Any, mask: Any
) -> tuple[int, int]:  # pragma: no cover
    """How many magnitudes lie above a level, and how many upon it (a memory step's sum stands in `a` already)."""
    above, upon = 0, 0
    scratch = np.empty(1, a.dtype)
    bits = scratch.view(mask.dtype)
    for i in range(start, stop):
        scratch[0] = b[i] - a[i] if kind == DIFFERENCE else a[i]
        magnitude = bits[0] & mask[0]
        above += magnitude > level
        upon += magnitude == level
    return above, upon


@njit(nogil=True, cache=True)
def histogram_of(
    kind: int, a: Any, b: Any, start: int, stop: int, mask: Any, prefix: Any, done: int, shift: int, counts: Any
) -> None:  # pragma: no cover
    """Count the 12-bit digits at `shift` of the magnitudes whose bits above `done` equal the prefix."""
    scratch = np.empty(1, a.dtype)
    bits = scratch.view(mask.dtype)
    for i in range(start, stop):
        scratch[0] = b[i] - a[i] if kind == DIFFERENCE else a[i]
        magnitude = bits[0] & mask[0]
        if done >= 63 or magnitude >> done == prefix:
            counts[i & 3, (magnitude >> shift) & 4095] += 1


@njit(nogil=True, cache=True)
def take_exact(
    kind: int,
    a: Any,
    b: Any,
    start: int,
    stop: int,
    mask: Any,
    kth: Any,
    ties: int,
    out_places: Any,
    out_entries: Any,
    k: int,
) -> None:  # pragma: no cover
    """Find the winners of a whole piece once its k-th magnitude is known; stops at the k-th."""
    n = 0
    scratch = np.empty(1, a.dtype)
    bits = scratch.view(mask.dtype)
    for i in range(start, stop):
        scratch[0] = b[i] - a[i] if kind == DIFFERENCE else a[i]
        magnitude = bits[0] & mask[0]
        if magnitude > kth or (magnitude == kth and ties > 0):
            ties -= magnitude == kth
            out_places[n] = i
            out_entries[n] = scratch[0]
            n += 1
            if kind == MEMORY:
                a[i] = 0
            elif kind == DIFFERENCE:
                a[i] += scratch[0]
            if n == k:
                return

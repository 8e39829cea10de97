"""Some of n numbers drawn at random without sorting, in one long piece or in many short ones, compiled by numba.

The k smallest of n random words are wanted. Words are uniform, so about k lie below k/n of their range: each thread
draws its share of the words, in registers, and keeps those below a level six standard deviations higher; the k-th
smallest is then looked for in the narrow band about k/n. No two words of a key are equal (SplitMix64 is a bijection of
its counter), so there are no ties.

A short piece with a small k keeps the k smallest words that it has seen in a heap, the largest on top: 64 words are
drawn at a time and compared with it together, and of d words about k (1 + ln(d/k)) enter. For a larger k the k-th
smallest is selected among all.

Bytes moved: none for each number, 16 for each of slightly more than k candidates. 25 M numbers on two cores of a busy
EPYC (AVX-512): 8 to 12 ms for k = 1 %, 1.2 times an in-place add; 4 to 7 ms for 0.1 %; sorting takes 2 to 3.6 s. 10,000
pieces of 300 numbers on one core: 2.0 ms for k = 1, 11 for k = 8, 33 for k = 30 and 42 for k = 100; by one call each,
230 and more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops.cpu.compiler import compiled
from thinwire.ops.cpu.intrinsics import LANES, at_least, lowest
from thinwire.ops.cpu.one_pass import ONE
from thinwire.ops.cpu.threads import in_parallel
from thinwire.ops.keys import GOLDEN, MULTIPLIERS

EVERY_BIT = np.int64(-1)
DEVIATIONS = 6
"""Standard deviations of the margin: a draw exceeds it once in 10^9."""
_GOLDEN, _FIRST, _SECOND = (np.uint64(c) for c in (GOLDEN, *MULTIPLIERS))

SHORT = 4096
"""Numbers of a piece up to which its words are drawn here."""
FEW = 24
"""Words up to which a heap is quicker than a selection among all."""
HIGHEST = np.int64((1 << 63) - 1)
"""Never among the k < d smallest words of a key, no two of which are equal."""


@compiled
def word(key: Any, i: Any) -> Any:  # pragma: no cover
    """The i-th draw of a key, as `keys.random_bits` defines it."""
    z = key + (i + ONE) * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return np.int64(z ^ (z >> np.uint64(31)))


@compiled
def draw(key: Any, begin: int, end: int, level: Any, places: Any, words: Any) -> int:  # pragma: no cover
    """The draws of [begin, end) that lie below the level, in order: how many, or -1 where there is too little room."""
    block = np.empty(LANES, np.int64)
    used = 0
    for s in range(begin, end, LANES):
        if used + LANES > places.size:
            return -1
        for j in range(LANES):
            block[j] = word(key, np.uint64(s + j))
        found = ~at_least(block, 0, EVERY_BIT, level)
        if s + LANES > end:
            found &= (ONE << np.uint64(end - s)) - ONE
        while found:
            j = lowest(found)
            places[used] = s + j
            words[used] = block[j]
            used += 1
            found &= found - ONE
    return used


@compiled
def kth_word(words: Any, k: int, sure: Any) -> Any:  # pragma: no cover
    """The k-th smallest word, looked for among those from `sure` on unless k or more lie below it."""
    below = 0
    for w in words:
        below += w < sure
    if below >= k:
        return np.partition(words, k - 1)[k - 1]
    band = np.empty(words.size - below, np.int64)
    j = 0
    for w in words:
        if w >= sure:
            band[j] = w
            j += 1
    return np.partition(band, k - 1 - below)[k - 1 - below]


@compiled
def keep(places: Any, words: Any, kth: Any, out: Any, n: int) -> int:  # pragma: no cover
    """Write the places of the words up to the k-th into `out` from n on: how many there are now."""
    for c in range(places.size):
        if words[c] <= kth:
            out[n] = places[c]
            n += 1
    return n


def drawn(key: int, numel: int, k: int) -> Tensor:
    """Ascending indices of the k smallest words of a key, k < numel."""
    positions = torch.empty(max(0, k), dtype=torch.int64)
    if k > 0:
        margin = DEVIATIONS * sqrt(k) + DEVIATIONS**2
        shares = _candidates(key, numel, (k + margin) / numel)
        if shares is None or sum(words.size for _, words in shares) < k:
            shares = _candidates(key, numel, 1.0)
        assert shares is not None, "with room for every number"
        kth = kth_word(np.concatenate([words for _, words in shares]), k, _level((k - margin) / numel))
        n = 0
        for places, words in shares:
            n = keep(places, words, kth, positions.numpy(), n)
    return positions


def _candidates(key: int, numel: int, part: float) -> list[tuple[Any, Any]] | None:
    """Places and words of the lowest part of the range, share by share; None where more came than were expected."""

    def run(share: int, begin: int, end: int) -> tuple[Any, Any, int]:
        expected = (end - begin) * part
        room = min(end - begin, int(expected + 8 * sqrt(expected))) + 2 * LANES
        places, words = np.empty(room, np.int64), np.empty(room, np.int64)
        used = draw(np.uint64(key & (1 << 64) - 1), begin, end, _level(part), places, words)
        return places[:used], words[:used], used

    shares = in_parallel(run, numel)
    return None if any(used < 0 for _, _, used in shares) else [(places, words) for places, words, _ in shares]


def _level(part: float) -> Any:
    """The signed word below which a part of all words lies; at one, the highest word, never among k < n."""
    return np.int64(min((1 << 63) - 1, max(-(1 << 63), int(part * 2**64) - (1 << 63))))


def randk_indices(key: int, numel: int, k: int, device: torch.device) -> Tensor:
    """See `reference.randk_indices`."""
    return torch.arange(numel) if k >= numel else drawn(key, numel, k)


# --------------------------------------------------------------------------------------------------------- short pieces


@compiled
def sink(words: Any, places: Any, k: int, new: Any, place: int) -> None:  # pragma: no cover
    """Replace the top of a heap of k words by a smaller one."""
    i = 0
    while 2 * i + 1 < k:
        child = 2 * i + 1
        if child + 1 < k and words[child + 1] > words[child]:
            child += 1
        if words[child] <= new:
            break
        words[i], places[i] = words[child], places[child]
        i = child
    words[i], places[i] = new, place


@compiled
def smallest(key: Any, numel: int, k: int, block: Any, words: Any, places: Any) -> None:  # pragma: no cover
    """Where the k < numel smallest words of a key stand, into places[:k], in no order."""
    words[:k] = HIGHEST
    for s in range(0, numel, LANES):
        for j in range(LANES):
            block[j] = word(key, np.uint64(s + j))
        found = ~at_least(block, 0, EVERY_BIT, words[0])
        if s + LANES > numel:
            found &= (ONE << np.uint64(numel - s)) - ONE
        while found:
            j = lowest(found)
            if block[j] < words[0]:
                sink(words, places, k, block[j], s + j)
            found &= found - ONE


@compiled
def lower(key: Any, numel: int, k: int, words: Any, places: Any) -> None:  # pragma: no cover
    """Where the k < numel smallest words of a key stand, into places[:k], in rising order."""
    for i in range(numel):
        words[i] = word(key, np.uint64(i))
    kth = np.partition(words[:numel], k - 1)[k - 1]
    n = 0
    for i in range(numel):
        if words[i] <= kth:
            places[n] = i
            n += 1


@compiled
def draw_each(
    keys: Any, starts: Any, numels: Any, counts: Any, ends: Any, first: int, last: int, out: Any
) -> None:  # pragma: no cover
    """The positions that pieces first..last-1 draw, those of piece p up to ends[p]; long ones are left out."""
    block, words = np.empty(LANES, np.int64), np.empty(SHORT, np.int64)
    for p in range(first, last):
        numel, k = numels[p], counts[p]
        places = out[ends[p] - k : ends[p]]
        if k == numel:
            for i in range(k):
                places[i] = i
        elif 0 < k <= FEW and numel <= SHORT:
            smallest(keys[p], numel, k, block, words, places)
            if k > 1:
                places.sort()
        elif 0 < k and numel <= SHORT:
            lower(keys[p], numel, k, words, places)
        for i in range(k):
            places[i] += starts[p]


def randk_positions(layout: Layout, counts: Sequence[int], keys: Tensor, device: torch.device) -> Tensor:
    """See `reference.randk_positions`: every thread takes pieces with as many numbers."""
    starts, numels = _pieces(layout)
    kept = np.minimum(np.array(counts, np.int64), numels)
    ends = np.cumsum(kept)
    positions = torch.empty(int(kept.sum()), dtype=torch.int64)
    out, words = positions.numpy(), keys.numpy().view(np.uint64)
    for p in np.flatnonzero((numels > SHORT) & (kept < numels)):
        out[ends[p] - kept[p] : ends[p]] = drawn(int(words[p]), int(numels[p]), int(kept[p])).numpy()

    def run(share: int, begin: int, end: int) -> None:
        first, last = np.searchsorted(starts, (begin, end))
        draw_each(words, starts, numels, kept, ends, first, last, out)

    in_parallel(run, layout.numel)
    return positions


@lru_cache(maxsize=64)
def _pieces(layout: Layout) -> tuple[Any, Any]:
    """Where each piece starts, and its numbers."""
    numels = np.array([piece.numel for piece in layout.pieces], np.int64)
    return np.cumsum(numels) - numels, numels

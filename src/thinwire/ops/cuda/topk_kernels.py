"""Exact top-k on a GPU in one pass over memory, in Triton: the same way as on the CPU, without waiting for the host.

`sample` estimates a low floor for each piece; `collect` computes the vector (e <- r e + v, or target - local), keeps
every entry at or above its piece's floor in the slots of its tile, and counts magnitudes in a histogram; `pick` and
`refine` narrow the histogram until it holds the exact k-th magnitude; `count` and `place` write the winners in order.
Magnitudes are compared as integers: for floats of one sign the order of the bits is the order of the numbers.

A tile whose candidates do not fit its slots, or whose piece the sample misjudged, is read again from memory wherever
its candidates are asked for. Only integers are added atomically, so every run gives the same bits.

Bytes moved for each number: memory step 12 (read e, read v, write e), difference 8, plain 4; and for each candidate
some 30 more.
"""

from __future__ import annotations

import triton
import triton.language as tl

MEMORY, DIFFERENCE, PLAIN = 0, 1, 2
TILE = 4096
BINS = 2048
SAMPLE = 8192
WIDEST = 20
"""log2 of the widest bin: 2,048 of them hold every magnitude below 2^31."""

MAGNITUDE: tl.constexpr = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _piece_of(i, first, last, starts):
    """The piece, from `first` to `last`, that owns each place: a binary search."""
    low = (i * 0).to(tl.int32) + first
    high = low * 0 + last
    span = last - first
    while span > 0:
        middle = (low + high + 1) >> 1
        right = tl.load(starts + middle) <= i
        low = tl.where(right, middle, low)
        high = tl.where(right, high, middle - 1)
        span = span >> 1
    return low


@triton.jit
def _of_piece(table, piece, first, last):
    """The table's number for each place's piece: one scalar load where a tile lies in one piece."""
    value = piece * 0 + tl.load(table + first)
    if first != last:
        value = tl.load(table + piece)
    return value


@triton.jit
def _entry(a, b, i, inside, ratio, kind: tl.constexpr, scaled: tl.constexpr):
    x = tl.load(a + i, mask=inside, other=0.0)
    if kind == 0:
        if scaled:
            x = ratio * x
        x = x + tl.load(b + i, mask=inside, other=0.0)
    if kind == 1:
        x = tl.load(b + i, mask=inside, other=0.0) - x
    return x


@triton.jit
def _magnitude(x):
    return x.to(tl.int32, bitcast=True) & MAGNITUDE


@triton.jit
def _from_memory(t, a, b, numel, again: tl.constexpr, TILE: tl.constexpr):
    """All entries of a tile, their places, and which of them exist."""
    i = t.to(tl.int64) * TILE + tl.arange(0, TILE)
    return _entry(a, b, i, i < numel, 1.0, again, False), i, i < numel


@triton.jit
def _from_slots(t, n, places, entries, ROOM: tl.constexpr, TILE: tl.constexpr):
    """The candidates of a tile, their places, and which slots hold one."""
    slot = tl.arange(0, ROOM)
    x = tl.load(entries + t.to(tl.int64) * ROOM + slot, mask=slot < n, other=0.0)
    place = tl.load(places + t.to(tl.int64) * ROOM + slot, mask=slot < n, other=0)
    return x, t.to(tl.int64) * TILE + place, slot < n


@triton.jit
def sample(
    a, b, ratios, starts, counts, floors, shifts, wanted, kind: tl.constexpr,
    scaled: tl.constexpr, SAMPLE: tl.constexpr, RUN: tl.constexpr, BINS: tl.constexpr, WIDEST: tl.constexpr,
):  # fmt: skip
    """For each piece a magnitude that slightly more than k numbers should reach, and the width of its bins.

    Of s sampled numbers s k/n are expected among the k largest, give or take sqrt(s k/n): four of these are added. The
    bins reach up to the magnitude that half as many should reach; where too few are expected, to all there are.
    """
    p = tl.program_id(0)
    start = tl.load(starts + p)
    n = tl.load(starts + p + 1) - start
    k = tl.load(counts + p)
    j = tl.arange(0, SAMPLE)
    whole = n <= SAMPLE
    stride = tl.maximum(n // (SAMPLE // RUN), RUN)
    place = tl.where(whole, j.to(tl.int64), (j // RUN) * stride + j % RUN)
    inside = place < n
    ratio = 1.0
    if scaled:
        ratio = tl.load(ratios + p)
    m = tl.where(inside, _magnitude(_entry(a, b, start + place, inside, ratio, kind, scaled)), -1)
    size = tl.minimum(n, SAMPLE).to(tl.float32)
    expected = size * (k.to(tl.float32) / n.to(tl.float32))
    rank = (expected + 4.0 * tl.sqrt(expected) + 3.0).to(tl.int32)
    rank = tl.where(whole, k.to(tl.int32), rank)
    low, high = 0, 0
    half = (expected * 0.5).to(tl.int32)
    for step in range(16):  # down to 1/256 of a power of two: the floor may be low, it must not be high
        lower, higher = low | (1 << (30 - step)), high | (1 << (30 - step))
        low = tl.where(tl.sum((m >= lower).to(tl.int32)) >= rank, lower, low)
        high = tl.where(tl.sum((m >= higher).to(tl.int32)) >= half, higher, high)
    span = tl.where(half >= 8, high - low, MAGNITUDE - low)
    shift = 0
    for s in range(0, WIDEST):
        shift += ((span >> s) >= BINS - 1).to(tl.int32)
    tl.store(floors + p, low)
    tl.store(shifts + p, shift)
    tl.store(wanted + p, k.to(tl.int32))


@triton.jit
def _add_to_histogram(histogram, piece, bins, chosen, many, first, last, BINS: tl.constexpr):
    """Count bins of pieces: one by one, or where there are many of one piece, gathered within the tile first."""
    if many & (first == last):
        gathered = tl.histogram(bins, BINS, mask=chosen)
        tl.atomic_add(histogram + first * BINS + tl.arange(0, BINS), gathered, mask=gathered > 0)
    else:
        tl.atomic_add(histogram + piece * BINS + bins, bins * 0 + 1, mask=chosen)


@triton.jit
def collect(
    a, b, numel, ratios, starts, tiles, floors, shifts, histogram,
    found, places, entries, kind: tl.constexpr, scaled: tl.constexpr, ROOM: tl.constexpr,
    TILE: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """The one pass: compute, keep what reaches the floor in the tile's slots, count it in the piece's histogram."""
    t = tl.program_id(0)
    i = t.to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < numel
    first, last = tl.load(tiles + 2 * t), tl.load(tiles + 2 * t + 1)
    piece = _piece_of(i, first, last, starts)
    ratio = 1.0
    if scaled:
        ratio = _of_piece(ratios, piece, first, last)
    x = _entry(a, b, i, inside, ratio, kind, scaled)
    if kind == 0:
        tl.store(a + i, x, mask=inside)
    m = _magnitude(x)
    floor = _of_piece(floors, piece, first, last)
    hit = inside & (m >= floor)
    n = tl.sum(hit.to(tl.int32))
    tl.store(found + t, n)
    if n > 0:
        bins = tl.minimum((m - floor) >> _of_piece(shifts, piece, first, last), BINS - 1)
        _add_to_histogram(histogram, piece, bins, hit, n > ROOM, first, last, BINS)
        if n <= ROOM:
            slot = t.to(tl.int64) * ROOM + tl.cumsum(hit.to(tl.int32)) - 1
            tl.store(places + slot, (i - t.to(tl.int64) * TILE).to(tl.int16), mask=hit)
            tl.store(entries + slot, x, mask=hit)


@triton.jit
def pick(
    histogram, floors, shifts, spans, wanted, ties, failed, failure, open,
    retry: tl.constexpr, opening: tl.constexpr, BINS: tl.constexpr, WIDEST: tl.constexpr,
):  # fmt: skip
    """For each piece the bin that holds the k-th magnitude: it becomes the range that the next histogram cuts finer.

    `opening`: the histogram of the first pass, which a misjudged sample can leave without the k-th magnitude: such a
    piece is marked as failed, to be counted anew over all magnitudes. `retry`: only the failed pieces.
    `failure` says that some piece failed, `open` that some range still holds more than one magnitude.
    """
    p = tl.program_id(0)
    bad = tl.load(failed + p)
    shift = tl.load(shifts + p)
    work = True
    if retry:
        work = bad != 0
    elif not opening:
        work = tl.load(spans + p) >= 0
    if work:
        j = tl.arange(0, BINS)
        row = histogram + p * BINS + j
        counts = tl.load(row)
        tl.store(row, counts * 0)
        need = tl.load(wanted + p)
        reach = tl.cumsum(counts, 0, reverse=True)
        best = tl.sum((reach >= need).to(tl.int32)) - 1
        wrong = best < 0
        if opening:
            wrong = (best < 0) | ((best == BINS - 1) & (shift < WIDEST))
        if wrong:
            tl.store(failed + p, 1)
            tl.store(floors + p, 0)
            tl.store(shifts + p, WIDEST)
            tl.store(spans + p, -1)
            tl.atomic_max(failure, 1)
        else:
            above = tl.sum(tl.where(j == best, reach - counts, 0))
            tl.store(ties + p, tl.sum(tl.where(j == best, counts, 0)))
            tl.store(wanted + p, need - above)
            tl.store(floors + p, tl.load(floors + p) + (best << shift))
            tl.store(spans + p, tl.where(shift > 0, shift, -1))
            tl.store(shifts + p, tl.maximum(shift - 11, 0))
            if shift > 0:
                tl.atomic_max(open, 1)


@triton.jit
def recount(
    a, b, numel, starts, tiles, number, failed, failure, histogram,
    found, again: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr, BINS: tl.constexpr, WIDEST: tl.constexpr,
):  # fmt: skip
    """Count all magnitudes of the failed pieces, and have their tiles read from memory from now on."""
    if tl.load(failure) != 0:
        t = tl.program_id(0)
        while t < number:
            i = t.to(tl.int64) * TILE + tl.arange(0, TILE)
            first, last = tl.load(tiles + 2 * t), tl.load(tiles + 2 * t + 1)
            piece = _piece_of(i, first, last, starts)
            chosen = (i < numel) & (_of_piece(failed, piece, first, last) != 0)
            if tl.sum(chosen.to(tl.int32)) > 0:
                m = _magnitude(_entry(a, b, i, chosen, 1.0, again, False))
                _add_to_histogram(histogram, piece, m >> WIDEST, chosen, True, first, last, BINS)
                tl.store(found + t, ROOM + 1)
            t += tl.num_programs(0)


@triton.jit
def _refine_by(
    x, i, inside, first, last, starts, floors, shifts, spans,
    histogram, many: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    piece = _piece_of(i, first, last, starts)
    span = _of_piece(spans, piece, first, last)
    over = _magnitude(x) - _of_piece(floors, piece, first, last)
    chosen = inside & (span >= 0) & (over >= 0) & ((over >> tl.maximum(span, 0)) == 0)
    bins = tl.where(chosen, over >> _of_piece(shifts, piece, first, last), 0)
    _add_to_histogram(histogram, piece, bins, chosen, many, first, last, BINS)


@triton.jit
def refine(
    a, b, numel, starts, tiles, number, found, places, entries, floors, shifts, spans, flag, histogram,
    again: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Count the magnitudes inside each piece's range in finer bins."""
    if tl.load(flag) != 0:
        t = tl.program_id(0)
        while t < number:
            n = tl.load(found + t)
            first, last = tl.load(tiles + 2 * t), tl.load(tiles + 2 * t + 1)
            if n > ROOM:
                x, i, inside = _from_memory(t, a, b, numel, again, TILE)
                _refine_by(x, i, inside, first, last, starts, floors, shifts, spans, histogram, True, BINS)
            elif n > 0:
                x, i, inside = _from_slots(t, n, places, entries, ROOM, TILE)
                _refine_by(x, i, inside, first, last, starts, floors, shifts, spans, histogram, False, BINS)
            t += tl.num_programs(0)


@triton.jit
def _standing(x, i, inside, first, last, starts, kth):
    """Which entries lie above their piece's k-th magnitude, which upon it, and their pieces."""
    piece = _piece_of(i, first, last, starts)
    over = _magnitude(x) - _of_piece(kth, piece, first, last)
    return inside & (over > 0), inside & (over == 0), piece


@triton.jit
def _tally(x, i, inside, first, last, starts, kth):
    above, upon, _ = _standing(x, i, inside, first, last, starts, kth)
    return tl.sum(above.to(tl.int64)) + (tl.sum(upon.to(tl.int64)) << 32)


@triton.jit
def count(
    a, b, numel, starts, tiles, found, places, entries, kth, tallies,
    again: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """For each tile how many entries lie above the k-th magnitude (low half of the number) and upon it (high half)."""
    t = tl.program_id(0)
    n = tl.load(found + t)
    first, last = tl.load(tiles + 2 * t), tl.load(tiles + 2 * t + 1)
    tally = t.to(tl.int64) * 0
    if n > ROOM:
        x, i, inside = _from_memory(t, a, b, numel, again, TILE)
        tally = _tally(x, i, inside, first, last, starts, kth)
    elif n > 0:
        x, i, inside = _from_slots(t, n, places, entries, ROOM, TILE)
        tally = _tally(x, i, inside, first, last, starts, kth)
    tl.store(tallies + t, tally)


@triton.jit
def _place_by(x, i, inside, first, last, starts, kth, wanted, before, tally, a, positions, values, kind: tl.constexpr):
    """Winners stand behind all winners before them: those above in order, and of ties the first in their piece."""
    above, upon, piece = _standing(x, i, inside, first, last, starts, kth)
    taken = _of_piece(wanted, piece, first, last).to(tl.int64)
    earlier = _of_piece(before, piece, first, last)
    ups = (tally & 0xFFFFFFFF) + tl.cumsum(above.to(tl.int32)) - above.to(tl.int32)
    tie = (tally >> 32) - (earlier >> 32) + tl.cumsum(upon.to(tl.int32)) - upon.to(tl.int32)
    wins = above | (upon & (tie < taken))
    rank = ups + (earlier & 0xFFFFFFFF) + tl.minimum(tie, taken)
    tl.store(positions + rank, i, mask=wins)
    tl.store(values + rank, x, mask=wins)
    if kind == 0:
        tl.store(a + i, tl.zeros_like(x), mask=wins)
    if kind == 1:
        tl.store(a + i, tl.load(a + i, mask=wins, other=0.0) + x, mask=wins)


@triton.jit
def place(
    a, b, numel, starts, tiles, found, places, entries, kth, wanted, before, tallies, positions, values,
    kind: tl.constexpr, again: tl.constexpr, ROOM: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write the winners in order, and take them out of `a` (memory) or add them to it (difference).

    tallies[t] has the counts of all tiles up to t and with it; before[p] the ties of all pieces before p: those that
    win in its low half, all of them in its high half.
    """
    t = tl.program_id(0)
    n = tl.load(found + t)
    first, last = tl.load(tiles + 2 * t), tl.load(tiles + 2 * t + 1)
    tally = t.to(tl.int64) * 0
    if t > 0:
        tally = tl.load(tallies + t - 1)
    if n > ROOM:
        x, i, inside = _from_memory(t, a, b, numel, again, TILE)
        _place_by(x, i, inside, first, last, starts, kth, wanted, before, tally, a, positions, values, kind)
    elif n > 0:
        x, i, inside = _from_slots(t, n, places, entries, ROOM, TILE)
        _place_by(x, i, inside, first, last, starts, kth, wanted, before, tally, a, positions, values, kind)

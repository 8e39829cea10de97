"""Exact top-k on a GPU in one pass over memory, in Triton: the same way as on the CPU, without waiting for the host.

`sample` estimates a low floor for each piece. `collect` is the one pass: it computes the vector (e <- r e + v, or
target - local) and notes in a map of bits which entries reach their piece's floor. `spread` turns the map into the
candidates' places, in order; `weigh` counts their magnitudes in a histogram; `pick` and `refine` narrow it down to the
exact k-th magnitude; `count` and `place` write the winners in order. Magnitudes are compared as integers: for floats of
one sign the order of the bits is the order of the numbers.

Where the sample misjudged a piece, or there are more candidates than room (many equal numbers), the same kernels read
whole tiles of the vector in place of candidates. Only integers are added atomically, so every run gives the same bits.

Bytes moved for each number: memory step 12 1/8 (read e, read v, write e; a bit), difference 8 1/8, plain 4 1/8; and
for each candidate some 100 more, most of them the sectors of 32 bytes around a winner that is taken out of e.
On an H200, 100 million numbers and k = 1 %: `collect` takes 0.299 ms, 98 % of the speed of a copy; `place` and `weigh`
0.063 and 0.058 ms for a million single sectors each, a third of it; all else together 0.09 ms.
"""

from __future__ import annotations

import triton
import triton.language as tl

MEMORY, DIFFERENCE, PLAIN = 0, 1, 2
TILE = 4096
BINS = 2048
SAMPLE = 16384
SCATTER = 0x9E3779B1
"""2^32 over the golden ratio: its multiples lie scattered over any range."""
WIDEST = 20
"""log2 of the widest bin: 2,048 of them hold every magnitude below 2^31."""

MAGNITUDE: tl.constexpr = tl.constexpr(0x7FFFFFFF)


@triton.jit
def popcount(x):
    """Bits set in each word of 32."""
    x = x.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def piece_of(i, first, last, starts):
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
def load(pointer, inside):
    return tl.load(pointer) if inside is None else tl.load(pointer, mask=inside, other=0.0)


@triton.jit
def _entry(a, b, i, inside, ratio, kind: tl.constexpr, scaled: tl.constexpr):
    x = load(a + i, inside)
    if kind == 0:
        if scaled:
            x = ratio * x
        x = x + load(b + i, inside)
    if kind == 1:
        x = load(b + i, inside) - x
    return x


@triton.jit
def _magnitude(x):
    return x.to(tl.int32, bitcast=True) & MAGNITUDE


@triton.jit
def sample(
    a, b, ratios, starts, counts, floors, shifts, guesses, histogram, around, flags, kind: tl.constexpr,
    scaled: tl.constexpr, SAMPLE: tl.constexpr, SCATTER: tl.constexpr, BINS: tl.constexpr, WIDEST: tl.constexpr,
    COPIES: tl.constexpr,
):  # fmt: skip
    """For each piece a magnitude that slightly more than k numbers should reach, and the width of its bins.

    Of s sampled numbers s k/n are expected among the k largest, give or take sqrt(s k/n): four of these are added. The
    bins reach up to the magnitude of four fewer than expected; where that leaves too few, to all there are. Where most
    numbers are equal, the k-th magnitude is most likely the least one in the sample that reaches the floor: the guess.

    One number is taken at a scattered place of each of s stretches. Runs of eight at even distances took less time, but
    of 3,072 x 768 numbers they saw 16 columns: a gradient has rows and columns of its own size, and in a step of GPT-2
    the floor was too high for some piece of every bucket. What followed took 6 ms of 53 on an H200.
    What later kernels count in is set to zero here.
    """
    p = tl.program_id(0)
    for copy in tl.static_range(0, COPIES):
        row = histogram + (copy * tl.num_programs(0) + p) * BINS
        tl.store(row + tl.arange(0, BINS), tl.zeros([BINS], tl.int32))
    tl.store(around + 2 * p + tl.arange(0, 2), tl.zeros([2], tl.int32))
    if p == 0:
        tl.store(flags + tl.arange(0, 4), tl.zeros([4], tl.int32))
    start = tl.load(starts + p)
    n = tl.load(starts + p + 1) - start
    k = tl.load(counts + p)
    j = tl.arange(0, SAMPLE)
    whole = n <= SAMPLE
    stride = tl.maximum(n // SAMPLE, 1)
    place = tl.where(whole, j.to(tl.int64), j * stride + ((j.to(tl.int64) * SCATTER) & 0xFFFFFFFF) % stride)
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
    few = (expected - 4.0 * tl.sqrt(expected)).to(tl.int32)
    # Down to 1/4096 of a power of two: the floor may be low, it must not be high. A memory that is emptied from the top
    # ends at about the k-th magnitude, and 1/256 below it there are as many numbers again: more than there is room for.
    for step in range(20):
        lower, higher = low | (1 << (30 - step)), high | (1 << (30 - step))
        both = tl.sum((m >= lower).to(tl.int32) + ((m >= higher).to(tl.int32) << 16))  # two counts in one number
        low = tl.where((both & 0xFFFF) >= rank, lower, low)
        high = tl.where((both >> 16) >= few, higher, high)
    span = tl.where(few >= 8, high - low, MAGNITUDE - low)
    shift = 0
    for s in range(0, WIDEST):
        shift += ((span >> s) >= BINS - 1).to(tl.int32)
    tl.store(floors + p, low)
    tl.store(shifts + p, shift)
    tl.store(guesses + p, tl.min(tl.where(m >= low, m, MAGNITUDE)))


@triton.jit
def note(t, chosen, words, found, TILE: tl.constexpr):
    """One bit for each entry that is chosen, and how many of them the tile has."""
    row, column = tl.arange(0, TILE // 32), tl.arange(0, 32)
    bits = tl.sum(chosen.to(tl.int32) << column[None, :], 1)
    tl.store(words + t.to(tl.int64) * (TILE // 32) + row, bits)
    tl.store(found + t, tl.sum(popcount(bits)).to(tl.int64))


@triton.jit
def _collect_inner(
    t, p, a, b, ratios, floors, words, found, kind: tl.constexpr, scaled: tl.constexpr, TILE: tl.constexpr
):
    """A whole tile of one piece: no masks, so that loads are 16 bytes wide."""
    offset = tl.arange(0, TILE // 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    a += t.to(tl.int64) * TILE
    ratio = 1.0
    if scaled:
        ratio = tl.load(ratios + p)
    x = _entry(a, b + t.to(tl.int64) * TILE, offset, None, ratio, kind, scaled)
    if kind == 0:
        tl.store(a + offset, x)
    note(t, _magnitude(x) >= tl.load(floors + p), words, found, TILE)


@triton.jit
def _collect_edge(
    t, first, last, a, b, numel, ratios, starts, floors, words, found,
    kind: tl.constexpr, scaled: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A tile that holds several pieces, or the end of the vector."""
    offset = tl.arange(0, TILE // 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    i = t.to(tl.int64) * TILE + offset
    piece = piece_of(i, first, last, starts)
    ratio = 1.0
    if scaled:
        ratio = tl.load(ratios + piece)
    x = _entry(a, b, i, i < numel, ratio, kind, scaled)
    if kind == 0:
        tl.store(a + i, x, mask=i < numel)
    note(t, (i < numel) & (_magnitude(x) >= tl.load(floors + piece)), words, found, TILE)


@triton.jit(do_not_specialize=["numel"])
def collect(
    a, b, numel, ratios, starts, tiles, floors, words, found,
    kind: tl.constexpr, scaled: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The one pass: compute, and note which entries reach the floor."""
    t = tl.program_id(0)
    first, last = tl.load(tiles + 2 * t), tl.load(tiles + 2 * t + 1)
    if (first == last) & ((t + 1).to(tl.int64) * TILE <= numel):
        _collect_inner(t, first, a, b, ratios, floors, words, found, kind, scaled, TILE)
    else:
        _collect_edge(t, first, last, a, b, numel, ratios, starts, floors, words, found, kind, scaled, TILE)


@triton.jit
def _running_sums(x, number, sums, BLOCK: tl.constexpr):
    total = tl.load(x) * 0
    start = 0
    while start < number:
        i = start + tl.arange(0, BLOCK)
        here = tl.cumsum(tl.load(x + i, mask=i < number, other=0)) + total
        tl.store(sums + i, here, mask=i < number)
        total = tl.max(here)  # nothing is below zero
        start += BLOCK


@triton.jit(do_not_specialize=["number", "blocks", "pieces"])
def stand(tallies, number, blocks, failure, sums, ties, pieces, before, BLOCK: tl.constexpr):
    """Running sums of the tallies (of blocks, or after a failure of tiles), and of the pieces' ties."""
    if tl.program_id(0) == 0:
        _running_sums(tallies, tl.where(tl.load(failure) != 0, number, blocks), sums, BLOCK)
    else:
        _running_sums(ties, pieces, before, BLOCK)


@triton.jit(do_not_specialize=["number", "tiles", "capacity"])
def spread(words, number, reached, tiles, places, capacity, WORDS: tl.constexpr, TILE: tl.constexpr):
    """The places of the set bits, in order; nothing where there is no room for all. `reached` has the running sums."""
    if tl.load(reached + tiles - 1) <= capacity:
        g = tl.program_id(0)
        w = g.to(tl.int64) * WORDS + tl.arange(0, WORDS)
        left = tl.load(words + w, mask=w < number, other=0)
        bits = popcount(left)
        slot = tl.cumsum(bits) - bits + w * 0
        earlier = g * (WORDS * 32 // TILE)
        if earlier > 0:
            slot += tl.load(reached + earlier - 1)
        while tl.sum((left != 0).to(tl.int32)) > 0:
            lowest = left & -left
            tl.store(places + slot, w * 32 + popcount(lowest - 1), mask=left != 0)
            slot += 1
            left ^= lowest


@triton.jit
def _add_to_histogram(histogram, piece, bins, chosen, BINS: tl.constexpr):
    tl.atomic_add(histogram + piece * BINS + bins, bins * 0 + 1, mask=chosen, sem="relaxed")


@triton.jit(do_not_specialize=["pieces", "tiles", "capacity"])
def weigh(
    a, b, starts, pieces, reached, tiles, capacity, floors, shifts, histogram, places, entries, owners,
    again: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """Each candidate's entry and piece, and the histogram of magnitudes above the floor.

    Half of all candidates fall into the last bin: a block of one piece adds them up first. Programs take turns among
    the copies of the histogram, or they would wait for each other's additions. (`pieces` must not become a constant 1:
    with the search folded away, Triton 3.6 fails to compile.)
    """
    total = tl.load(reached + tiles - 1)
    c = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = (c < total) & (total <= capacity)
    i = tl.load(places + c, mask=inside, other=0)
    x = _entry(a, b, i, inside, 1.0, again, False)
    piece = piece_of(i, 0, pieces - 1, starts)
    tl.store(entries + c, x, mask=inside)
    tl.store(owners + c, piece, mask=inside)
    bins = (_magnitude(x) - tl.load(floors + piece)) >> tl.load(shifts + piece)
    first, last = tl.min(tl.where(inside, piece, pieces)), tl.max(tl.where(inside, piece, 0))
    histogram += tl.program_id(0) % COPIES * pieces * BINS
    if first == last:
        top = inside & (bins >= BINS - 1)
        tl.atomic_add(histogram + first * BINS + BINS - 1, tl.sum(top.to(tl.int32)), sem="relaxed")
        _add_to_histogram(histogram, piece, bins, inside & (bins < BINS - 1), BINS)
    else:
        _add_to_histogram(histogram, piece, tl.minimum(bins, BINS - 1), inside, BINS)


@triton.jit
def pick(
    histogram, counts, floors, shifts, spans, wanted, ties, guesses, around, failure, open,
    retry: tl.constexpr, opening: tl.constexpr, BINS: tl.constexpr, WIDEST: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """For each piece the bin that holds the k-th magnitude: it becomes the range that the next histogram cuts finer.

    `opening`: the histogram of the candidates, which a misjudged sample can leave without the k-th magnitude: then
    `failure` is set, and `retry` starts again from the histogram of all magnitudes. `open` says that some range still
    holds more than one magnitude.
    """
    p = tl.program_id(0)
    work = True
    if retry:
        work = tl.load(failure) != 0
    elif not opening:
        work = tl.load(spans + p) >= 0
    if work:
        j = tl.arange(0, BINS)
        row = histogram + p * BINS + j
        numbers = tl.load(row)
        tl.store(row, numbers * 0)
        if opening:
            for copy in tl.static_range(1, COPIES):
                numbers += tl.load(row + copy * tl.num_programs(0) * BINS)
        need, floor, shift = tl.load(wanted + p), tl.load(floors + p), tl.load(shifts + p)
        if opening or retry:
            need = tl.load(counts + p).to(tl.int32)
        if retry:
            floor, shift = floor * 0, shift * 0 + WIDEST
        reach = tl.cumsum(numbers, 0, reverse=True)
        best = tl.sum((reach >= need).to(tl.int32)) - 1
        if retry:
            over, upon = tl.load(around + 2 * p), tl.load(around + 2 * p + 1)
            if (over < need) & (need <= over + upon):
                best, shift, floor = best * 0, shift * 0, tl.load(guesses + p)
                numbers, reach = numbers * 0 + upon, numbers * 0 + over + upon
        if opening and (best < 0) | ((best == BINS - 1) & (shift < WIDEST)):
            tl.atomic_max(failure, 1)
        above = tl.sum(tl.where(j == best, reach - numbers, 0))
        tied = tl.sum(tl.where(j == best, numbers, 0))
        tl.store(ties + p, (need - above).to(tl.int64) + (tied.to(tl.int64) << 32))
        tl.store(wanted + p, need - above)
        tl.store(floors + p, floor + (best << shift))
        tl.store(spans + p, tl.where(shift > 0, shift, -1))
        tl.store(shifts + p, tl.maximum(shift - 11, 0))
        if shift > 0:
            tl.atomic_max(open, 1)


@triton.jit
def _tile(t, a, b, numel, tiles, starts, again: tl.constexpr, TILE: tl.constexpr):
    """All entries of a tile, their places and pieces, and which of them exist."""
    i = t.to(tl.int64) * TILE + tl.arange(0, TILE)
    first, last = tl.load(tiles + 2 * t), tl.load(tiles + 2 * t + 1)
    return _entry(a, b, i, i < numel, 1.0, again, False), i, piece_of(i, first, last, starts), i < numel


@triton.jit
def _candidates(c, total, places, entries, owners):
    """Candidates, their places and pieces, and which of them exist."""
    x = tl.load(entries + c, mask=c < total, other=0.0)
    i = tl.load(places + c, mask=c < total, other=0)
    return x, i, tl.load(owners + c, mask=c < total, other=0), c < total


@triton.jit
def _gathered(histogram, piece, bins, chosen, first, last, BINS: tl.constexpr):
    """Count the bins of a whole tile: within the tile first, or equal numbers would all wait for one address.

    The lowest bin is counted by itself: where most numbers are equal, most often zero, that is where they are.
    """
    if first == last:
        least = tl.min(tl.where(chosen, bins, BINS - 1))
        low = chosen & (bins == least)
        tl.atomic_add(histogram + first * BINS + least, tl.sum(low.to(tl.int32)), sem="relaxed")
        others = chosen & (bins != least)
        if tl.sum(others.to(tl.int32)) > 0:
            numbers = tl.histogram(bins, BINS, mask=others)
            row = histogram + first * BINS + tl.arange(0, BINS)
            tl.atomic_add(row, numbers, mask=numbers > 0, sem="relaxed")
    else:
        _add_to_histogram(histogram, piece, bins, chosen, BINS)


@triton.jit
def _look_around(m, piece, inside, first, last, guesses, around):
    guess = tl.load(guesses + piece)
    over, upon = (inside & (m > guess)).to(tl.int32), (inside & (m == guess)).to(tl.int32)
    if first == last:
        tl.atomic_add(around + 2 * first, tl.sum(over), sem="relaxed")
        tl.atomic_add(around + 2 * first + 1, tl.sum(upon), sem="relaxed")
    else:
        tl.atomic_add(around + 2 * piece, over, mask=over != 0, sem="relaxed")
        tl.atomic_add(around + 2 * piece + 1, upon, mask=upon != 0, sem="relaxed")


@triton.jit(do_not_specialize=["numel", "number"])
def recount(
    a, b, numel, starts, tiles, number, failure, histogram, guesses, around,
    again: tl.constexpr, TILE: tl.constexpr, BINS: tl.constexpr, WIDEST: tl.constexpr,
):  # fmt: skip
    """After a failure: the histogram of all magnitudes, and how many lie above the guess and upon it."""
    if tl.load(failure) != 0:
        t = tl.program_id(0)
        while t < number:
            x, _, piece, inside = _tile(t, a, b, numel, tiles, starts, again, TILE)
            first, last = tl.load(tiles + 2 * t), tl.load(tiles + 2 * t + 1)
            _gathered(histogram, piece, _magnitude(x) >> WIDEST, inside, first, last, BINS)
            _look_around(_magnitude(x), piece, inside, first, last, guesses, around)
            t += tl.num_programs(0)


@triton.jit
def _in_range(x, piece, inside, floors, shifts, spans):
    """Which entries lie in their piece's range, and in which of its bins."""
    span = tl.load(spans + piece)
    over = _magnitude(x) - tl.load(floors + piece)
    chosen = inside & (span >= 0) & (over >= 0) & ((over >> tl.maximum(span, 0)) == 0)
    return tl.where(chosen, over >> tl.load(shifts + piece), 0), chosen


@triton.jit(do_not_specialize=["numel", "number"])
def refine(
    a, b, numel, starts, tiles, number, reached, places, entries, owners, floors, shifts, spans, failure, flag,
    histogram, again: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Count the magnitudes inside each piece's range in finer bins."""
    if tl.load(flag) != 0:
        t = tl.program_id(0)
        if tl.load(failure) != 0:
            while t < number:
                x, _, piece, inside = _tile(t, a, b, numel, tiles, starts, again, TILE)
                first, last = tl.load(tiles + 2 * t), tl.load(tiles + 2 * t + 1)
                bins, chosen = _in_range(x, piece, inside, floors, shifts, spans)
                _gathered(histogram, piece, bins, chosen, first, last, BINS)
                t += tl.num_programs(0)
        else:
            _refine_candidates(
                t, tl.load(reached + number - 1), places, entries, owners, floors, shifts, spans, histogram, BLOCK, BINS
            )


@triton.jit
def _refine_candidates(
    t, total, places, entries, owners, floors, shifts, spans, histogram, BLOCK: tl.constexpr, BINS: tl.constexpr
):
    c = t.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x, _, piece, inside = _candidates(c, total, places, entries, owners)
    bins, chosen = _in_range(x, piece, inside, floors, shifts, spans)
    _add_to_histogram(histogram, piece, bins, chosen, BINS)


@triton.jit
def _tally(x, piece, inside, kth):
    """How many entries lie above their piece's k-th magnitude (low half of the number) and upon it (high half)."""
    over = _magnitude(x) - tl.load(kth + piece)
    above, upon = tl.sum((inside & (over > 0)).to(tl.int32)), tl.sum((inside & (over == 0)).to(tl.int32))
    return above.to(tl.int64) + (upon.to(tl.int64) << 32)


@triton.jit
def _tally_candidates(t, total, places, entries, owners, kth, BLOCK: tl.constexpr):
    c = t.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x, _, piece, inside = _candidates(c, total, places, entries, owners)
    return _tally(x, piece, inside, kth)


@triton.jit(do_not_specialize=["numel", "number", "blocks"])
def count(
    a, b, numel, starts, tiles, number, reached, places, entries, owners, failure, kth, tallies, blocks,
    again: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """For each block of candidates, or after a failure for each tile, what lies above and upon the k-th magnitude."""
    t = tl.program_id(0)
    if tl.load(failure) != 0:
        while t < number:
            x, _, piece, inside = _tile(t, a, b, numel, tiles, starts, again, TILE)
            tl.store(tallies + t, _tally(x, piece, inside, kth))
            t += tl.num_programs(0)
    elif t < blocks:
        tally = _tally_candidates(t, tl.load(reached + number - 1), places, entries, owners, kth, BLOCK)
        tl.store(tallies + t, tally)


@triton.jit
def _place_by(x, i, piece, inside, kth, ties, before, tally, a, positions, values, kind: tl.constexpr):
    """Winners stand behind all winners before them: those above in order, and of ties the first in their piece."""
    over = _magnitude(x) - tl.load(kth + piece)
    above, upon = inside & (over > 0), inside & (over == 0)
    mine = tl.load(ties + piece)
    taken, earlier = mine & 0xFFFFFFFF, tl.load(before + piece) - mine
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
def _place_candidates(
    t, total, places, entries, owners, kth, ties, before, tally, a, positions, values,
    kind: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    c = t.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x, i, piece, inside = _candidates(c, total, places, entries, owners)
    _place_by(x, i, piece, inside, kth, ties, before, tally, a, positions, values, kind)


@triton.jit
def _place_tile(
    t, a, b, numel, tiles, starts, kth, ties, before, tally, positions, values,
    kind: tl.constexpr, again: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    x, i, piece, inside = _tile(t, a, b, numel, tiles, starts, again, TILE)
    _place_by(x, i, piece, inside, kth, ties, before, tally, a, positions, values, kind)


@triton.jit(do_not_specialize=["numel", "number", "blocks"])
def place(
    a, b, numel, starts, tiles, number, reached, places, entries, owners, failure, kth, ties, before, tallies, sums,
    blocks, positions, values, kind: tl.constexpr, again: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write the winners in order, and take them out of `a` (memory) or add them to it (difference).

    ties[p] has the ties that win in piece p in its low half, all of its ties in the high half; before[p] is the sum of
    these up to p, sums[t] that of tallies[t]. A tile without a winner is not read again.
    """
    t = tl.program_id(0)
    if tl.load(failure) != 0:
        while t < number:
            mine = tl.load(tallies + t)
            tally = tl.load(sums + t) - mine
            first = tl.load(tiles + 2 * t)
            left = tl.load(ties + first) & 0xFFFFFFFF
            spent = (tally >> 32) - ((tl.load(before + first) - tl.load(ties + first)) >> 32) >= left
            none = ((mine & 0xFFFFFFFF) == 0) & (((mine >> 32) == 0) | spent) & (first == tl.load(tiles + 2 * t + 1))
            if ~none:
                _place_tile(
                    t, a, b, numel, tiles, starts, kth, ties, before, tally, positions, values, kind, again, TILE
                )
            t += tl.num_programs(0)
    elif t < blocks:
        tally = tl.load(sums + t) - tl.load(tallies + t)
        _place_candidates(
            t, tl.load(reached + number - 1), places, entries, owners, kth, ties, before, tally, a, positions, values,
            kind, BLOCK,
        )  # fmt: skip

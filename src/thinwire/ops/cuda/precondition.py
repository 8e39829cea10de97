"""Factored second moments and the updates divided by their roots on a GPU: a whole layout in one or two launches.

A piece is cut into tiles of ROWS x COLUMNS numbers of its matrix; a vector is laid out in rows of COLUMNS, the last not
full. What a program needs to know of its tile is a row of a table, which is kept for each layout: nothing makes the
host wait, and all of it may be captured in a CUDA graph once the table is there. Sums are taken in two stages, both in
float64: each tile's (of its rows, of its columns; of a vector all in one) are written down, then added in their order.
Nothing is added atomically, so every run gives the same bits.

Bytes moved for each float32: means 4, and 8 (1/ROWS + 1/COLUMNS) = 9/16 written and read again; updates 8; scaling 8,
and nothing for a factor of one. A matrix of few columns leaves most of a tile idle: 9 of them take as many programs
as COLUMNS. Divisions and roots are rounded as IEEE says, as the reference's are, products and sums are not fused: only
means, added in another order, differ from the reference's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from thinwire.layout import Layout, Piece, matrix_of
from thinwire.ops.cuda.launch import Launcher, aligned, ceil_div, float32_in_one_stretch

ROWS, COLUMNS = 16, 128
"""Of a tile. Kernels hold it as COLUMNS / 32 x ROWS x 32: a warp then has whole rows, wherever these begin in memory,
and a thread adds its four numbers of a row before threads add to each other. As ROWS x COLUMNS four warps share a row,
and `_sum_squares` has 452 shuffles in place of 110 (in Triton 3.9's PTX for sm_90)."""
WARPS = 2
"""Of 32 threads each, for a tile. On an H200, 124 M numbers of GPT-2: means 0.74 ms and updates 0.56 with 16 rows and
two warps, 1.52 and 0.97 with 64 rows and eight, whose registers leave room for one program; a copy takes 0.24."""
FACTORS, PARTS = 32, 64
"""So many means one program finishes, and adds so many of their partial sums at once."""
CHUNK = 4096
"""Rows' numbers that one program adds up; LANES such sums are added at once."""
LANES = 32

# The numbers of a tile in the table, in their order.
START = tl.constexpr(0)  # its first number's place in the buffer
WIDE = tl.constexpr(1)  # from a row to the next
LEFT = tl.constexpr(2)  # from its first number to the piece's end
HEIGHT = tl.constexpr(3)  # its own rows
WIDTH = tl.constexpr(4)  # its own columns
ROW_FACTORS = tl.constexpr(5)  # where its rows' factors are (a vector's one), and where its columns' (of a vector -1)
COLUMN_FACTORS = tl.constexpr(6)
ROW_SUMS = tl.constexpr(7)  # where its rows' partial sums go (a vector's tile has one), and where its columns' (-1)
COLUMN_SUMS = tl.constexpr(8)
PIECE = tl.constexpr(9)  # its piece's place among all, and among those that hold anything
FILLED = tl.constexpr(10)
FIRST_CHUNK = tl.constexpr(11)  # its matrix's first chunk of rows' numbers, and behind the last
LAST_CHUNK = tl.constexpr(12)
HIGH = tl.constexpr(13)  # its matrix's rows
FIELDS = tl.constexpr(14)

TINY = tl.constexpr(2.0**-126)


class _Span(NamedTuple):
    """A piece that holds something, as a matrix, and where its parts of everything begin."""

    start: int
    numel: int
    high: int
    wide: int
    is_matrix: bool
    piece: int
    filled: int
    factors: int
    sums: int
    chunk: int

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles above each other and beside each other."""
        return ceil_div(self.high, ROWS), ceil_div(self.wide, COLUMNS)

    @property
    def sums_end(self) -> int:
        """Partial sums of rows, a stretch of them for each column of tiles; then those of columns."""
        tall, broad = self.grid
        return self.sums + (broad * self.high + tall * self.wide if self.is_matrix else tall)

    @property
    def chunks_end(self) -> int:
        return self.chunk + (ceil_div(self.high, CHUNK) if self.is_matrix else 0)


def _spans(layout: Layout) -> list[_Span]:
    spans: list[_Span] = []
    factors = sums = chunk = 0
    for place, piece in enumerate(layout.pieces):
        if piece.numel:
            spans.append(_span(piece, place, len(spans), factors, sums, chunk))
            sums, chunk = spans[-1].sums_end, spans[-1].chunks_end
        factors += piece.factors
    return spans


def _span(piece: Piece, place: int, filled: int, factors: int, sums: int, chunk: int) -> _Span:
    shape = matrix_of(piece.shape)
    high, wide = shape or (ceil_div(piece.numel, COLUMNS), COLUMNS)
    return _Span(piece.offset, piece.numel, high, wide, shape is not None, place, filled, factors, sums, chunk)


def _tiles(span: _Span) -> Any:
    """The table's rows of a piece's tiles."""
    tall, broad = span.grid
    i, j = np.divmod(np.arange(tall * broad, dtype=np.int64), broad)
    row, column = i * ROWS, j * COLUMNS
    start = row * span.wide + column
    size = np.minimum(ROWS, span.high - row), np.minimum(COLUMNS, span.wide - column)
    if span.is_matrix:
        own: tuple[Any, ...] = span.factors + row, span.factors + span.high + column
        own += span.sums + j * span.high + row, span.sums + broad * span.high + i * span.wide + column
    else:
        own = span.factors, -1, span.sums + i, -1
    belongs = span.piece, span.filled, span.chunk, span.chunks_end, span.high
    fields = span.start + start, span.wide, span.numel - start, *size, *own, *belongs
    return np.stack(np.broadcast_arrays(*fields), 1)


def _means(span: _Span) -> Sequence[tuple[int, ...]]:
    """Of rows and columns, or of a vector: first partial sum, from one to the next, how many; how many means, where the
    first goes, and of how many numbers each is."""
    (tall, broad), high, wide = span.grid, span.high, span.wide
    if not span.is_matrix:
        return [(span.sums, 1, tall, 1, span.factors, span.numel)]
    rows = span.sums, high, broad, high, span.factors, wide
    return [rows, (span.sums + broad * high, wide, tall, wide, span.factors + high, high)]


def _stretches(layout: Layout, spans: Sequence[_Span]) -> Sequence[tuple[int, ...]]:
    """The means, FACTORS at a time; of an empty piece the mean of one number out of no sums, which is zero."""
    ends = np.cumsum([0, *(piece.factors for piece in layout.pieces)])
    none = [(0, 1, 0, 1, int(at), 1) for at, piece in zip(ends, layout.pieces, strict=False) if not piece.numel]
    return none + [
        (first + done, step, count, min(FACTORS, length - done), out + done, of)
        for span in spans
        for first, step, count, length, out, of in _means(span)
        for done in range(0, length, FACTORS)
    ]


def _chunks(span: _Span) -> Sequence[tuple[int, int]]:
    """Where each chunk of a matrix's rows' numbers begins, and how long it is."""
    starts = range(0, span.high if span.is_matrix else 0, CHUNK)
    return [(span.factors + start, min(CHUNK, span.high - start)) for start in starts]


class _Tables(NamedTuple):
    """What the kernels know of a layout, on the device, and what launches them."""

    tiles: Tensor
    means: Tensor
    chunks: Tensor
    factors: int
    sums: int
    launchers: dict[object, Launcher]


@lru_cache(maxsize=256)
def _tables(layout: Layout, device: torch.device) -> _Tables:
    """Made once for each layout: bringing tables to the device makes the host wait."""
    spans = _spans(layout)
    tiles = np.concatenate([np.empty((0, FIELDS.value), np.int64), *map(_tiles, spans)])
    means = np.array(_stretches(layout, spans), np.int64).reshape(-1, 6)
    chunks = np.array([chunk for span in spans for chunk in _chunks(span)], np.int64).reshape(-1, 2)
    first, second, third = (torch.from_numpy(table).to(device) for table in (tiles, means, chunks))
    factors = sum(piece.factors for piece in layout.pieces)
    return _Tables(first, second, third, factors, spans[-1].sums_end if spans else 0, defaultdict(Launcher))


@triton.jit
def _columns(COLUMNS: tl.constexpr):  # pragma: no cover
    return tl.arange(0, COLUMNS // 32)[:, None] * 32 + tl.arange(0, 32)[None, :]


@triton.jit
def _places(tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # pragma: no cover
    """Where a tile's numbers lie in the buffer, and which of them are its own."""
    r, c = tl.arange(0, ROWS)[None, :, None], _columns(COLUMNS)[:, None, :]
    at = r * tl.load(tile + WIDE) + c
    inside = (r < tl.load(tile + HEIGHT)) & (c < tl.load(tile + WIDTH)) & (at < tl.load(tile + LEFT))
    return tl.load(tile + START) + at, inside


@triton.jit
def _sum_squares(x, tiles, sums, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # pragma: no cover
    tile = tiles + tl.program_id(0) * FIELDS
    at, inside = _places(tile, ROWS, COLUMNS)
    numbers = tl.load(x + at, mask=inside, other=0.0)
    squares = (numbers * numbers).to(tl.float64)
    rows, columns = tl.load(tile + ROW_SUMS), tl.load(tile + COLUMN_SUMS)
    lines = tl.sum(tl.sum(squares, 0), 1)
    if columns < 0:
        tl.store(sums + rows, tl.sum(lines, 0))
    else:
        r, c = tl.arange(0, ROWS), _columns(COLUMNS)
        tl.store(sums + rows + r, lines, mask=r < tl.load(tile + HEIGHT))
        tl.store(sums + columns + c, tl.sum(squares, 1), mask=c < tl.load(tile + WIDTH))


@triton.jit
def _add_sums(sums, means, out, FACTORS: tl.constexpr, PARTS: tl.constexpr):  # pragma: no cover
    mine = means + tl.program_id(0) * 6
    first, step, count = tl.load(mine), tl.load(mine + 1), tl.load(mine + 2)
    length, to, numbers = tl.load(mine + 3), tl.load(mine + 4), tl.load(mine + 5)
    p, f = tl.arange(0, PARTS)[:, None], tl.arange(0, FACTORS)
    totals = tl.zeros((PARTS, FACTORS), tl.float64)
    done = count * 0
    while done < count:
        inside = (done + p < count) & (f[None, :] < length)
        totals += tl.load(sums + first + (done + p) * step + f[None, :], mask=inside, other=0.0)
        done += PARTS
    found = tl.sum(totals, 0) / numbers.to(tl.float64)
    tl.store(out + to + f, found.to(tl.float32), mask=f < length)


@float32_in_one_stretch
def square_means(x: Tensor, layout: Layout) -> Tensor:
    """See `reference.square_means`: two launches."""
    table = _tables(layout, x.device)
    out = torch.empty(table.factors, dtype=x.dtype, device=x.device)
    sums = torch.empty(table.sums, dtype=torch.float64, device=x.device)
    launch = table.launchers["means", aligned(x)]
    if table.tiles.shape[0]:
        launch(
            "sum", _sum_squares, (table.tiles.shape[0],), x, table.tiles, sums, ROWS, COLUMNS,
            num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    if table.factors:
        grid = (table.means.shape[0],)
        launch("add", _add_sums, grid, sums, table.means, out, FACTORS, PARTS, num_warps=4, enable_fp_fusion=False)
    return out


@triton.jit
def _sum_rows(shared, chunks, sums, CHUNK: tl.constexpr):  # pragma: no cover
    mine = chunks + tl.program_id(0) * 2
    at = tl.arange(0, CHUNK)
    numbers = tl.load(shared + tl.load(mine) + at, mask=at < tl.load(mine + 1), other=0.0)
    tl.store(sums + tl.program_id(0), tl.sum(numbers.to(tl.float64), 0))


@triton.jit
def _mean_of_rows(tile, sums, LANES: tl.constexpr):  # pragma: no cover
    """Of a matrix, no less than the least normal number; every program adds the same chunks in the same order."""
    done, last = tl.load(tile + FIRST_CHUNK), tl.load(tile + LAST_CHUNK)
    lane = tl.arange(0, LANES)
    totals = tl.zeros((LANES,), tl.float64)
    while done < last:
        totals += tl.load(sums + done + lane, mask=done + lane < last, other=0.0)
        done += LANES
    mean = (tl.sum(totals, 0) / tl.load(tile + HIGH).to(tl.float64)).to(tl.float32)
    return tl.maximum(mean, TINY, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _divide(
    momentum, shared, corrections, sums, tiles, out, workers, eps, LANES: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """A vector's tile takes its one number for every row, and one for every column."""
    tile = tiles + tl.program_id(0) * FIELDS
    at, inside = _places(tile, ROWS, COLUMNS)
    m = tl.load(momentum + at, mask=inside, other=0.0)
    rows_at, columns_at = tl.load(tile + ROW_FACTORS), tl.load(tile + COLUMN_FACTORS)
    is_matrix = columns_at >= 0
    r, c = tl.arange(0, ROWS), _columns(COLUMNS)
    rows = tl.load(shared + rows_at + tl.where(is_matrix, r, 0), mask=r < tl.load(tile + HEIGHT), other=0.0)
    if is_matrix:
        rows = tl.div_rn(rows, _mean_of_rows(tile, sums, LANES))
    width = tl.where(is_matrix, tl.load(tile + WIDTH), 0)
    columns = tl.load(shared + columns_at + c, mask=c < width, other=1.0)
    root = tl.sqrt_rn(tl.div_rn(rows[None, :, None] * columns[:, None, :], workers))
    u = tl.div_rn(m, (root + eps) * tl.load(corrections + tl.load(tile + PIECE)))
    tl.store(out + at, tl.where(root > 0, u, 0.0), mask=inside)


@float32_in_one_stretch
def preconditioned(
    momentum: Tensor, shared: Tensor, corrections: Tensor, layout: Layout, workers: int, eps: float
) -> Tensor:
    """See `reference.preconditioned`: two launches, one of them over the rows' numbers alone."""
    table, out = _tables(layout, momentum.device), torch.empty_like(momentum)
    sums = torch.empty(table.chunks.shape[0], dtype=torch.float64, device=momentum.device)
    launch = table.launchers["divide", aligned(momentum, shared, corrections)]
    if table.chunks.shape[0]:
        launch("sum", _sum_rows, (table.chunks.shape[0],), shared, table.chunks, sums, CHUNK, num_warps=8)
    if table.tiles.shape[0]:
        launch(
            "divide", _divide, (table.tiles.shape[0],), momentum, shared, corrections, sums, table.tiles, out,
            float(workers), eps, LANES, ROWS, COLUMNS, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out


@triton.jit
def _scale(x, factors, tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # pragma: no cover
    tile = tiles + tl.program_id(0) * FIELDS
    factor = tl.load(factors + tl.load(tile + FILLED))
    if factor != 1.0:
        at, inside = _places(tile, ROWS, COLUMNS)
        tl.store(x + at, tl.load(x + at, mask=inside, other=0.0) * factor, mask=inside)


@float32_in_one_stretch
def scale_pieces_(x: Tensor, factors: Tensor, layout: Layout) -> Tensor:
    """See `reference.scale_pieces_`: one launch, which neither reads nor writes where the factor is one."""
    table = _tables(layout, x.device)
    if table.tiles.shape[0]:
        launch, grid = table.launchers["scale", aligned(x, factors)], (table.tiles.shape[0],)
        launch("scale", _scale, grid, x, factors, table.tiles, ROWS, COLUMNS, num_warps=WARPS)
    return x

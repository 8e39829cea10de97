"""Rows of consecutive numbers that all workers choose together, by the sum of their random sketches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from thinwire.checks import is_whole
from thinwire.compressors.base import Compressor, Draws, check
from thinwire.compressors.density import check_density, kept, kept_of
from thinwire.layout import Layout
from thinwire.ops import Key, random_bits, topk
from thinwire.payload import Payload, WholeRows, rows_of
from thinwire.warmup import Number, at, bounds


@dataclass(frozen=True)
class ArcTopK(Compressor):
    """ARC-Top-K, an all-reduce compatible top-k (arXiv 2510.26709, 2025): rows agreed upon by a shared random sketch.

        S = (1/n) sum_i X_i V;   R = the k rows of S of largest norm;   C(X_i) = X_i in the rows R, zero elsewhere

    The paper's: a light sketch by which workers agree, an all-reduce without positions, and a contraction of the mean;
    its own rule is EF21-M (`EF21SGDM` here). In public code of it V is Gaussian, and the rows are those of a matrix.

    Ours: a row of c numbers is cut into r blocks, and each is added up with random signs, drawn by the key that all
    workers hold. So V has orthogonal columns: no row of a sketch is longer than the row itself (both in one scale), the
    chosen rows hold at least k/m of all sketches' squares, and these are in the mean r/c of the squares of x. Hence

        E|C(x) - x|^2 <= (1 - (k/m) (r/c)) |x|^2,   x the mean of the X_i, of m rows of c numbers, and r directions

    One worker's message alone is no contraction of its own vector: its rows are large in the sum of all.

    X is a parameter's numbers in their order, `columns` to a row, whatever its shape; the last row may be shorter. A
    `ratio` of the rows is sent, at least one: a parameter of up to `columns` numbers travels whole. Sketches are
    numbers too, `directions` for each row of a parameter of several: 4 bytes times directions / columns of a float32
    parameter, each step. Applied to one vector alone, without an agreement, it chooses by that vector's own sketch.

    >>> import torch
    >>> from thinwire import Key, Layout
    >>> compressor, layout = ArcTopK(0.4, columns=2, directions=2), Layout.of([("x", 0, (6,))])
    >>> x, other = torch.tensor([4.0, -1.0, 0.5, -3.0, 0.25, 0.5]), torch.tensor([-4.0, 1.0, 0.0, 0.0, 0.0, 5.0])
    >>> compressor(x, layout, Key()).decode(layout, x.dtype).tolist()
    [4.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    >>> (own,), (theirs,) = (compressor.sketch(each, layout, Key()) for each in (x, other))
    >>> compressor.by([own + theirs])(x, layout, Key()).decode(layout, x.dtype).tolist()
    [0.0, 0.0, 0.0, 0.0, 0.25, 0.5]
    """

    ratio: Number
    columns: int = 256
    directions: int = 1
    name: ClassVar[str] = "arctopk"
    draws: ClassVar[Draws | None] = None
    agrees: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_density(self.name, self.ratio, None, least_count=1)
        whole = is_whole(self.columns) and is_whole(self.directions) and self.columns >= 1 and self.directions >= 1
        check(
            whole and self.columns % self.directions == 0,
            f"arctopk cuts a row of `columns` numbers into `directions` equal blocks, got columns={self.columns} and "
            f"directions={self.directions}: take columns=256, directions=1",
        )

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        return _Together(self, self.sketch(x, layout, key)).message(x, layout, key, agreed=False)

    def sketch(self, x: Tensor, layout: Layout, key: Key) -> Sequence[Tensor]:
        """X V of each piece, row after row; nothing of one whose rows are all sent."""
        table, counts = rows_of(layout, self.columns), self.counts(layout, key)
        return [
            view[:0] if k == rows.numel else self._sketched(view, rows.numel, key.shared().at(piece.index))
            for k, rows, (piece, view) in zip(counts, table.pieces, layout.views(x), strict=True)
        ]

    def _sketched(self, view: Tensor, rows: int, key: Key) -> Tensor:
        signs = (random_bits(key.number, self.columns, view.device) < 0).to(view.dtype).mul_(2).sub_(1)
        full = torch.nn.functional.pad(view, (0, rows * self.columns - view.numel())).view(rows, self.columns)
        return (full * signs).view(rows * self.directions, -1).sum(1)

    def by(self, agreed: Sequence[Tensor] | None) -> Compressor:
        return self if agreed is None else _Together(self, agreed)

    def counts(self, layout: Layout, key: Key) -> Sequence[int]:
        """How many rows of each piece are sent."""
        return kept_of(rows_of(layout, self.columns), at(self.ratio, key.step), None)

    def delta(self, numel: int) -> float:
        rows = -(-numel // self.columns)
        k = kept(rows, bounds(self.ratio)[0], None)
        return 1.0 if k == rows else k / rows * self.directions / self.columns


@final
@dataclass(frozen=True, eq=False)
class _Together(Compressor):
    """Its rows, once all workers' sketches are added up."""

    compressor: ArcTopK
    agreed: Sequence[Tensor]
    name: ClassVar[str] = "together"

    def __str__(self) -> str:
        return str(self.compressor)

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        return self.message(x, layout, key, agreed=True)

    def message(self, x: Tensor, layout: Layout, key: Key, *, agreed: bool) -> Payload:
        table, counts = rows_of(layout, self.compressor.columns), self.compressor.counts(layout, key)
        norms = [_squares(own, rows.numel) for own, rows in zip(self.agreed, table.pieces, strict=True)]
        chosen, _ = topk(torch.cat([x.new_empty(0, dtype=torch.float64), *norms]), table, counts)
        return WholeRows.of(x, chosen, counts, self.compressor.columns, layout, agreed=agreed)

    def delta(self, numel: int) -> float:
        return self.compressor.delta(numel)


def _squares(sketch: Tensor, rows: int) -> Tensor:
    """The squared norm of each row: by single operations in double precision, so that every machine has the same bits,
    and ranks whose processors differ choose the same rows."""
    total = torch.zeros(rows, dtype=torch.float64, device=sketch.device)
    for column in sketch.view(rows, -1).to(torch.float64).unbind(1) if sketch.numel() else ():
        total += column * column
    return total

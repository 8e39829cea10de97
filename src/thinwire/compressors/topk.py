"""The k numbers of largest magnitude."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compressors.base import Compressor, check
from thinwire.compressors.density import check_density, kept
from thinwire.layout import Layout
from thinwire.ops import Key, topk_indices
from thinwire.payload import Sparse
from thinwire.payload.values import value_format
from thinwire.schedule import Number, at, bounds, is_whole


@dataclass(frozen=True)
class TopK(Compressor):
    """top_k: keep the k entries of largest magnitude, exactly; of equal magnitudes the lower index wins.

        |top_k(x) - x|^2 <= (1 - k/d) |x|^2            (Stich, Cordonnier and Jaggi 2018, definition 2.1)

    `ratio` is a share of each parameter (at least one number is kept) or a `Warmup`; `count` is k itself.
    `per="bucket"` selects over the whole buffer it is given at once, as the papers do over the whole vector: under
    DDP it then depends on how the buckets are cut.

    >>> from thinwire import Key, Layout
    >>> import torch
    >>> x = torch.tensor([1.0, -3.0, 0.5, 3.0])
    >>> TopK(0.5)(x, Layout.of([("x", 0, (4,))]), Key()).positions.tolist()
    [1, 3]
    """

    ratio: Number | None = None
    count: int | None = None
    values: str = "full"
    per: str = "parameter"
    name: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        check_density(self.name, self.ratio, self.count, least_count=1)
        check(self.count is None or is_whole(self.count), f"topk count must be a whole number, got {self.count}")
        check(self.per in ("parameter", "bucket"), f"topk per must be parameter or bucket, got {self.per!r}")
        value_format(self.values)

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Sparse:
        scope = layout if self.per == "parameter" else layout.whole()
        ratio = None if self.ratio is None else at(self.ratio, key.step)
        parts = [
            topk_indices(view, kept(piece.numel, ratio, self.count)) + piece.offset for piece, view in scope.views(x)
        ]
        positions = torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=x.device)
        return Sparse.of(x, positions, layout, value_format(self.values), counted=True)

    def delta(self, numel: int) -> float:
        if numel == 0:
            return 1.0
        k = kept(numel, None if self.ratio is None else bounds(self.ratio)[0], self.count)
        return value_format(self.values).keeps(k / numel, numel)

"""The numbers of largest magnitude of every chunk of consecutive numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from torch import Tensor

from thinwire.checks import is_whole
from thinwire.compressors.base import Compressor, Draws, check, followed
from thinwire.compressors.density import check_density, kept, kept_of
from thinwire.layout import Layout, Piece
from thinwire.ops import Key, difference_topk_, memory_topk_, topk
from thinwire.payload import Payload, Sparse
from thinwire.payload.values import value_format
from thinwire.warmup import Number, at, bounds


@dataclass(frozen=True)
class ChunkTopK(Compressor):
    """top_k of each chunk of `chunk` consecutive numbers of a parameter (SparseLoCo, Sarfi et al. 2025: 64 of 4,096).

        |C(x) - x|^2 <= (1 - min over chunks of k/d) |x|^2

    No part of a parameter is starved by another of larger numbers. A last, shorter chunk gets its share; each sends at
    least one number. Positions travel in close to their entropy over the whole buffer, as those of `TopK` do.

    >>> from thinwire import Key, Layout
    >>> import torch
    >>> x = torch.tensor([1.0, -3.0, 0.5, 0.2])
    >>> ChunkTopK(0.5, chunk=2)(x, Layout.of([("x", 0, (4,))]), Key()).positions.tolist()
    [1, 2]
    """

    ratio: Number
    chunk: int = 4096
    values: str = "full"
    name: ClassVar[str] = "chunktopk"
    draws: ClassVar[Draws] = Draws.NOTHING
    shows_largest: ClassVar[bool] = True
    piecewise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_density(self.name, self.ratio, None, least_count=1)
        whole = is_whole(self.chunk) and self.chunk >= 1
        check(whole, f"chunktopk chunk must be a whole number, at least 1, got {self.chunk}")
        value_format(self.values)

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Sparse:
        chunks = _chunks(layout, self.chunk)
        return Sparse.rounded(
            *topk(x, chunks, self._counts(chunks, key)), layout, value_format(self.values), largest=True
        )

    def take_(self, error: Tensor, value: Tensor, ratios: Sequence[float] | None, layout: Layout, key: Key) -> Payload:
        """A memory's step in one pass, as `TopK.take_`."""
        chunks = _chunks(layout, self.chunk)
        ratios = None if ratios is None else [ratios[place] for place in _owners(layout, self.chunk)]
        positions, values = memory_topk_(error, value, chunks, self._counts(chunks, key), ratios)
        payload = Sparse.rounded(positions, values, layout, value_format(self.values), largest=True)
        return payload.put_back_(error, positions, values)

    def follow_(self, local: Tensor, target: Tensor, layout: Layout, key: Key) -> Payload:
        """A follower's step in one pass, where values travel as they are."""
        if self.values != "full":
            return super().follow_(local, target, layout, key)
        chunks = _chunks(layout, self.chunk)
        chosen = difference_topk_(local, target, chunks, self._counts(chunks, key))
        return followed(Sparse.rounded(*chosen, layout, value_format(self.values), largest=True), local)

    def _counts(self, chunks: Layout, key: Key) -> Sequence[int]:
        return kept_of(chunks, at(self.ratio, key.step), None)

    def delta(self, numel: int) -> float:
        if numel == 0:
            return 1.0
        lengths = {min(self.chunk, numel), (numel - 1) % self.chunk + 1}
        share = min(kept(length, bounds(self.ratio)[0], None) / length for length in lengths)
        return value_format(self.values).keeps(share, numel)


@lru_cache(maxsize=256)
def _chunks(layout: Layout, chunk: int) -> Layout:
    """The layout with every piece cut into chunks; kept, for each step asks for it."""
    return Layout(
        tuple(
            Piece(piece.name, piece.index, piece.offset + start, (min(chunk, piece.numel - start),))
            for piece in layout.pieces
            for start in range(0, piece.numel, chunk)
        )
    )


@lru_cache(maxsize=256)
def _owners(layout: Layout, chunk: int) -> tuple[int, ...]:
    """For each chunk the place of its piece."""
    return tuple(place for place, piece in enumerate(layout.pieces) for _ in range(0, piece.numel, chunk))

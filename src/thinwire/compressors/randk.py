"""k numbers drawn at random."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compressors.base import Compressor, Draws, check
from thinwire.compressors.density import check_density, kept, kept_of
from thinwire.layout import Layout
from thinwire.ops import Key, first_uniforms, piece_indices, randk_positions
from thinwire.payload import Masked, Payload, Sparse
from thinwire.payload.values import value_format
from thinwire.warmup import Number, at, bounds


@dataclass(frozen=True)
class RandK(Compressor):
    """rand_k: keep k entries drawn uniformly without replacement, unscaled.

        E|rand_k(x) - x|^2 = (1 - k/d) |x|^2            (Stich, Cordonnier and Jaggi 2018, definition 2.1)

    Each worker draws a mask of its own; with `shared=True` all draw the same one, and no positions travel. A count
    below one sends one coordinate with that probability, else nothing (remark 2.3, ultra-sparsification).

    >>> import torch
    >>> from thinwire import Key, Layout
    >>> x, layout = torch.tensor([4.0, -1.0, 0.5, -3.0]), Layout.of([("x", 0, (4,))])
    >>> RandK(0.5)(x, layout, Key()).decode(layout, x.dtype).tolist()
    [0.0, -1.0, 0.5, 0.0]
    """

    ratio: Number | None = None
    count: float | None = None
    shared: bool = False
    values: str = "full"
    name: ClassVar[str] = "randk"
    piecewise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_density(self.name, self.ratio, self.count, least_count=0)
        whole = self.count is None or self.count < 1 or float(self.count).is_integer()
        check(whole, f"randk count must be a whole number, or a probability below one, got {self.count}")
        drops = value_format(self.values).drops
        check(
            not (self.shared and drops),
            f"randk(shared=True) sends a number for every drawn position, which values={self.values} cannot: "
            "use full, bfloat16, float16 or power4",
        )

    @property
    def draws(self) -> Draws:
        return Draws.ALIKE if self.shared else Draws.APART

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        positions = self._drawn(layout, key, x.device)
        return self._message(positions, x[positions], layout, key)

    def between(self, target: Tensor, local: Tensor, layout: Layout, key: Key) -> Payload:
        """At the drawn coordinates alone: k numbers are read of either."""
        positions = self._drawn(layout, key, target.device)
        return self._message(positions, target[positions] - local[positions], layout, key)

    def looks_at(self, layout: Layout, key: Key) -> Tensor:
        return self._drawn(layout, key, torch.device("cpu"))

    def _drawn(self, layout: Layout, key: Key, device: torch.device) -> Tensor:
        """The positions that it draws."""

        def draw() -> Tensor:
            own = key.shared() if self.shared else key
            return randk_positions(layout, self.counts(layout, own), own.words(piece_indices(layout)), device)

        return key.once((self, layout, device), draw)

    def pattern(self, key: Key) -> Hashable | None:
        by_coins = self.count is not None and self.count < 1
        counts = "k", None if self.ratio is None else at(self.ratio, key.step)
        return None if by_coins or value_format(self.values).drops else counts

    def _message(self, positions: Tensor, values: Tensor, layout: Layout, key: Key) -> Payload:
        written = value_format(self.values)
        if self.shared:
            rounded = written.round(values, positions, layout)
            return Masked(positions, rounded, layout, tuple(self.counts(layout, key.shared())), written)
        certain = self.count is None or self.count >= 1
        return Sparse.rounded(positions, values, layout, written, counted=certain)

    def counts(self, layout: Layout, key: Key) -> Sequence[int]:
        """How many numbers of each piece are sent: k, or for a count below one a coin's answer."""
        counts = kept_of(layout, None if self.ratio is None else at(self.ratio, key.step), self.count)
        if self.count is None or self.count >= 1:
            return counts
        coins = first_uniforms(key.words(~piece_indices(layout)))  # keys apart from those that draw coordinates
        return [int(heads and k > 0) for heads, k in zip((coins < self.count).tolist(), counts, strict=True)]

    def delta(self, numel: int) -> float:
        if numel == 0:
            return 1.0
        if self.count is not None and self.count < 1:
            return value_format(self.values).keeps(self.count / numel, numel)
        k = kept(numel, None if self.ratio is None else bounds(self.ratio)[0], self.count)
        return value_format(self.values).keeps(k / numel, numel)

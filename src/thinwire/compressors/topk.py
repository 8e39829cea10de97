"""The k numbers of largest magnitude."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.checks import is_whole
from thinwire.compressors.base import Compressor, Draws, check, followed
from thinwire.compressors.density import check_density, kept, kept_of
from thinwire.layout import Layout
from thinwire.ops import Key, difference_topk_, memory_topk_, topk
from thinwire.payload import Payload, Sparse
from thinwire.payload.values import value_format
from thinwire.warmup import Number, at, bounds


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
    draws: ClassVar[Draws] = Draws.NOTHING
    shows_largest: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_density(self.name, self.ratio, self.count, least_count=1)
        check(self.count is None or is_whole(self.count), f"topk count must be a whole number, got {self.count}")
        check(self.per in ("parameter", "bucket"), f"topk per must be parameter or bucket, got {self.per!r}")
        value_format(self.values)

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Sparse:
        scope = self._scope(layout)
        return Sparse.rounded(
            *topk(x, scope, self._counts(scope, key)), layout, value_format(self.values), largest=True
        )

    def take_(self, error: Tensor, value: Tensor, ratios: Sequence[float] | None, layout: Layout, key: Key) -> Payload:
        """A memory's step in one pass: what is chosen is taken out, what rounding loses is put back."""
        if self.per == "bucket" and ratios is not None and len(set(ratios)) > 1:
            return super().take_(error, value, ratios, layout, key)
        scope = self._scope(layout)
        ratios = ratios if ratios is None or self.per == "parameter" else ratios[:1]
        positions, values = memory_topk_(error, value, scope, self._counts(scope, key), ratios)
        payload = Sparse.rounded(positions, values, layout, value_format(self.values), largest=True)
        return payload.put_back_(error, positions, values)

    def follow_(self, local: Tensor, target: Tensor, layout: Layout, key: Key) -> Payload:
        """A follower's step in one pass, where values travel as they are."""
        if self.values != "full":
            return super().follow_(local, target, layout, key)
        scope = self._scope(layout)
        chosen = difference_topk_(local, target, scope, self._counts(scope, key))
        return followed(Sparse.rounded(*chosen, layout, value_format(self.values), largest=True), local)

    def _scope(self, layout: Layout) -> Layout:
        return layout if self.per == "parameter" else layout.whole()

    def _counts(self, scope: Layout, key: Key) -> Sequence[int]:
        return kept_of(scope, None if self.ratio is None else at(self.ratio, key.step), self.count)

    def pattern(self, key: Key) -> Hashable | None:
        counts = "k", None if self.ratio is None else at(self.ratio, key.step)
        return None if value_format(self.values).drops or self.per != "parameter" else counts

    @property
    def piecewise(self) -> bool:
        return self.per == "parameter"

    def delta(self, numel: int) -> float:
        if numel == 0:
            return 1.0
        k = kept(numel, None if self.ratio is None else bounds(self.ratio)[0], self.count)
        return value_format(self.values).keeps(k / numel, numel)

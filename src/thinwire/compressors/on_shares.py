"""A compressor that treats each owner's share of a parameter as it would treat a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from thinwire.compressors.base import Compressor, Draws
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.owners import Owners
from thinwire.payload import Payload


@final
@dataclass(frozen=True)
class OnShares(Compressor):
    """C of each share: what is said of one owner's numbers does not depend on another's, nor does its length.

    >>> import torch
    >>> from thinwire import Key, Layout, TopK
    >>> layout = Layout.of([("x", 0, (4,))])
    >>> OnShares(TopK(0.25), Owners(2, least=2))(torch.tensor([4.0, 3.0, 2.0, 1.0]), layout, Key()).positions.tolist()
    [0, 2]
    """

    compressor: Compressor
    owners: Owners
    name: ClassVar[str] = "onshares"

    def __str__(self) -> str:
        return str(self.compressor)

    @property
    def shows_largest(self) -> bool:
        return self.compressor.shows_largest

    @property
    def draws(self) -> Draws | None:
        return self.compressor.draws

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        return self.compressor(x, self.owners.cut(layout).whole, key)

    def take_(self, error: Tensor, value: Tensor, ratios: Sequence[float] | None, layout: Layout, key: Key) -> Payload:
        cut = self.owners.cut(layout)
        return self.compressor.take_(error, value, cut.of_shares(ratios), cut.whole, key)

    def follow_(self, local: Tensor, target: Tensor, layout: Layout, key: Key) -> Payload:
        return self.compressor.follow_(local, target, self.owners.cut(layout).whole, key)

    def between(self, target: Tensor, local: Tensor, layout: Layout, key: Key) -> Payload:
        return self.compressor.between(target, local, self.owners.cut(layout).whole, key)

    def delta(self, numel: int) -> float:
        return min(self.compressor.delta(length) for length in self.owners.lengths(numel))

    def omega(self, numel: int) -> float | None:
        found = [self.compressor.omega(length) for length in self.owners.lengths(numel)]
        return max((one for one in found if one is not None), default=None)

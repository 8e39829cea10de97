"""No compression: every number, in full precision."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors.base import Draws, Unbiased
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Dense


@dataclass(frozen=True)
class Identity(Unbiased):
    """C(x) = x; delta = 1, omega = 0.

    >>> import torch
    >>> from thinwire import Key, Layout
    >>> x, layout = torch.tensor([4.0, -1.0, 0.5, -3.0]), Layout.of([("x", 0, (4,))])
    >>> Identity()(x, layout, Key()).decode(layout, x.dtype).tolist()
    [4.0, -1.0, 0.5, -3.0]
    """

    name: ClassVar[str] = "identity"
    draws: ClassVar[Draws] = Draws.NOTHING
    piecewise: ClassVar[bool] = True

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Dense:
        return Dense(x.clone())

    def pattern(self, key: Key) -> Hashable:
        return ()

    def omega(self, numel: int) -> float:
        return 0.0

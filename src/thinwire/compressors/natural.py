"""Stochastic powers of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors.base import Draws, Unbiased
from thinwire.layout import Layout
from thinwire.ops import Key, power_codes
from thinwire.payload import Powers


@dataclass(frozen=True)
class Natural(Unbiased):
    """Natural compression: round to one of the two nearest powers of two, without bias (Horvath et al. 2019).

        E C(x) = x,    E|C(x) - x|^2 <= |x|^2 / 8

    Nine bits a number. The claim holds for magnitudes from 2^-126 to 2^127, the normal range of float32.

    >>> import torch
    >>> from thinwire import Key, Layout
    >>> x, layout = torch.tensor([4.0, -1.0, 0.5, -3.0]), Layout.of([("x", 0, (4,))])
    >>> Natural()(x, layout, Key()).decode(layout, x.dtype).tolist()
    [4.0, -1.0, 0.5, -4.0]
    """

    name: ClassVar[str] = "natural"
    draws: ClassVar[Draws] = Draws.APART
    piecewise: ClassVar[bool] = True

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Powers:
        keys = key.numbers(piece.index for piece in layout.pieces)
        return Powers(*power_codes(x, layout, keys))

    def omega(self, numel: int) -> float:
        return 1 / 8

"""Stochastic levels between zero and the norm of a bucket."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.checks import is_whole
from thinwire.compressors.base import Draws, Unbiased, check
from thinwire.layout import Layout
from thinwire.ops import Key, block_norms, level_codes
from thinwire.payload import Levels


@dataclass(frozen=True)
class QSGD(Unbiased):
    """Q(x) = |x|_2 sign(x) xi / s with xi a stochastic level, E xi = s |x_i| / |x|_2, within buckets (Alistarh et al.
    2017).

        E Q(x) = x,    E|Q(x) - x|^2 <= min(b / s^2, sqrt(b) / s) |x|^2      for s levels and buckets of b numbers

    A number takes 1 + ceil(log2(s + 1)) bits, a bucket one norm.

    >>> import torch
    >>> from thinwire import Key, Layout
    >>> x, layout = torch.tensor([4.0, -1.0, 0.5, -3.0]), Layout.of([("x", 0, (4,))])
    >>> QSGD(2)(x, layout, Key()).decode(layout, x.dtype).tolist()
    [5.123475551605225, 0.0, 0.0, -2.5617377758026123]
    """

    levels: int
    bucket: int = 512
    name: ClassVar[str] = "qsgd"
    draws: ClassVar[Draws] = Draws.APART
    piecewise: ClassVar[bool] = True
    positional: ClassVar[int] = 2

    def __post_init__(self) -> None:
        for value in (self.levels, self.bucket):
            check(is_whole(value), f"qsgd levels and bucket must be whole numbers, got {value!r}")
        check(1 <= self.levels < 1 << 16, f"qsgd levels must lie in 1..65535, got {self.levels}")
        check(1 <= self.bucket < 1 << 32, f"qsgd bucket must be at least 1, got {self.bucket}")

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Levels:
        norms = block_norms(x, layout, self.bucket, order=2)
        keys = key.numbers(piece.index for piece in layout.pieces)
        codes = level_codes(x, norms, layout, self.bucket, self.levels, keys)
        return Levels(codes, norms, layout, self.levels, self.bucket)

    def omega(self, numel: int) -> float:
        b = min(self.bucket, numel)
        return min(b / self.levels**2, math.sqrt(b) / self.levels)

"""Stochastic levels between zero and the norm of a bucket."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compressors.base import Unbiased, check
from thinwire.layout import Layout
from thinwire.ops import Key, block_norms, qsgd_levels
from thinwire.payload import Levels
from thinwire.payload.blocks import spread
from thinwire.schedule import is_whole


@dataclass(frozen=True)
class QSGD(Unbiased):
    """Q(x) = |x|_2 sign(x) xi / s with xi a stochastic level, E xi = s |x_i| / |x|_2, within buckets (Alistarh et al.
    2017).

        E Q(x) = x,    E|Q(x) - x|^2 <= min(b / s^2, sqrt(b) / s) |x|^2      for s levels and buckets of b numbers

    A number takes 1 + ceil(log2(s + 1)) bits, a bucket one norm.
    """

    levels: int
    bucket: int = 512
    name: ClassVar[str] = "qsgd"
    positional: ClassVar[int] = 2

    def __post_init__(self) -> None:
        for value in (self.levels, self.bucket):
            check(is_whole(value), f"qsgd levels and bucket must be whole numbers, got {value!r}")
        check(1 <= self.levels < 1 << 16, f"qsgd levels must lie in 1..65535, got {self.levels}")
        check(1 <= self.bucket < 1 << 32, f"qsgd bucket must be at least 1, got {self.bucket}")

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Levels:
        norms, _ = block_norms(x, layout, self.bucket, order=2)
        spread_norms = spread(norms, layout, self.bucket)
        parts = [
            qsgd_levels(view, spread_norms[piece.part], self.levels, key.at(piece.index).number)
            for piece, view in layout.views(x)
        ]
        magnitude = torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=x.device)
        return Levels(torch.where(x < 0, -magnitude, magnitude), norms, layout, self.levels, self.bucket)

    def omega(self, numel: int) -> float:
        b = min(self.bucket, numel)
        return min(b / self.levels**2, math.sqrt(b) / self.levels)

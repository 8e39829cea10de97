"""Rand-k scaled up to be unbiased."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors.base import Unbiased, check
from thinwire.compressors.randk import RandK
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload
from thinwire.payload.values import value_format
from thinwire.schedule import Warmup


@dataclass(frozen=True)
class Unbias(Unbiased):
    """Q(x) = (d/k) rand_k(x): E Q(x) = x, with variance omega = d/k - 1. The inverse of `Contractive`.

    Each coordinate is kept with probability k/d, so that E|Q(x) - x|^2 = (d/k - 1) |x|^2 exactly.
    """

    compressor: RandK
    name: ClassVar[str] = "unbias"

    def __post_init__(self) -> None:
        check(isinstance(self.compressor, RandK), f"unbias scales a rand-k, got {self.compressor}")
        check(
            value_format(self.compressor.values).lossless and not isinstance(self.compressor.ratio, Warmup),
            f"unbias needs a rand-k of constant density whose values travel as they are (values=full), "
            f"got {self.compressor}",
        )

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        scaled = x.clone()
        for piece, view in layout.views(scaled):
            view.mul_(1.0 + self.omega(piece.numel))
        return self.compressor(scaled, layout, key)

    @property
    def apart(self) -> bool:
        return self.compressor.apart

    def omega(self, numel: int) -> float:
        return 1.0 / self.compressor.delta(numel) - 1.0

"""An unbiased compressor made a contraction by scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors.base import Compressor, Draws, Unbiased, check
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload


@dataclass(frozen=True)
class Contractive(Compressor):
    """C(x) = Q(x / (1 + omega)) for an unbiased Q: a contraction with delta = 1 / (1 + omega) (Richtarik et al. 2021,
    section 1).

    E|Q(ax) - x|^2 <= (omega a^2 + (1 - a)^2) |x|^2 = omega / (1 + omega) |x|^2 at a = 1 / (1 + omega), whether or not
    Q is homogeneous.

    >>> import torch
    >>> from thinwire import QSGD, Key, Layout
    >>> x, layout = torch.tensor([4.0, -1.0, 0.5, -3.0]), Layout.of([("x", 0, (4,))])
    >>> Contractive(QSGD(2))(x, layout, Key()).decode(layout, x.dtype).tolist()
    [2.5617377758026123, 0.0, 0.0, -1.2808688879013062]
    """

    compressor: Unbiased
    name: ClassVar[str] = "contractive"

    def __post_init__(self) -> None:
        unbiased = isinstance(self.compressor, Unbiased)
        check(unbiased, f"contractive scales an unbiased compressor (qsgd, natural, identity), got {self.compressor}")

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        factors = {numel: self.delta(numel) for numel in {piece.numel for piece in layout.pieces}}
        if len(set(factors.values())) == 1:  # as where one parameter of many workers stands side by side
            return self.compressor(x * next(iter(factors.values())), layout, key)
        scaled = x.clone()
        for piece, view in layout.views(scaled):
            view.mul_(factors[piece.numel])
        return self.compressor(scaled, layout, key)

    @property
    def draws(self) -> Draws | None:
        return self.compressor.draws

    @property
    def piecewise(self) -> bool:
        return self.compressor.piecewise

    def delta(self, numel: int) -> float:
        return 1.0 / (1.0 + self.compressor.omega(numel))

"""Compressors scaled: an unbiased one to be a contraction, rand-k to be unbiased."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compressors.base import Compressor, Draws, Unbiased, check
from thinwire.compressors.randk import RandK
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.ops.blocks import piece_of
from thinwire.payload import Masked, Payload, Sparse
from thinwire.payload.values import value_format
from thinwire.warmup import Warmup


class _Scaled(Compressor):
    """What a scaled compressor has of the one within it."""

    compressor: Compressor

    @property
    def draws(self) -> Draws | None:
        return self.compressor.draws

    @property
    def piecewise(self) -> bool:
        return self.compressor.piecewise


@dataclass(frozen=True)
class Contractive(_Scaled):
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

    def delta(self, numel: int) -> float:
        return 1.0 / (1.0 + self.compressor.omega(numel))


@dataclass(frozen=True)
class Unbias(_Scaled, Unbiased):
    """Q(x) = (d/k) rand_k(x): E Q(x) = x, with variance omega = d/k - 1. The inverse of `Contractive`.

    Each coordinate is kept with probability k/d, so that E|Q(x) - x|^2 = (d/k - 1) |x|^2 exactly.

    >>> import torch
    >>> from thinwire import Key, Layout, RandK
    >>> x, layout = torch.tensor([4.0, -1.0, 0.5, -3.0]), Layout.of([("x", 0, (4,))])
    >>> Unbias(RandK(0.5))(x, layout, Key()).decode(layout, x.dtype).tolist()
    [0.0, -2.0, 1.0, 0.0]
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
        return self._scaled(self.compressor(x, layout, key), layout)

    def between(self, target: Tensor, local: Tensor, layout: Layout, key: Key) -> Payload:
        return self._scaled(self.compressor.between(target, local, layout, key), layout)

    def looks_at(self, layout: Layout, key: Key) -> Tensor:
        return self.compressor.looks_at(layout, key)

    def _scaled(self, payload: Payload, layout: Layout) -> Payload:
        """What is sent, times d/k of its piece."""
        assert isinstance(payload, Sparse | Masked)  # as rand-k has it
        values = payload.values
        factors = _factors(self, layout, values.dtype, values.device)
        factor = factors if len(layout.pieces) == 1 else factors[piece_of(payload.positions, layout)]
        return replace(payload, values=values * factor)

    def omega(self, numel: int) -> float:
        return 1.0 / self.compressor.delta(numel) - 1.0


@lru_cache(maxsize=64)
def _factors(compressor: Unbias, layout: Layout, dtype: torch.dtype, device: torch.device) -> Tensor:
    """1 + omega of each piece; kept for layouts of many workers."""
    by_size = {numel: 1.0 + compressor.omega(numel) for numel in {piece.numel for piece in layout.pieces}}
    return torch.tensor([by_size[piece.numel] for piece in layout.pieces], dtype=dtype, device=device)

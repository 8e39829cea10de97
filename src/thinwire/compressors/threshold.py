"""The numbers at or above a fixed magnitude, and Strom's one-bit version of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors.base import Compressor, Draws, check
from thinwire.layout import Layout
from thinwire.ops import Key, difference_threshold_, memory_threshold_, threshold
from thinwire.payload import Payload, Sparse
from thinwire.payload.values import SIGN_ONLY, value_format
from thinwire.warmup import Number, at, bounds, is_moving


def check_tau(name: str, tau: Number) -> None:
    """Check a threshold: a positive number, constant or moving."""
    check(is_moving(tau), f"{name} tau must be a positive number or warmup(...), got {tau!r}")
    low, high = bounds(tau)
    check(0 < low and high < float("inf"), f"{name} tau must be a positive number, got {tau}")


@dataclass(frozen=True)
class HardThreshold(Compressor):
    """Keep the entries with |x| >= tau, as they are (Sahu et al. 2021).

    The threshold is in gradient units under every rule and in every engine, `MemSGD` included, whose memory m is in
    update units: its e = m / s is compared with tau, so m with s tau, where s is the step size (the lock-free engine,
    which keeps m itself, does the latter). How many numbers travel varies; no contraction can be promised (delta = 0: a
    vector of small numbers is wholly kept back).

    >>> import torch
    >>> from thinwire import Key, Layout
    >>> x, layout = torch.tensor([4.0, -1.0, 0.5, -3.0]), Layout.of([("x", 0, (4,))])
    >>> HardThreshold(2.0)(x, layout, Key()).decode(layout, x.dtype).tolist()
    [4.0, 0.0, 0.0, -3.0]
    """

    tau: Number
    values: str = "full"
    name: ClassVar[str] = "threshold"
    draws: ClassVar[Draws] = Draws.NOTHING
    piecewise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_tau(self.name, self.tau)
        value_format(self.values)

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Sparse:
        return self._payload(*threshold(x, at(self.tau, key.step)), layout)

    def take_(self, error: Tensor, value: Tensor, ratios: Sequence[float] | None, layout: Layout, key: Key) -> Sparse:
        """A memory's step in one pass: what reaches tau is taken out, what rounding loses is put back."""
        positions, values = memory_threshold_(error, value, layout, at(self.tau, key.step), ratios)
        return self._payload(positions, values, layout).put_back_(error, positions, values)

    def follow_(self, local: Tensor, target: Tensor, layout: Layout, key: Key) -> Payload:
        """A follower's step in one pass, where values travel as they are."""
        if self.values != "full":
            return super().follow_(local, target, layout, key)
        return self._payload(*difference_threshold_(local, target, at(self.tau, key.step)), layout)

    def _payload(self, positions: Tensor, values: Tensor, layout: Layout) -> Sparse:
        return Sparse.rounded(positions, values, layout, value_format(self.values), counted=False)

    def delta(self, numel: int) -> float:
        return 0.0


@dataclass(frozen=True)
class Strom(Compressor):
    """Send sign(x) * tau for the entries with |x| >= tau: one bit a value (Strom 2015).

    Meant for `MemSGD`, which keeps the remainder x - sign(x) * tau. The threshold is in gradient units, as that of
    `HardThreshold`: with a step size s an update of s tau is sent. No contraction can be promised (delta = 0). The
    paper sends where |x| > tau; |x| = tau is sent too here (as in MXNet), so that a remainder never stays at tau.

    >>> import torch
    >>> from thinwire import Key, Layout
    >>> x, layout = torch.tensor([4.0, -1.0, 0.5, -3.0]), Layout.of([("x", 0, (4,))])
    >>> Strom(2.0)(x, layout, Key()).decode(layout, x.dtype).tolist()
    [2.0, 0.0, 0.0, -2.0]
    """

    tau: Number
    name: ClassVar[str] = "strom"
    draws: ClassVar[Draws] = Draws.NOTHING
    piecewise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_tau(self.name, self.tau)

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Sparse:
        return self._payload(*threshold(x, at(self.tau, key.step), signs=True), layout)

    def take_(self, error: Tensor, value: Tensor, ratios: Sequence[float] | None, layout: Layout, key: Key) -> Sparse:
        """A memory's step in one pass."""
        positions, values = memory_threshold_(error, value, layout, at(self.tau, key.step), ratios, signs=True)
        return self._payload(positions, values, layout)

    def follow_(self, local: Tensor, target: Tensor, layout: Layout, key: Key) -> Sparse:
        """A follower's step in one pass."""
        return self._payload(*difference_threshold_(local, target, at(self.tau, key.step), signs=True), layout)

    def _payload(self, positions: Tensor, values: Tensor, layout: Layout) -> Sparse:
        return Sparse(positions, values, layout, SIGN_ONLY, counted=False)

    def delta(self, numel: int) -> float:
        return 0.0

"""The numbers at or above a fixed magnitude, and Strom's one-bit version of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compressors.base import Compressor, check
from thinwire.layout import Layout
from thinwire.ops import Key, large_indices
from thinwire.payload import Sparse
from thinwire.payload.values import SIGN_ONLY, value_format
from thinwire.schedule import Number, at, bounds, is_moving


def _check_tau(name: str, tau: Number) -> None:
    check(is_moving(tau), f"{name} tau must be a positive number or warmup(...), got {tau!r}")
    low, high = bounds(tau)
    check(0 < low and high < float("inf"), f"{name} tau must be a positive number, got {tau}")


@dataclass(frozen=True)
class HardThreshold(Compressor):
    """Keep the entries with |x| >= tau, as they are (Sahu et al. 2021).

    The threshold is in the units of what is compressed: of gradients under every rule here, `MemSGD` included. How
    many numbers travel varies; no contraction can be promised (delta = 0: a vector of small numbers is wholly kept
    back).
    """

    tau: Number
    values: str = "full"
    name: ClassVar[str] = "threshold"

    def __post_init__(self) -> None:
        _check_tau(self.name, self.tau)
        value_format(self.values)

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Sparse:
        positions = large_indices(x, at(self.tau, key.step))
        return Sparse.of(x, positions, layout, value_format(self.values), counted=False)

    def delta(self, numel: int) -> float:
        return 0.0


@dataclass(frozen=True)
class Strom(Compressor):
    """Send sign(x) * tau for the entries with |x| >= tau: one bit a value (Strom 2015).

    Meant for `MemSGD`, which keeps the remainder x - sign(x) * tau. No contraction can be promised (delta = 0).
    """

    tau: Number
    name: ClassVar[str] = "strom"

    def __post_init__(self) -> None:
        _check_tau(self.name, self.tau)

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Sparse:
        tau = torch.tensor(at(self.tau, key.step), dtype=x.dtype, device=x.device)
        positions = large_indices(x, float(tau))
        return Sparse(positions, x[positions].sign() * tau, layout, SIGN_ONLY, counted=False)

    def delta(self, numel: int) -> float:
        return 0.0

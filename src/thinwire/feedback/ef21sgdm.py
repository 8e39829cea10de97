"""EF21 on a momentum of the gradients, which removes the noise floor of mini-batches."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.feedback.base import Signal, Slot, State
from thinwire.feedback.increments import LOCAL, MEAN, Increments, check_eta, check_rule
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload

MOMENTUM = Slot("momentum", joins="mean")
"""v_i: a moving average of this worker's gradients."""


@dataclass(frozen=True)
class EF21SGDM(Increments):
    """EF21-SGDM (Fatkhullin, Tyurin and Richtarik 2023, algorithm 1).

        v_i <- (1 - eta) v_i + eta grad_i;   c_i = C(v_i - g_i);   g_i <- g_i + c_i;   g <- g + (1/n) sum_i c_i;   out
        = g

    eta is the weight of the new gradient (torch's momentum beta is 1 - eta); v_i starts as the first gradient. Run
    the optimizer without momentum of its own: the smoothing is done here, before compression, where it helps.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, EF21SGDM(TopK(count=1), eta=0.5, start="compressed"), workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(3)]
    [[2.0, 0.0, 1.5], [3.0, 1.0, 1.5], [3.0, 1.0, 2.0]]
    """

    compressor: Compressor
    eta: float = 0.1
    start: str = "gradient"
    name: ClassVar[str] = "ef21sgdm"
    piecewise: ClassVar[bool] = True
    agrees: ClassVar[bool] = True
    hands_over_common: ClassVar[bool] = True
    slots: ClassVar[tuple[Slot, ...]] = (MOMENTUM, LOCAL, MEAN)

    def __post_init__(self) -> None:
        check_rule(self, self.start)
        check_eta(self.name, self.eta)

    def target_(self, signal: Signal, layout: Layout, state: State, key: Key) -> Tensor:
        return average_(state["momentum"], signal.value, self.eta, signal)

    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        return self.follow_(target, layout, state, key)

    @property
    def shows_all(self) -> bool:
        return self.compressor.shows_largest

    def pattern(self, key: Key) -> Hashable | None:
        return self.compressor.pattern(key)

    def residual(self, signal: Signal, state: State) -> Tensor:
        return state["momentum"] - state["local"]


def average_(average: Tensor, value: Tensor, eta: float, signal: Signal) -> Tensor:
    """average <- (1 - eta) average + eta value; the value itself on the first exchange."""
    return average.mul_(1.0 - eta).add_(value, alpha=1.0 if signal.first else eta)

"""EF21 on a momentum of a momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.feedback.base import Signal, Slot, State
from thinwire.feedback.ef21sgdm import MOMENTUM, average_
from thinwire.feedback.increments import LOCAL, MEAN, Increments, check_eta, check_rule
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload


@dataclass(frozen=True)
class EF21SGD2M(Increments):
    """EF21-SGD2M (Fatkhullin, Tyurin and Richtarik 2023, algorithm 2: double momentum).

        v_i <- (1 - eta) v_i + eta grad_i;   u_i <- (1 - eta) u_i + eta v_i
        c_i = C(u_i - g_i);   g_i <- g_i + c_i;   g <- g + (1/n) sum_i c_i;   out = g

    v_i and u_i start as the first gradient. The second average removes one more term of the noise from the rate, for
    one more vector a worker.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, EF21SGD2M(TopK(count=1), eta=0.5, start="compressed"), workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(3)]
    [[2.0, 0.0, 1.5], [3.0, 1.0, 1.5], [3.0, 1.0, 2.0]]
    """

    compressor: Compressor
    eta: float = 0.1
    start: str = "gradient"
    name: ClassVar[str] = "ef21sgd2m"
    piecewise: ClassVar[bool] = True
    slots: ClassVar[tuple[Slot, ...]] = (MOMENTUM, Slot("second", joins="mean"), LOCAL, MEAN)

    def __post_init__(self) -> None:
        check_rule(self, self.start)
        check_eta(self.name, self.eta)

    def target_(self, signal: Signal, layout: Layout, state: State, key: Key) -> Tensor:
        momentum = average_(state["momentum"], signal.value, self.eta, signal)
        return average_(state["second"], momentum, self.eta, signal)

    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        return self.follow_(target, layout, state, key)

    def residual(self, signal: Signal, state: State) -> Tensor:
        return state["second"] - state["local"]

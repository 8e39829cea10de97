"""Error feedback with a controlled share of the accumulated error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.feedback.base import Signal, Slot, State
from thinwire.feedback.increments import LOCAL, MEAN, Increments, check_eta, check_rule
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload


@dataclass(frozen=True)
class EControl(Increments):
    """EControl (Gao, Islamov and Stich 2024, algorithm 2).

        c_i = C(eta e_i + grad_i - h_i);   e_i <- e_i + grad_i - h_i - c_i;   h_i <- h_i + c_i;   out = h = (1/n)
        sum_i h_i

    Theory takes eta = delta / 400; in practice it is tuned, 0.1 being common. h_i is the `local` slot.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, EControl(TopK(count=1), eta=0.5, start="compressed"), workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(3)]
    [[2.0, 0.0, 1.5], [3.5, 1.5, 1.5], [3.25, 1.5, 2.5]]
    """

    compressor: Compressor
    eta: float = 0.1
    start: str = "gradient"
    name: ClassVar[str] = "econtrol"
    piecewise: ClassVar[bool] = True
    agrees: ClassVar[bool] = True
    slots: ClassVar[tuple[Slot, ...]] = (Slot("error"), LOCAL, MEAN)
    owes: ClassVar[tuple[str, ...]] = ("error",)

    def __post_init__(self) -> None:
        check_rule(self, self.start)
        check_eta(self.name, self.eta)

    def target_(self, signal: Signal, layout: Layout, state: State, key: Key) -> Tensor:
        """eta e_i + grad_i, of e_i before this round; e_i <- e_i + grad_i - h_i."""
        error = state["error"]
        target = signal.value.add(error, alpha=self.eta)
        error.add_(signal.value - state["local"])
        return target

    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        return self.follow_(target, layout, state, key)

    def note_(self, payload: Payload, signal: Signal, state: State) -> None:
        """e_i <- e_i - c_i"""
        payload.add_to(state["error"], alpha=-1.0)

    def residual(self, signal: Signal, state: State) -> Tensor:
        return state["error"]

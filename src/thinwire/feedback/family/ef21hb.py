"""EF21 whose steps have heavy-ball momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.checks import is_number
from thinwire.compressors import Compressor
from thinwire.errors import ConfigError
from thinwire.feedback.base import Round, Signal, Slot, State
from thinwire.feedback.increments import LOCAL, MEAN, Increments, check_rule
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload


@dataclass(frozen=True)
class EF21HB(Increments):
    """EF21-HB (Fatkhullin et al. 2021, "EF21 with Bells and Whistles": heavy ball).

        c_i = C(grad_i - g_i);   g_i <- g_i + c_i;   g <- g + (1/n) sum_i c_i;   v <- eta v + g;   out = v

    What torch's SGD(momentum=eta) does with EF21's g, as part of the method. It smooths g after compression, so it does
    not remove the noise floor of mini-batches: `EF21SGDM` does.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, EF21HB(TopK(count=1), eta=0.5, start="compressed"), workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(3)]
    [[2.0, 0.0, 1.5], [4.0, 1.0, 2.25], [5.0, 1.5, 3.125]]
    """

    compressor: Compressor
    eta: float = 0.9
    start: str = "gradient"
    name: ClassVar[str] = "ef21hb"
    piecewise: ClassVar[bool] = True
    slots: ClassVar[tuple[Slot, ...]] = (LOCAL, MEAN, Slot("velocity", per_worker=False))

    def __post_init__(self) -> None:
        check_rule(self, self.start)
        if not (is_number(self.eta) and 0 <= self.eta < 1):
            raise ConfigError(f"{self.name} eta must lie in [0, 1), got {self.eta}")

    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        return self.follow_(target, layout, state, key)

    def looks_at(self, layout: Layout, key: Key, first: bool) -> Tensor | None:
        return None if first else self.compressor.looks_at(layout, key)

    def receive(self, round: Round, layout: Layout, state: State, out: Tensor) -> Tensor:
        return out.copy_(state["velocity"].mul_(self.eta).add_(self.add_(round, state["mean"])))

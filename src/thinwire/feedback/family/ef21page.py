"""EF21 on PAGE's estimate of the gradient: mini-batch differences, and now and then a full gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.feedback.base import Need, Signal, Slot, State
from thinwire.feedback.family.participation import check_probability, toss
from thinwire.feedback.increments import LOCAL, MEAN, Increments, check_rule
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload


@dataclass(frozen=True)
class EF21PAGE(Increments):
    """EF21-PAGE (Fatkhullin et al. 2021, "EF21 with Bells and Whistles": variance reduction).

        v_i <- the gradient of all samples, with probability p;   else v_i + grad_i - y_i
        c_i = C(v_i - g_i);   g_i <- g_i + c_i;   g <- g + (1/n) sum_i c_i;   out = g

    grad_i and y_i are gradients of one mini-batch, at this point and at the previous one. All workers toss one coin;
    `Channel.wants_full` tells the engine how it falls. The first round is a full one. No message but that of the start
    is dense. The papers take p = tau / (tau + N_i) for batches of tau out of N_i samples.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, EF21PAGE(TopK(count=1), 0.5), workers=2)
    >>> [simulation.exchange(gradients, previous=gradients)["x"].tolist() for _ in range(3)]
    [[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [3.0, 1.0, 2.0]]
    """

    compressor: Compressor
    probability: float
    start: str = "gradient"
    name: ClassVar[str] = "ef21page"
    piecewise: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PREVIOUS, Need.FULL})
    slots: ClassVar[tuple[Slot, ...]] = (Slot("estimate", joins="mean"), LOCAL, MEAN)

    def __post_init__(self) -> None:
        check_rule(self, self.start)
        check_probability(self.name, self.probability)

    def wants_full(self, key: Key) -> bool:
        return toss(key, self.probability)

    def target_(self, signal: Signal, layout: Layout, state: State, key: Key) -> Tensor:
        if signal.first or self.wants_full(key.shared()):
            return state["estimate"].copy_(signal.value)
        assert signal.previous is not None  # engines see to what a rule needs
        return state["estimate"].add_(signal.value - signal.previous)

    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        return self.follow_(target, layout, state, key)

    def residual(self, signal: Signal, state: State) -> Tensor:
        return state["estimate"] - state["local"]

"""Compressed changes of the gradient, and now and then the whole of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.feedback.base import Need, Signal, State
from thinwire.feedback.family.participation import check_probability, toss
from thinwire.feedback.increments import Increments, check_rule, whole_
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload


@dataclass(frozen=True)
class ThreePCv5(Increments):
    """3PCv5 (Richtarik et al. 2022, "3PC: Three Point Compressors", section 4): MARINA for biased compressors.

        c_i = grad_i - g_i with probability p, else C(grad_i - y_i)
        g_i <- g_i + c_i;   g <- g + (1/n) sum_i c_i;   out = g

    y_i is the gradient of the same samples at the previous point. All workers toss one coin, so that their messages
    have one size.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, ThreePCv5(TopK(count=1), 0.5), workers=2)
    >>> [simulation.exchange(gradients, previous=gradients)["x"].tolist() for _ in range(3)]
    [[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [3.0, 1.0, 2.0]]
    """

    compressor: Compressor
    probability: float
    start: str = "gradient"
    name: ClassVar[str] = "threepcv5"
    piecewise: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PREVIOUS})

    def __post_init__(self) -> None:
        check_rule(self, self.start)
        check_probability(self.name, self.probability)

    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        if toss(key.shared(), self.probability):
            return whole_(state["local"], target)
        assert signal.previous is not None  # engines see to what a rule needs
        payload = self.compressor.between(target, signal.previous, layout, key)
        payload.add_to(state["local"])
        return payload

    def looks_at(self, layout: Layout, key: Key, first: bool) -> Tensor | None:
        whole = first or toss(key.shared(), self.probability)
        return None if whole else self.compressor.looks_at(layout, key)

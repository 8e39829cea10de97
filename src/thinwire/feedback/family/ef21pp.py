"""EF21 in which only some workers send in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.feedback.base import Signal, State
from thinwire.feedback.family.participation import check_probability
from thinwire.feedback.increments import Increments, check_rule
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload


@dataclass(frozen=True)
class EF21PP(Increments):
    """EF21-PP (Fatkhullin et al. 2021, "EF21 with Bells and Whistles": partial participation).

        i in S with probability p;   c_i = C(grad_i - g_i) for i in S, else 0
        g_i <- g_i + c_i;   g <- g + (1/n) sum_i c_i;   out = g

    Each worker tosses a coin of its own in every round; one that stays away keeps its g_i, which still counts in g. All
    take part in the first round.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> rule = EF21PP(TopK(count=1), probability=0.5, start="compressed")
    >>> simulation = Simulation({"x": torch.zeros(3)}, rule, workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(3)]
    [[2.0, 0.0, 1.5], [3.0, 0.0, 1.5], [3.0, 1.0, 1.5]]
    """

    compressor: Compressor
    probability: float
    start: str = "gradient"
    name: ClassVar[str] = "ef21pp"
    piecewise: ClassVar[bool] = True
    varies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rule(self, self.start)
        check_probability(self.name, self.probability)

    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        return self.follow_(target, layout, state, key)

    @property
    def participation(self) -> float:
        return self.probability

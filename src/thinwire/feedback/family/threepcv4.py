"""EF21 that follows twice in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.errors import ConfigError
from thinwire.feedback.base import Signal, State, check_contraction
from thinwire.feedback.increments import Increments, check_rule
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload, Sum
from thinwire.payload.nested import SECOND


@dataclass(frozen=True)
class ThreePCv4(Increments):
    """3PCv4 (Richtarik et al. 2022, "3PC: Three Point Compressors", section 4).

        b_i = g_i + C(grad_i - g_i);   c_i = C(grad_i - g_i) + C'(grad_i - b_i)
        g_i <- g_i + c_i;   g <- g + (1/n) sum_i c_i;   out = g

    Two contractions one after the other, with 1 - delta = (1 - delta_1) (1 - delta_2).

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> rule = ThreePCv4(TopK(count=1), TopK(count=1), start="compressed")
    >>> simulation = Simulation({"x": torch.zeros(3)}, rule, workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(3)]
    [[2.0, 0.0, 1.5], [3.0, 1.0, 2.0], [3.0, 1.0, 2.0]]
    """

    compressor: Compressor
    second: Compressor
    start: str = "gradient"
    name: ClassVar[str] = "threepcv4"
    positional: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_rule(self, self.start)
        if not isinstance(self.second, Compressor):
            raise ConfigError(f"{self.name} takes a second compressor, such as topk(0.01), got {self.second!r}")

    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        nearer = self.follow_(target, layout, state, key)
        return Sum(nearer, self.second.follow_(state["local"], target, layout, key.stream(SECOND)))

    def admit(self, name: str, numel: int) -> None:
        for compressor in (self.compressor, self.second):
            check_contraction(self, compressor, name, numel)

"""EF21 shifted by an unbiased message about the latest change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor, Unbiased
from thinwire.errors import ConfigError
from thinwire.feedback.base import Signal, Slot, State
from thinwire.feedback.family.clag import PREVIOUS
from thinwire.feedback.increments import LOCAL, MEAN, Increments, check_rule
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload, Sum
from thinwire.payload.nested import SECOND


@dataclass(frozen=True)
class ThreePCv2(Increments):
    """3PCv2 (Richtarik et al. 2022, "3PC: Three Point Compressors", section 4).

        b_i = g_i + Q(grad_i - y_i);   c_i = Q(grad_i - y_i) + C(grad_i - b_i)
        g_i <- g_i + c_i;   g <- g + (1/n) sum_i c_i;   out = g;   y_i <- grad_i

    Q is unbiased, C contractive; both messages travel. y_i is the last gradient, whatever samples it was taken on: C
    mends what Q says of the noise.

    >>> import torch
    >>> from thinwire import RandK, Simulation, TopK, Unbias
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, ThreePCv2(TopK(count=1), Unbias(RandK(count=1))), workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(3)]
    [[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [3.0, 1.0, 2.0]]
    """

    compressor: Compressor
    change: Unbiased
    start: str = "gradient"
    name: ClassVar[str] = "threepcv2"
    positional: ClassVar[int] = 2
    slots: ClassVar[tuple[Slot, ...]] = (PREVIOUS, LOCAL, MEAN)

    def __post_init__(self) -> None:
        check_rule(self, self.start)
        if not isinstance(self.change, Unbiased):
            raise ConfigError(
                f"{self.name} compresses the change by an unbiased compressor, such as unbias(randk(0.1)), "
                f"got {self.change!r}"
            )

    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        shift = self.change(target - state["previous"], layout, key)
        shift.add_to(state["local"])
        return Sum(shift, self.follow_(target, layout, state, key.stream(SECOND)))

    def note_(self, payload: Payload, signal: Signal, state: State) -> None:
        state["previous"].copy_(signal.value)

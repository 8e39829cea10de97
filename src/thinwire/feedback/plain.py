"""No feedback: what is not sent is forgotten."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.feedback.base import Feedback, Round, Signal, State, check_compressor, mean_into
from thinwire.feedback.second_hop import Forwarding, SecondHop
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload


@dataclass(frozen=True)
class Plain(Feedback):
    """Compressed gradient descent without memory: c_i = C(g_i), out = (1/n) sum_i c_i.

    Sound for unbiased compressors (QSGD, natural); with a biased one it may not converge, which is what the other
    rules mend.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, Plain(TopK(count=1)), workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(2)]
    [[2.0, 0.0, 1.5], [2.0, 0.0, 1.5]]
    """

    compressor: Compressor
    name: ClassVar[str] = "plain"
    piecewise: ClassVar[bool] = True
    averages: ClassVar[bool] = True
    dense_by_identity: ClassVar[bool] = True
    agrees: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_compressor(self)

    def send(self, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        return self.compressor.by(signal.agreed)(signal.value, layout, key)

    def sketch(self, signal: Signal, layout: Layout, state: State, key: Key) -> Sequence[Tensor]:
        return self.compressor.sketch(signal.value, layout, key)

    @property
    def shows_all(self) -> bool:
        return self.compressor.shows_largest

    def pattern(self, key: Key) -> Hashable | None:
        return self.compressor.pattern(key)

    def looks_at(self, layout: Layout, key: Key, first: bool) -> Tensor | None:
        return self.compressor.looks_at(layout, key)

    @property
    def second_hop(self) -> SecondHop:
        return Forwarding(self.compressor)

    def receive(self, round: Round, layout: Layout, state: State, out: Tensor) -> Tensor:
        return mean_into(out, round.payloads)

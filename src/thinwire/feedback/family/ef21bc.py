"""EF21 that compresses both ways: the server's answer follows the mean as workers follow their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.errors import ConfigError
from thinwire.feedback.base import Round, Signal, Slot, State, check_contraction
from thinwire.feedback.increments import LOCAL, MEAN, Increments, check_rule
from thinwire.feedback.second_hop import Following, SecondHop
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload

SERVER = 1
"""The stream of the server's random key, apart from those by which workers share a mask."""


@dataclass(frozen=True)
class EF21BC(Increments):
    """EF21-BC (Fatkhullin et al. 2021, "EF21 with Bells and Whistles": bidirectional compression).

        c_i = C(grad_i - g_i);   g_i <- g_i + c_i;   m <- m + (1/n) sum_i c_i
        b = C_server(m - g);   g <- g + b;   out = g

    b is what a server would broadcast. Here every rank has all c_i and makes the same b by a shared key, so nothing
    more travels. After the start with whole gradients g is m.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> rule = EF21BC(TopK(count=1), TopK(count=1), start="compressed")
    >>> simulation = Simulation({"x": torch.zeros(3)}, rule, workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(3)]
    [[2.0, 0.0, 0.0], [2.0, 0.0, 1.5], [3.0, 0.0, 1.5]]
    """

    compressor: Compressor
    server: Compressor
    start: str = "gradient"
    name: ClassVar[str] = "ef21bc"
    piecewise: ClassVar[bool] = True
    positional: ClassVar[int] = 2
    slots: ClassVar[tuple[Slot, ...]] = (LOCAL, MEAN, Slot("broadcast", per_worker=False))

    def __post_init__(self) -> None:
        check_rule(self, self.start)
        if not isinstance(self.server, Compressor):
            raise ConfigError(f"{self.name} takes a compressor for the server, such as topk(0.01), got {self.server!r}")

    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        return self.follow_(target, layout, state, key)

    def looks_at(self, layout: Layout, key: Key, first: bool) -> Tensor | None:
        return None if first else self.compressor.looks_at(layout, key)

    @property
    def second_hop(self) -> SecondHop:
        return Following(self.server, whole=self.start == "gradient", worker=self.compressor)

    def receive(self, round: Round, layout: Layout, state: State, out: Tensor) -> Tensor:
        mean, broadcast = self.add_(round, state["mean"]), state["broadcast"]
        if round.first and self.start == "gradient":
            broadcast.copy_(mean)
        else:
            self.server.follow_(broadcast, mean, layout, round.key.stream(SERVER))
        return out.copy_(broadcast)

    def admit(self, name: str, numel: int) -> None:
        for compressor in (self.compressor, self.server):
            check_contraction(self, compressor, name, numel)

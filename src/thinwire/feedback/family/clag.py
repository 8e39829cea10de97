"""EF21 that stays silent about what has hardly changed."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.checks import is_number
from thinwire.compressors import Compressor
from thinwire.errors import ConfigError
from thinwire.feedback.base import Signal, Slot, State
from thinwire.feedback.increments import LOCAL, MEAN, Increments, check_rule
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Empty, Partial, Payload

PREVIOUS = Slot("previous", joins="mean")
"""y_i: this worker's gradient of the step before."""


@dataclass(frozen=True)
class CLAG(Increments):
    """CLAG (Richtarik et al. 2022, "3PC", a three point compressor): compressed lazy aggregation.

        c_i = C(grad_i - g_i) if |grad_i - g_i|^2 > zeta |grad_i - y_i|^2, else 0
        g_i <- g_i + c_i;   g <- g + (1/n) sum_i c_i;   out = g;   y_i <- grad_i

    decided for each parameter; one bit says which are sent. With the identity for C this is LAG (Chen et al. 2018):
    `clag(identity(), zeta=...)`. With zeta = 0 it is EF21. y_i is the last gradient, whatever samples it was taken on.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, CLAG(TopK(count=1), zeta=4.0, start="compressed"), workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(3)]
    [[2.0, 0.0, 1.5], [3.0, 1.0, 1.5], [3.0, 1.0, 2.0]]
    """

    compressor: Compressor
    zeta: float = 1.0
    start: str = "gradient"
    name: ClassVar[str] = "clag"
    varies: ClassVar[bool] = True
    slots: ClassVar[tuple[Slot, ...]] = (PREVIOUS, LOCAL, MEAN)

    def __post_init__(self) -> None:
        check_rule(self, self.start)
        if not (is_number(self.zeta) and 0 <= self.zeta < inf):
            raise ConfigError(f"{self.name} zeta must be at least 0, got {self.zeta}")

    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        fires = self._fires(target, layout, state)
        if all(fires):
            return self.follow_(target, layout, state, key)
        return self._send_some(fires, target, layout, state["local"], key)

    def note_(self, payload: Payload, signal: Signal, state: State) -> None:
        state["previous"].copy_(signal.value)

    def _fires(self, gradient: Tensor, layout: Layout, state: State) -> list[bool]:
        """For each piece, whether |x - h|^2 > zeta |x - y|^2."""
        lags, moves = gradient - state["local"], gradient - state["previous"]
        pairs = zip(layout.views(lags), layout.views(moves), strict=True)
        marks = [lag.square().sum() > self.zeta * move.square().sum() for (_, lag), (_, move) in pairs]
        return torch.stack(marks).tolist()

    def _send_some(self, fires: list[bool], gradient: Tensor, layout: Layout, local: Tensor, key: Key) -> Payload:
        """The compressed differences of the pieces that fire."""
        if not any(fires):
            return Empty()
        lags = layout.views(gradient - local)
        part = torch.cat([lag for fire, (_, lag) in zip(fires, lags, strict=True) if fire])
        payload = Partial(torch.tensor(fires), self.compressor(part, layout.select(fires), key), layout)
        payload.add_to(local)
        return payload

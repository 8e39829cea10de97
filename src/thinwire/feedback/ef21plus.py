"""EF21 that sends the compressed gradient itself whenever that comes closer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.errors import WireError
from thinwire.feedback.base import Feedback, Round, Signal, Slot, State, check_contraction
from thinwire.feedback.increments import check_rule
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Dense, Empty, Flagged, Payload


@dataclass(frozen=True)
class EF21Plus(Feedback):
    """EF21+ (Richtarik, Sokolov and Fatkhullin 2021, algorithm 3), decided for each parameter.

        b = C(grad_i);   m = g_i + C(grad_i - g_i)
        g_i <- m if |m - grad_i|^2 <= |b - grad_i|^2, else b;   out = (1/n) sum_i g_i

    One flag bit a parameter says which. A replaced g_i is no increment, so every rank holds all n of them: n times
    the model in memory. The theory asks for a deterministic compressor.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, EF21Plus(TopK(count=1), start="compressed"), workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(3)]
    [[2.0, 0.0, 1.5], [3.0, 1.0, 1.5], [3.0, 1.0, 2.0]]
    """

    compressor: Compressor
    start: str = "gradient"
    name: ClassVar[str] = "ef21plus"
    piecewise: ClassVar[bool] = True
    slots: ClassVar[tuple[Slot, ...]] = (Slot("local", joins="locals"), Slot("locals", per_worker=False, copies=True))

    def __post_init__(self) -> None:
        check_rule(self, self.start)

    def send(self, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        local = state["local"]
        replaces = torch.zeros(len(layout.pieces), dtype=torch.bool)
        inner: Payload
        if signal.first and self.start == "gradient":
            inner = Dense(signal.value.clone())
        elif signal.first and self.start == "zero":
            inner = Empty()
        else:
            replaces = self._replaces(signal.value, layout, local, key)
            _forget_(local, replaces, layout)
            inner = self.compressor(signal.value - local, layout, key)
        inner.add_to(local)
        return Flagged(replaces, inner)

    def _replaces(self, gradient: Tensor, layout: Layout, local: Tensor, key: Key) -> Tensor:
        """For each piece, whether C(gradient) comes strictly closer to the gradient than g_i + C(gradient - g_i)."""
        difference = gradient - local
        markov = self.compressor(difference, layout, key).add_to(-difference)
        fresh = self.compressor(gradient, layout, key).add_to(-gradient)
        pairs = zip(layout.views(fresh), layout.views(markov), strict=True)
        return torch.tensor([bool(f.norm() < m.norm()) for (_, f), (_, m) in pairs], dtype=torch.bool)

    def receive(self, round: Round, layout: Layout, state: State, out: Tensor) -> Tensor:
        out.zero_()
        for rank, (payload, local) in enumerate(zip(round.payloads, state["locals"], strict=True)):
            if not isinstance(payload, Flagged):
                raise WireError(f"rank {rank}: an {self.name} message must carry its flags, got format {payload.tag}")
            _forget_(local, payload.replaces, layout)
            out.add_(payload.add_to(local))
        return out.div_(len(round.payloads))

    def residual(self, signal: Signal, state: State) -> Tensor:
        return signal.value - state["local"]

    def admit(self, name: str, numel: int) -> None:
        check_contraction(self, self.compressor, name, numel)


def _forget_(local: Tensor, pieces: Tensor, layout: Layout) -> None:
    """Zero the pieces that are about to be replaced, in place."""
    for replaced, (_, view) in zip(pieces.tolist(), layout.views(local), strict=True):
        if replaced:
            view.zero_()

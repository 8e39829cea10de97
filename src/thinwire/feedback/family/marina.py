"""Unbiased compressed changes of the gradient, and now and then the whole of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Unbiased
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback, Need, Round, Signal, Slot, State, mean_into
from thinwire.feedback.family.participation import check_probability, toss
from thinwire.feedback.increments import MEAN
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Dense, Payload, add_all_to


@dataclass(frozen=True)
class MARINA(Feedback):
    """MARINA (Gorbunov, Burlachenko, Li and Richtarik 2021, algorithm 1); on mini-batches VR-MARINA's online form.

        with probability p:   c_i = grad_i;               g <- (1/n) sum_i c_i
        else:                 c_i = Q(grad_i - y_i);      g <- g + (1/n) sum_i c_i;      out = g

    y_i is the gradient of the same samples at the previous point; all workers toss one coin; the first round is a whole
    one. Q must be unbiased; more workers allow larger steps where each draws for itself. Theory takes
    p = 1 / (1 + omega).

    >>> import torch
    >>> from thinwire import QSGD, Simulation
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, MARINA(QSGD(2), 0.5), workers=2)
    >>> [simulation.exchange(gradients, previous=gradients)["x"].tolist() for _ in range(3)]
    [[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [3.0, 1.0, 2.0]]
    """

    compressor: Unbiased
    probability: float
    name: ClassVar[str] = "marina"
    piecewise: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PREVIOUS})
    slots: ClassVar[tuple[Slot, ...]] = (MEAN,)

    def __post_init__(self) -> None:
        check_probability(self.name, self.probability)
        if not isinstance(self.compressor, Unbiased):
            raise ConfigError(
                f"{self.name} takes an unbiased compressor, such as unbias(randk(0.1)) or qsgd(15), got "
                f"{self.compressor!r}; threepcv5 is its form for biased ones"
            )

    def send(self, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        if signal.first or toss(key.shared(), self.probability):
            return Dense(signal.value.clone())
        assert signal.previous is not None  # engines see to what a rule needs
        return self.compressor.between(signal.value, signal.previous, layout, key)

    def looks_at(self, layout: Layout, key: Key, first: bool) -> Tensor | None:
        whole = first or toss(key.shared(), self.probability)
        return None if whole else self.compressor.looks_at(layout, key)

    def receive(self, round: Round, layout: Layout, state: State, out: Tensor) -> Tensor:
        mean = state["mean"]
        if round.first or toss(round.key, self.probability):
            mean_into(mean, round.payloads)
        else:
            add_all_to(mean, round.payloads, alpha=1.0 / len(round.payloads))
        return out.copy_(mean)

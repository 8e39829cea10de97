"""A rule whose server sends the model compressed as well: workers take gradients where they believe it to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback, Need, Round, Signal, Slot, State, check_contraction
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload

MODEL = 3
"""The stream of the key by which the model is compressed."""
UNTOLD = Slot("untold", per_worker=False)
"""x - w: what workers were not yet told of the parameters."""


@dataclass(frozen=True)
class EF21P(Feedback):
    """EF21-P (Gruntkowska, Tyurin and Richtarik 2023): error feedback of the model, around a rule for the gradients.

        x <- x - step(the inner rule's result for gradients at w);   w <- w + C(x - w)

    w = x at the start. Kept is x - w, which takes the step and then loses what is sent. Metrics belong to x; where C
    says little, w may be far from it. In EF21-Muon the inner rule is EF21-SGDM and the step that of `Muon`.

    >>> import torch
    >>> from thinwire import EF21, Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, EF21P(EF21(TopK(count=1)), TopK(count=1)), workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(2)]
    [[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]]
    """

    rule: Feedback
    model: Compressor
    name: ClassVar[str] = "ef21p"
    positional: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not isinstance(self.rule, Feedback) or Need.BROADCAST in self.rule.needs:
            raise ConfigError(f"{self.name} takes a rule such as ef21(topk(0.01)) for the gradients, got {self.rule}")
        if Need.AGREEMENT in self.rule.needs:
            raise ConfigError(f"{self.name} asks its workers for no agreement, which {self.rule} needs: use topk")
        if not isinstance(self.model, Compressor):
            raise ConfigError(f"{self.name} takes a compressor such as topk(0.01) for the model, got {self.model!r}")

    @property
    def needs(self) -> frozenset[Need]:
        return self.rule.needs | {Need.BROADCAST}

    @property
    def varies(self) -> bool:
        return self.rule.varies

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (*self.rule.slots, UNTOLD)

    def send(self, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        return self.rule.send(signal, layout, state, key)

    def receive(self, round: Round, layout: Layout, state: State, out: Tensor) -> Tensor:
        return self.rule.receive(round, layout, state, out)

    def tell_(self, untold: Tensor, layout: Layout, key: Key) -> Payload:
        """b = C(x - w), which is broadcast; x - w <- x - w - b."""
        payload = self.model(untold, layout, key.stream(MODEL))
        payload.add_to(untold, alpha=-1.0)
        return payload

    def residual(self, signal: Signal, state: State) -> Tensor | None:
        return self.rule.residual(signal, state)

    @property
    def participation(self) -> float:
        return self.rule.participation

    def wants_full(self, key: Key) -> bool:
        return self.rule.wants_full(key)

    def admit(self, name: str, numel: int) -> None:
        self.rule.admit(name, numel)
        check_contraction(self, self.model, name, numel)

    def admit_workers(self, workers: int) -> None:
        self.rule.admit_workers(workers)

    def admit_terms(self, name: str, terms: int) -> None:
        self.rule.admit_terms(name, terms)

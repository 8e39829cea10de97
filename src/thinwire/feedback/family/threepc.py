"""Three point compressors: rules that use the gradient of the previous point as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor, Unbiased
from thinwire.errors import ConfigError
from thinwire.feedback.base import Need, Signal, Slot, State, check_contraction
from thinwire.feedback.family.clag import PREVIOUS
from thinwire.feedback.family.participation import check_probability, toss
from thinwire.feedback.increments import LOCAL, MEAN, Increments, check_rule, whole_
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

"""Error feedback that compresses differences of gradients."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.feedback.base import Signal, State
from thinwire.feedback.increments import Increments, check_rule
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload


@dataclass(frozen=True)
class EF21(Increments):
    """EF21 (Richtarik, Sokolov and Fatkhullin 2021, algorithm 2).

        c_i = C(grad_i - g_i);   g_i <- g_i + c_i;   g <- g + (1/n) sum_i c_i;   out = g

    `start` is g_i at the beginning: the first gradient (sent whole, once), its compression, or zero. Step sizes lie
    outside the state, so schedules need no care. On mini-batches this is EF21-SGD (Fatkhullin et al. 2021): the noise
    leaves a floor that neither the step size nor more workers remove; see `EF21SGDM` and `EF21PAGE`.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, EF21(TopK(count=1), start="compressed"), workers=2)
    >>> [simulation.exchange(gradients)["x"].tolist() for _ in range(3)]
    [[2.0, 0.0, 1.5], [3.0, 1.0, 1.5], [3.0, 1.0, 2.0]]
    """

    compressor: Compressor
    start: str = "gradient"
    name: ClassVar[str] = "ef21"
    piecewise: ClassVar[bool] = True
    agrees: ClassVar[bool] = True
    hands_over_common: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rule(self, self.start)

    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        return self.follow_(target, layout, state, key)

    @property
    def shows_all(self) -> bool:
        return self.compressor.shows_largest

    def pattern(self, key: Key) -> Hashable | None:
        return self.compressor.pattern(key)

    def looks_at(self, layout: Layout, key: Key, first: bool) -> Tensor | None:
        return None if first else self.compressor.looks_at(layout, key)

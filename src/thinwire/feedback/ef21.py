"""Error feedback that compresses differences of gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.feedback.base import Signal, State
from thinwire.feedback.increments import Increments, check_rule, follow_
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Payload


@dataclass(frozen=True)
class EF21(Increments):
    """EF21 (Richtarik, Sokolov and Fatkhullin 2021, algorithm 2).

        c_i = C(grad_i - g_i);   g_i <- g_i + c_i;   g <- g + (1/n) sum_i c_i;   out = g

    `start` is g_i at the beginning: the first gradient (sent whole, once), its compression, or zero. Step sizes lie
    outside the state, so schedules need no care. With mini-batches and no momentum the noise leaves a floor: see
    `EF21SGDM`.
    """

    compressor: Compressor
    start: str = "gradient"
    name: ClassVar[str] = "ef21"

    def __post_init__(self) -> None:
        check_rule(self, self.start)

    def send(self, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        return follow_(self, state["local"], signal.value, signal, layout, key)

    def residual(self, signal: Signal, state: State) -> Tensor:
        return signal.value - state["local"]

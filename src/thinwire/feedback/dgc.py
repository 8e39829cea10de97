"""Deep gradient compression: each worker applies momentum before it adds up what it has not sent."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.checks import is_number
from thinwire.compressors import Compressor
from thinwire.errors import ConfigError
from thinwire.feedback.base import (
    Feedback,
    Need,
    Round,
    Signal,
    Slot,
    State,
    check_compressor,
    check_contraction,
    mean_into,
)
from thinwire.feedback.memory import check_decay, check_memory, decayed, memory_slots
from thinwire.feedback.second_hop import Remembering, SecondHop
from thinwire.layout import Layout
from thinwire.ops import Key, block_norms
from thinwire.ops.blocks import WHOLE, spread
from thinwire.payload import Payload, Positioned


@dataclass(frozen=True)
class DGC(Feedback):
    """DGC (Lin, Han, Mao, Wang and Dally 2018, "Deep Gradient Compression", algorithms 4 and 5).

        u <- m u + g;   e <- (s_old / s) e + u;   c = C(e);   e <- e - c;   u <- 0 where c was sent
        out = (1/n) sum_i c_i

    Momentum correction: what waits is the momentum's step, so that a number that is sent late has had all of it, as
    without compression. Factor masking (`masking`) stops the momentum of what was sent, which a late number would
    otherwise push on for too long. `nesterov=True` adds g + m u in place of u. The third ingredient, a density that
    falls from 25 % in the first steps, is the compressor's: `dgc(topk(warmup(0.25, 0.001, 400)))`.

    u is in units of gradients, as the momentum of `torch.optim.SGD`: x <- x - s u takes the present step size. e holds
    steps that were taken and not sent, so it keeps its mass in units of updates while s moves, as in `MemSGD`. Without
    compression and masking this is SGD with momentum. The optimizer beside it must have no momentum of its own: one
    that has is refused.

    `clip` bounds the norm of this worker's gradient of each parameter, before momentum. The paper clips the norm over
    all parameters, which no bucket knows before the last one has come. For a threshold t of the mean gradient it gives
    each of n workers t / sqrt(n), for gradients that are divided by n already: sqrt(n) t here, where they are not.
    `decay` lets the memory fade and `memory="int8"` keeps u and e in bytes, as in `MemSGD`; `flush` empties u with e.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, DGC(TopK(count=1), momentum=0.5), workers=2)
    >>> [simulation.exchange(gradients, step_sizes={"x": 0.1})["x"].tolist() for _ in range(3)]
    [[2.0, 0.0, 1.5], [2.5, 2.5, 0.0], [5.0, 0.0, 3.75]]
    """

    compressor: Compressor
    momentum: float = 0.9
    nesterov: bool = False
    masking: bool = True
    clip: float | None = None
    decay: float = 1.0
    memory: str = "full"
    name: ClassVar[str] = "dgc"
    piecewise: ClassVar[bool] = True
    averages: ClassVar[bool] = True
    owes: ClassVar[tuple[str, ...]] = ("error", "velocity")
    needs: ClassVar[frozenset[Need]] = frozenset({Need.STEP_SIZE})

    def __post_init__(self) -> None:
        check_compressor(self)
        check_decay(self.name, self.decay)
        check_memory(self.name, self.memory)
        if not (is_number(self.momentum) and 0 <= self.momentum < 1):
            raise ConfigError(f"dgc momentum must lie in [0, 1), got {self.momentum!r}: 0.9 is usual")
        for option in ("nesterov", "masking"):
            if not isinstance(getattr(self, option), bool):
                raise ConfigError(f"dgc {option} must be True or False, got {getattr(self, option)!r}")
        if self.clip is not None and not (is_number(self.clip) and 0 < self.clip < math.inf):
            raise ConfigError(f"dgc clip must be a positive norm, or None to clip nothing, got {self.clip!r}")

    @property
    def slots(self) -> tuple[Slot, ...]:
        return memory_slots(self.memory, "velocity", "error")

    @property
    def has_momentum(self) -> bool:
        return self.momentum > 0

    def send(self, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        velocity, gradient = state["velocity"], self._clipped(signal.value, layout)
        velocity.mul_(self.momentum).add_(gradient)
        step = velocity.mul(self.momentum).add_(gradient) if self.nesterov else velocity
        ratios = decayed(signal.rescale, self.decay, layout)
        payload = self.compressor.take_(state["error"], step, ratios, layout, key)
        if self.masking:
            _stop_(velocity, payload, layout)
        return payload

    def _clipped(self, gradient: Tensor, layout: Layout) -> Tensor:
        """Each parameter's gradient, scaled down to the norm `clip` where it is longer."""
        if self.clip is None:
            return gradient
        norms = block_norms(gradient, layout, WHOLE, order=2)
        factors = torch.full_like(norms, self.clip).div_(norms).clamp_(max=1.0)
        return gradient * spread(factors, layout, WHOLE)

    @property
    def shows_all(self) -> bool:
        return self.compressor.shows_largest

    def pattern(self, key: Key) -> Hashable | None:
        return self.compressor.pattern(key) if self.memory == "full" else None

    @property
    def second_hop(self) -> SecondHop:
        return Remembering(self.compressor, self.decay)

    def receive(self, round: Round, layout: Layout, state: State, out: Tensor) -> Tensor:
        return mean_into(out, round.payloads)

    def residual(self, signal: Signal, state: State) -> Tensor:
        return state["error"]

    def admit(self, name: str, numel: int) -> None:
        check_contraction(self, self.compressor, name, numel)


def _stop_(velocity: Tensor, payload: Payload, layout: Layout) -> None:
    """u <- 0 where something was sent."""
    if isinstance(payload, Positioned):
        velocity.index_fill_(0, payload.positions, 0.0)
    else:
        velocity.masked_fill_(payload.decode(layout, velocity.dtype, velocity.device) != 0, 0)

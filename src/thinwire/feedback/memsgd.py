"""Error feedback: send a compressed sum of all that was not sent before, keep the rest."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.compressors.base import scaled_
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
from thinwire.ops import Key
from thinwire.payload import Payload


@dataclass(frozen=True)
class MemSGD(Feedback):
    """Mem-SGD (Stich, Cordonnier and Jaggi 2018, algorithm 1, with workers averaged).

        p = m + s g;   c = s C(p / s);   m <- p - c;   x <- x - (1/n) sum_i c_i

    with s the step size and m the memory, in update units. The paper writes C(p), which is the same for top-k, rand-k,
    signs and QSGD: their choice does not depend on units. That of a threshold does: tau of `HardThreshold` and `Strom`
    is in gradient units, so p is compared with s tau. Compared with tau, it would send ever less as the rate falls.

    The hook hands the optimizer a gradient, so the memory is kept as e = m / s and carried to the new step size
    whenever it moves:

        e <- (s_old / s) e + g;   c = C(e);   e <- e - c;   out = (1/n) sum_i c_i

    The mass s e in update units is thus untouched by any schedule, for each parameter group by its own step size. An
    optimizer with momentum keeps gradients across steps, and with them e's of a smaller step size: where the step size
    rises steeply again (warm restarts), use it without momentum, or another rule. The paper's lock-free form for linear
    models is `thinwire.linear`, its experiments are in `thinwire.papers.memsgd`.

    With `decay` d below 1 (not in the paper) the memory fades, e <- d (s_old / s) e + g: each step loses the share
    1 - d of what waits, which is then never sent. It bounds how old a sent update may be, at about 1 / (1 - d) steps;
    SparseLoCo (Sarfi et al. 2025) takes 0.95.

    `memory="int8"` keeps e in a byte a number and one scale for each 256 of them, between steps and to undo one: each
    step rounds it without bias, by the step's key, to multiples of a / 127, a the block's largest magnitude.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, MemSGD(TopK(count=1)), workers=2)
    >>> [simulation.exchange(gradients, step_sizes={"x": 0.1})["x"].tolist() for _ in range(3)]
    [[2.0, 0.0, 1.5], [4.0, 0.0, 0.0], [0.0, 3.0, 3.0]]
    """

    compressor: Compressor
    decay: float = 1.0
    memory: str = "full"
    name: ClassVar[str] = "memsgd"
    piecewise: ClassVar[bool] = True
    averages: ClassVar[bool] = True
    dense_by_identity: ClassVar[bool] = True
    owes: ClassVar[tuple[str, ...]] = ("error",)
    agrees: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_compressor(self)
        check_decay(self.name, self.decay)
        check_memory(self.name, self.memory)

    @property
    def needs(self) -> frozenset[Need]:
        return super().needs | {Need.STEP_SIZE}

    @property
    def slots(self) -> tuple[Slot, ...]:
        return memory_slots(self.memory, "error")

    def send(self, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        ratios = decayed(signal.rescale, self.decay, layout)
        return self.compressor.by(signal.agreed).take_(state["error"], signal.value, ratios, layout, key)

    def sketch(self, signal: Signal, layout: Layout, state: State, key: Key) -> Sequence[Tensor]:
        ratios = decayed(signal.rescale, self.decay, layout)
        return self.compressor.sketch(scaled_(state["error"].clone(), ratios, layout).add_(signal.value), layout, key)

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

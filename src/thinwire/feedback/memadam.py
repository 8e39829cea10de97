"""Adam with error feedback: a memory of preconditioned updates, under a preconditioner that all workers share."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, final

import torch
from torch import Tensor

from thinwire.checks import is_number, is_whole
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
from thinwire.feedback.second_hop import Question, Remembering, SecondHop
from thinwire.layout import Layout
from thinwire.ops import Key, block_norms, preconditioned, scale_pieces_, square_means
from thinwire.ops.blocks import WHOLE
from thinwire.payload import Beside, Payload, Payloads

EARLY = 20
"""The first steps, in each of which the second moments are exchanged: they change fast there. Exchanged every 100 steps
from the start, a transformer's loss after 1,000 was 2.03 in place of 1.67."""
MOST = torch.finfo(torch.bfloat16).max
"""Of a second moment, which travels in bfloat16."""
MOMENTUM, STEPS = Slot("momentum"), Slot("steps", single=True)
SQUARES, SHARED = Slot("squares", factored=True), Slot("shared", factored=True, per_worker=False)


@dataclass(frozen=True)
class MemAdam(Feedback):
    """Adam whose memory holds updates (Mem-SGD's memory under a preconditioner that is common to all workers).

        m <- b1 m + (1 - b1) g;      v <- b2 v + (1 - b2) (row and column means of g^2)
        D^2 = (1/n) mean_i v_i / (1 - b2^t), taken over from all workers in the first 20 steps and in each `refresh`-th
        u = m / (1 - b1^t) / (D + eps), scaled down to a root mean square of sqrt(n) clip for each parameter
        e <- (s_old / s) e + u;      c = C(e);      e <- e - c;      out = (1/n) sum_i c_i

    Error feedback is exact for linear updates, and Adam divides by a root of what it is given: a number that waited for
    a hundred steps looks to it like one gradient a hundred times as large. Here the division comes first, by a D that
    all workers share, and the rest is linear: x <- x - s out by `torch.optim.SGD` without momentum, whose weight decay
    is then AdamW's. That is the way of 1-bit Adam (Tang et al. 2021), without its dense start and with a D that moves.

    The second moment of a matrix is factored, as Adafactor's (Shazeer and Stern 2018): D^2_jk = r_j c_k / mean(r), so
    that exchanging it costs little; dimensions after the first are taken together, and a vector has one number. Workers
    square their own gradients, which are noisier than the mean of n by a factor of up to n in the square: hence the
    1/n, and with it a learning rate that was tuned for AdamW. The memory is itself a momentum; `beta1` is therefore
    smaller than Adam's (0.9 in its place: 1.66 in place of 1.52, `docs/adaptive.md`). `decay` is that of `MemSGD`,
    and so is `memory="int8"`, for e.

    What is known of D in a step is that of the steps before: in the first one nothing is said but v.

    >>> import torch
    >>> from thinwire import Simulation, TopK
    >>> gradients = [{"x": torch.tensor([4.0, 2.0, 1.0])}, {"x": torch.tensor([2.0, 0.0, 3.0])}]
    >>> simulation = Simulation({"x": torch.zeros(3)}, MemAdam(TopK(count=1)), workers=2)
    >>> [simulation.exchange(gradients, step_sizes={"x": 0.1})["x"].abs().gt(0).tolist() for _ in range(2)]
    [[False, False, False], [True, False, True]]
    """

    compressor: Compressor
    beta1: float = 0.5
    beta2: float = 0.99
    eps: float = 1e-8
    clip: float | None = 1.0
    refresh: int = 16
    decay: float = 1.0
    memory: str = "full"
    name: ClassVar[str] = "memadam"
    owes: ClassVar[tuple[str, ...]] = ("error",)
    needs: ClassVar[frozenset[Need]] = frozenset({Need.STEP_SIZE})
    has_momentum: ClassVar[bool] = True
    reads_common: ClassVar[bool] = True
    dense_by_identity: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_compressor(self)
        check_decay(self.name, self.decay)
        check_memory(self.name, self.memory)
        for option in ("beta1", "beta2"):
            if not (is_number(getattr(self, option)) and 0 <= getattr(self, option) < 1):
                raise ConfigError(f"memadam {option} must lie in [0, 1), got {getattr(self, option)!r}")
        if not (is_number(self.eps) and 0 < self.eps < math.inf):
            raise ConfigError(f"memadam eps must be a positive number, 1e-8 is usual, got {self.eps!r}")
        if self.clip is not None and not (is_number(self.clip) and 0 < self.clip < math.inf):
            raise ConfigError(f"memadam clip must be positive, or None to clip nothing, got {self.clip!r}")
        if not (is_whole(self.refresh) and self.refresh >= 1):
            raise ConfigError(
                f"memadam refresh must be a whole number of steps, at least 1, got {self.refresh!r}: second moments "
                "that are never exchanged leave workers with different preconditioners"
            )

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (MOMENTUM, SQUARES, STEPS, *memory_slots(self.memory, "error"), SHARED)

    def send(self, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        state["steps"].add_(1)
        state["momentum"].lerp_(signal.value, 1 - self.beta1)
        squares = square_means(signal.value, layout)
        spoilt = not (squares.is_cuda or bool(squares.isfinite().all()))
        state["squares"].lerp_(squares.clamp_(max=MOST), 1 - self.beta2)
        update = self._update(layout, state, signal.workers)
        ratios = decayed(signal.rescale, self.decay, layout)
        inner = self.compressor.take_(state["error"], update, ratios, layout, key).unless(spoilt)
        return Beside(self._second_moments(layout, state), inner) if self._is_due(key) else inner

    @property
    def shows_all(self) -> bool:
        """What the compressor shows is the memory. Gradients whose squares have finite means are finite, and so is a
        momentum of them: each is below 2e19 (in float32), and moves no finite number beyond the largest."""
        return self.compressor.shows_largest

    def _is_due(self, key: Key) -> bool:
        """Whether second moments are exchanged in the step of this key."""
        return key.step < EARLY or key.step % self.refresh == 0

    def _second_moments(self, layout: Layout, state: State) -> Tensor:
        """v / (1 - b2^t), in the 16 bits in which it travels."""
        squares, lengths = state["squares"], lengths_of(layout, state["squares"].device)
        corrections = (1 - self.beta2 ** state["steps"]).repeat_interleave(lengths, output_size=squares.numel())
        return (squares / corrections).bfloat16()

    def _update(self, layout: Layout, state: State, workers: int) -> Tensor:
        """u for each parameter; nothing where D is not known yet."""
        corrections = 1 - self.beta1 ** state["steps"]
        u = preconditioned(state["momentum"], state["shared"], corrections, layout, workers, self.eps)
        if self.clip is None:
            return u
        roots = block_norms(u, layout, WHOLE, order=2) / roots_of_lengths(layout, u.dtype, u.device)
        return scale_pieces_(u, (self.clip * math.sqrt(workers) / roots).clamp_(max=1.0), layout)

    def pattern(self, key: Key) -> Hashable | None:
        chosen = self.compressor.pattern(key)
        return None if chosen is None or self.memory != "full" else (chosen, self._is_due(key))

    @property
    def second_hop(self) -> SecondHop:
        return SharedMoments(Remembering(self.compressor, self.decay))

    def receive(self, round: Round, layout: Layout, state: State, out: Tensor) -> Tensor:
        take_over_([payload.beside for payload in round.payloads if isinstance(payload, Beside)], state["shared"])
        inner = [payload.inner if isinstance(payload, Beside) else payload for payload in round.payloads]
        return mean_into(out, inner)

    def residual(self, signal: Signal, state: State) -> Tensor:
        return state["error"]

    def admit(self, name: str, numel: int) -> None:
        check_contraction(self, self.compressor, name, numel)


def take_over_(told: Sequence[Tensor], shared: Tensor) -> None:
    """D^2 is the mean of what all workers tell, where they tell anything; who holds still says zero."""
    if told:
        mean = torch.stack([one.to(shared.dtype) for one in told]).mean(0)
        shared.copy_(torch.where(mean > 0, mean, shared))


@final
@dataclass(frozen=True)
class SharedMoments(SecondHop):
    """A server's memory of preconditioned updates; second moments were told to every owner, which all workers are."""

    memory: Remembering
    slots: ClassVar[tuple[Slot, ...]] = Remembering.slots
    owes: ClassVar[str] = Remembering.owes

    def answer(self, asked: Question, state: State) -> Payload:
        return self.memory.answer(asked, state)

    def hear(self, answers: Payloads, state: State, out: Tensor, beside: Sequence[Tensor] = ()) -> Tensor:
        take_over_(beside, state["shared"])
        return self.memory.hear(answers, state, out)

    def is_alike(self, first: bool) -> bool:
        return True


@lru_cache(maxsize=256)
def lengths_of(layout: Layout, device: torch.device) -> Tensor:
    """How many factors each piece has; kept, because bringing it to a GPU makes the host wait. Not to be written to."""
    return torch.tensor([piece.factors for piece in layout.pieces], dtype=torch.int64, device=device)


@lru_cache(maxsize=256)
def roots_of_lengths(layout: Layout, dtype: torch.dtype, device: torch.device) -> Tensor:
    """sqrt(numel) of each piece that holds anything; kept like `lengths_of`. Not to be written to."""
    roots = [math.sqrt(piece.numel) for piece in layout.pieces if piece.numel]
    return torch.tensor(roots, dtype=torch.float64).to(device, dtype)

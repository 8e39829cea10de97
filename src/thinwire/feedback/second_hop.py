"""The server's half in two: what the owner of some numbers answers to all workers, and what they make of its answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.feedback.base import Round, Slot, State, mean_into
from thinwire.feedback.memory import decayed
from thinwire.layout import Layout
from thinwire.payload import Dense, Payload, Payloads, add_all_to


@dataclass(frozen=True)
class Question:
    """What all workers have said of one owner's numbers."""

    round: Round
    layout: Layout
    """Of the owner's own shares."""
    ratios: Sequence[float] | None
    """Previous step size / this one, for each of them."""
    zeros: Tensor
    """To add up in."""

    @property
    def mean(self) -> Tensor:
        """(1/n) sum_i c_i."""
        return mean_into(self.zeros, self.round.payloads)


class SecondHop(ABC):
    """What a rule does where each worker owns a share of the numbers and is the server of these."""

    slots: ClassVar[tuple[Slot, ...]] = ()
    """What an owner keeps for its own numbers, in place of common slots of the rule's with the same names."""
    owes: ClassVar[str | None] = None
    """The slot that holds all an owner has not passed on."""

    @abstractmethod
    def answer(self, asked: Question, state: State) -> Payload:
        """The owner's part: what it tells everyone of its numbers, once all workers have told it of theirs."""

    def hear(self, answers: Payloads, state: State, out: Tensor, beside: Sequence[Tensor] = ()) -> Tensor:
        """Everyone's part: the resulting gradient, of answers each of which speaks of its owner's numbers; and what all
        workers have told every owner beside their messages."""
        return answers.add_to(out.zero_())

    @abstractmethod
    def is_alike(self, first: bool) -> bool:
        """Whether answers are written as workers' messages are, so that the one's length tells the other's."""


@final
@dataclass(frozen=True)
class Forwarding(SecondHop):
    """A server without memory: b = C((1/n) sum_i c_i)."""

    compressor: Compressor

    def answer(self, asked: Question, state: State) -> Payload:
        return self.compressor(asked.mean, asked.layout, asked.round.key)

    def is_alike(self, first: bool) -> bool:
        return True


@final
@dataclass(frozen=True)
class Remembering(SecondHop):
    """A server with error feedback of its own (Tang et al. 2019, "DoubleSqueeze").

        s <- (s_old / s_now) s + (1/n) sum_i c_i;      b = C(s);      s <- s - b

    in the units and with the decay of the workers' memories. What was sent, the mean of all workers' memories and s add
    up to the mean of what was given.
    """

    compressor: Compressor
    decay: float = 1.0
    slots: ClassVar[tuple[Slot, ...]] = (Slot("kept"),)
    owes: ClassVar[str] = "kept"

    def answer(self, asked: Question, state: State) -> Payload:
        ratios = decayed(asked.ratios, self.decay, asked.layout)
        return self.compressor.take_(state["kept"], asked.mean, ratios, asked.layout, asked.round.key)

    def is_alike(self, first: bool) -> bool:
        return True


@final
@dataclass(frozen=True)
class Following(SecondHop):
    """EF21-BC's server (Fatkhullin et al. 2021).

        m <- m + (1/n) sum_i c_i;      b = C(m - g);      g <- g + b

    Everyone holds g, the owner m and its own copy of its part of g.
    """

    compressor: Compressor
    whole: bool
    """Whether the first answer is m itself."""
    worker: Compressor
    slots: ClassVar[tuple[Slot, ...]] = (Slot("mean"), Slot("told"))

    def answer(self, asked: Question, state: State) -> Payload:
        round = asked.round
        mean = add_all_to(state["mean"], round.payloads, alpha=1.0 / len(round.payloads))
        if not (round.first and self.whole):
            return self.compressor.follow_(state["told"], mean, asked.layout, round.key)
        answer = Dense(mean - state["told"])
        answer.add_to(state["told"])
        return answer

    def hear(self, answers: Payloads, state: State, out: Tensor, beside: Sequence[Tensor] = ()) -> Tensor:
        return out.copy_(answers.add_to(state["broadcast"]))

    def is_alike(self, first: bool) -> bool:
        return self.compressor == self.worker and not first

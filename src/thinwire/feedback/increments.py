"""What the EF21 family shares: workers send compressed differences, both ends add them to what they hold."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, final

from torch import Tensor

from thinwire.checks import is_number
from thinwire.compressors import Compressor
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback, Round, Signal, Slot, State, check_compressor, check_contraction
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Dense, Empty, Payload, add_all_to

LOCAL = Slot("local", resize="mean")
"""g_i: what the server believes this worker's gradient to be."""
MEAN = Slot("mean", per_worker=False)
"""g = (1/n) sum_i g_i, the same on every rank."""
STARTS = ("gradient", "compressed", "zero")


def check_rule(rule: Feedback, start: str) -> None:
    """Check the fields that the family's rules have in common."""
    check_compressor(rule)
    if start not in STARTS:
        raise ConfigError(f"{rule.name} start must be one of {', '.join(STARTS)}, got {start!r}")


def check_eta(name: str, eta: float) -> None:
    """Check a weight in (0, 1]."""
    if not (is_number(eta) and 0 < eta <= 1):
        raise ConfigError(f"{name} eta must lie in (0, 1], got {eta}")


class Increments(Feedback):
    """A rule whose messages are increments: g_i <- g_i + c_i at the worker, g <- g + (1/n) sum_i c_i at the server.

    The start, the server's half and the order of a round are here. A rule of the family says what c_i is in the rounds
    `later`, and in what else it differs: what g_i follows (`target_`), what a worker notes of a round (`note_`), or
    what the server makes of g (`receive`).
    """

    slots: ClassVar[tuple[Slot, ...]] = (LOCAL, MEAN)
    compressor: Compressor
    start: str

    @final
    def send(self, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        if signal.agreed is not None:
            return self._by(signal.agreed).send(replace(signal, agreed=None), layout, state, key)
        target = self.target_(signal, layout, state, key)
        if signal.first:
            payload = self.first(target, layout, state, key)
        else:
            payload = self.later(target, signal, layout, state, key)
        self.note_(payload, signal, state)
        return payload

    def _by(self, agreed: Sequence[Tensor]) -> Self:
        """The same rule over its compressor once workers agree."""
        changes: dict[str, Any] = {"compressor": self.compressor.by(agreed)}
        return replace(self, **changes)  # type: ignore[type-var]  # every rule is a dataclass

    def sketch(self, signal: Signal, layout: Layout, state: State, key: Key) -> Sequence[Tensor]:
        """Of target - g_i, for rules whose c is C of that."""
        own = {name: slot.clone() for name, slot in state.items()}
        target = self.target_(signal, layout, own, key)
        return self.compressor.sketch(target - state["local"], layout, key)

    def target_(self, signal: Signal, layout: Layout, state: State, key: Key) -> Tensor:
        """What g_i is to follow: the gradient, or what this advances of the worker's own slots."""
        return signal.value

    @final
    def first(self, target: Tensor, layout: Layout, state: State, key: Key) -> Payload:
        """c of the first exchange, as the rule's start asks for: all of the difference, nothing, or C of it."""
        if self.start == "gradient":
            return whole_(state["local"], target)
        return Empty() if self.start == "zero" else self.follow_(target, layout, state, key)

    @abstractmethod
    def later(self, target: Tensor, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        """c of every other exchange, added to g_i."""

    def follow_(self, target: Tensor, layout: Layout, state: State, key: Key) -> Payload:
        """c = C(target - g_i);   g_i <- g_i + c."""
        return self.compressor.follow_(state["local"], target, layout, key)

    def note_(self, payload: Payload, signal: Signal, state: State) -> None:
        """Advance what else the worker holds, after c was made."""

    def receive(self, round: Round, layout: Layout, state: State, out: Tensor) -> Tensor:
        return out.copy_(self.add_(round, state["mean"]))

    def add_(self, round: Round, mean: Tensor) -> Tensor:
        """g <- g + (1/n) sum_i c_i, in place."""
        return add_all_to(mean, round.payloads, alpha=1.0 / len(round.payloads))

    def share(self, worker: int, workers: int) -> float:
        """The weight of g_i in g."""
        return 1.0 / workers

    def residual(self, signal: Signal, state: State) -> Tensor:
        return signal.value - state["local"]

    def admit(self, name: str, numel: int) -> None:
        check_contraction(self, self.compressor, name, numel)


def whole_(local: Tensor, target: Tensor) -> Dense:
    """c = target - local, uncompressed; local <- local + c."""
    payload = Dense(target - local)
    payload.add_to(local)
    return payload

"""What the EF21 family shares: workers send compressed differences, both ends add them to what they hold."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from thinwire.checks import is_number
from thinwire.compressors import Compressor
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback, Round, Signal, Slot, State, check_compressor
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

    EF21's two halves are here; a rule of the family says in what it differs: what g_i follows (`target_`), when or how
    a worker sends, or what the server makes of g.
    """

    slots: ClassVar[tuple[Slot, ...]] = (LOCAL, MEAN)
    compressor: Compressor
    start: str

    def send(self, signal: Signal, layout: Layout, state: State, key: Key) -> Payload:
        return self.follow_(state["local"], self.target_(signal, state, key), signal, layout, key)

    def target_(self, signal: Signal, state: State, key: Key) -> Tensor:
        """What g_i is to follow: the gradient, or what this advances of the worker's own slots."""
        return signal.value

    def follow_(self, local: Tensor, target: Tensor, signal: Signal, layout: Layout, key: Key) -> Payload:
        """c = C(target - local); local <- local + c. On the first exchange c is what the rule's start asks for: all of
        the difference, C of it, or nothing."""
        if signal.first and self.start == "gradient":
            return whole_(local, target)
        if signal.first and self.start == "zero":
            return Empty()
        return self.compressor.follow_(local, target, layout, key)

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


def whole_(local: Tensor, target: Tensor) -> Dense:
    """c = target - local, uncompressed; local <- local + c."""
    payload = Dense(target - local)
    payload.add_to(local)
    return payload

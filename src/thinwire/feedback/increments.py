"""What the EF21 family shares: workers send compressed differences, both ends add them to what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.errors import ConfigError
from thinwire.feedback.base import Feedback, Signal, Slot, State, check_compressor
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Dense, Empty, Payload, add_all_to
from thinwire.schedule import is_number

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


def follow_(rule: Increments, local: Tensor, target: Tensor, signal: Signal, layout: Layout, key: Key) -> Payload:
    """c = C(target - local); local <- local + c. On the first exchange c is what the rule's start asks for: all of
    the difference, C of it, or nothing."""
    if signal.first and rule.start == "gradient":
        payload = Dense(target - local)
        payload.add_to(local)
        return payload
    if signal.first and rule.start == "zero":
        return Empty()
    return rule.compressor.follow_(local, target, layout, key)


class Increments(Feedback):
    """A rule whose messages are increments: g_i <- g_i + c_i at the worker, g <- g + (1/n) sum_i c_i at the server."""

    slots: ClassVar[tuple[Slot, ...]] = (LOCAL, MEAN)
    compressor: Compressor
    start: str

    def receive(self, payloads: Sequence[Payload], layout: Layout, state: State, out: Tensor) -> Tensor:
        add_all_to(state["mean"], payloads, alpha=1.0 / len(payloads))
        return out.copy_(state["mean"])

"""A step as a transaction: what a worker sent may be taken back until it is committed, and its doubt outlives both.

Workers that agreed on a step may still part on it: one hears the last word and commits, another loses touch a moment
before and undoes. Which of the two the run goes on with is known once somebody who is in the run says so, and until
then each worker can still go either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.feedback import Feedback
from thinwire.feedback.increments import Increments
from thinwire.outgoing import Outgoing
from thinwire.payload import Reader
from thinwire.payload.letter import read_one

Memories = dict[tuple[str, str], Tensor]
"""By parameter and slot."""


class Transaction:
    """One step of one worker.

    commit_()      the step is taken
    revoke_()      it is not: all goes back. With `fold` the gradient is not lost: where a rule has a memory of what it
                   has not sent, m <- m_old + g, in its units. That is what m holds now, plus the message
    settle_(taken) what the run says of it afterwards: turns one into the other if need be
    """

    def __init__(self, channel: Channel, epoch: int, *, fold: bool) -> None:
        self._channel, self.epoch, self.step, self._fold = channel, epoch, channel.step, fold
        self._before = channel.clock.now
        self._sizes: Mapping[str, float] = {}
        self._after: Memories = {}
        self.sent: list[Outgoing] = []
        self.taken: bool | None = None
        """None while it is open."""

    def commit_(self) -> None:
        """Take the step."""
        self._channel.finish()
        self._sizes = self._channel.step_sizes
        self.taken = True

    @torch.no_grad()
    def revoke_(self, step_sizes: Mapping[str, float] | None = None) -> None:
        """Take back what was sent, with these step sizes."""
        self._sizes = {**self._before.step_sizes, **{n: s for n, s in (step_sizes or {}).items() if s > 0}}
        self._after = self._memories()
        folded = self._folded()
        self._channel.abandon()
        self._write(folded)
        self.taken = False

    @torch.no_grad()
    def settle_(self, taken: bool) -> None:
        """The run did take the step, or did not."""
        if self.taken is None or taken == self.taken:
            return
        if taken:
            self._write(self._after, self._sizes)
        else:
            folded = self._folded()
            for part in (part for outgoing in self.sent for part in outgoing.parts):
                self._channel.worker.restore(part.layout, self._before.turn)
            self._set_sizes(self._before.step_sizes)
            self._write(folded)
        self.taken = taken

    def _memories(self) -> Memories:
        """All that this worker has of its own of what it sent, as it stands now."""
        worker = self._channel.worker
        names = [piece.name for outgoing in self.sent for piece in outgoing.layout.pieces]
        pairs = [(name, slot.name) for name in names for slot in worker.slots_of(name)]
        return {(name, slot): worker.view(name, slot).clone() for name, slot in pairs}

    def _folded(self) -> Memories:
        """The memories that the gradient is folded into: what each would hold had nothing of it been sent."""
        worker, channel, folded = self._channel.worker, self._channel, Memories()
        for outgoing in self.sent if self._fold else ():
            payloads = read_one(Reader(outgoing.message), outgoing.expected, channel.rank)
            for part, payload in zip(outgoing.parts, payloads, strict=True):
                if not folds(part.rule):
                    continue
                slot, info = part.rule.owes[0], channel.parameters[part.layout.pieces[0].name]
                message = payload.decode(part.layout, info.state_dtype, info.device)
                for piece, view in part.layout.views(message):
                    folded[piece.name, slot] = worker.view(piece.name, slot) + view
        return folded if all(bool(torch.isfinite(memory).all()) for memory in folded.values()) else Memories()

    def _write(self, memories: Memories, sizes: Mapping[str, float] | None = None) -> None:
        """Set memories, which are in the units of the step that sent them."""
        for (name, slot), memory in memories.items():
            self._channel.worker.write(name, slot, memory)
        named = {name for name, _ in memories}
        own = self._sizes if sizes is None else sizes
        self._set_sizes({**self._channel.step_sizes, **{name: own[name] for name in named if name in own}})

    def _set_sizes(self, sizes: Mapping[str, float]) -> None:
        clock = self._channel.clock
        with clock.lock:
            clock.now = replace(clock.now, step_sizes=dict(sizes))


def folds(rule: Feedback) -> bool:
    """Whether a gradient can wait in the rule's memory: EControl's holds errors of estimates, not gradients."""
    return bool(rule.owes) and not isinstance(rule, Increments)

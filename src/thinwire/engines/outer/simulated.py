"""Outer steps of n workers in one process: bitwise what n processes compute."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from thinwire.checkpoint import OnResize, merge_states
from thinwire.engines.flush import dense_channel, forget_, owed
from thinwire.engines.outer.attached import OuterAttachment, moved_
from thinwire.engines.outer.replica import Replica
from thinwire.engines.outer.saved import prepared_outer, save_outer
from thinwire.engines.outer.schedule import Outer, outer_from
from thinwire.errors import ConfigError, NonFiniteGradient, NonFiniteUpdate
from thinwire.exchange import Incoming, Loopback
from thinwire.feedback import Rule
from thinwire.ledger import Ledger
from thinwire.outgoing import Given, Outgoing, longest_message
from thinwire.payload.base import both_counts, mean_count


class OuterSimulation:
    """n workers, each with parameters and an optimizer of its own; call `step` when every optimizer has stepped once.

    Each worker's parameters are a mapping from names to tensors, on any device. They may be rows of one tensor with a
    row for each worker, which one elementwise optimizer steps at once. Settings are those of `attach_outer`.

    >>> import torch
    >>> from thinwire import OuterSimulation
    >>> workers = [{"x": torch.zeros(2)} for _ in range(2)]
    >>> simulation = OuterSimulation(workers, "plain(identity())", every=1)
    >>> for worker, target in zip(workers, (1.0, 3.0)):
    ...     _ = worker["x"].add_(target)  # what an optimizer does
    >>> simulation.step()
    >>> [worker["x"].tolist() for worker in workers]
    [[2.0, 2.0], [2.0, 2.0]]
    """

    def __init__(
        self,
        workers: Sequence[Mapping[str, Tensor]],
        rule: Rule | str | Outer,
        every: int | None = None,
        *,
        nonfinite: str = "raise",
        seed: int = 0,
        ledger_every: int = 10,
        **settings: float | None,
    ) -> None:
        if not workers:
            raise ConfigError("a simulation needs at least 1 worker, got none")
        self.outer = outer_from(rule, every=every, **settings)
        self._given = OuterAttachment(nonfinite, seed, ledger_every)  # type: ignore[arg-type]
        self.replicas: list[Replica] = []
        for rank, parameters in enumerate(workers):
            _check_alike(workers[0], parameters, rank)
            first = self.replicas[0] if self.replicas else None
            self.replicas.append(Replica(self.outer, parameters, rank=rank, size=len(workers), seed=seed, beside=first))
        self.ledger = Ledger(len(workers), every=ledger_every)
        self.steps = 0
        self._loopback = Loopback(len(workers))
        self._incoming: dict[int, list[Incoming]] = {}

    @property
    def lr(self) -> float:
        """The outer rate; it may be changed between steps."""
        return self.replicas[0].lr

    @lr.setter
    def lr(self, lr: float) -> None:
        for replica in self.replicas:
            replica.lr = Outer(self.outer.rule, 1, lr).lr

    def step(self) -> None:
        """Take note that every worker's optimizer has stepped once, and exchange what is due."""
        self.steps += 1
        late = self.outer.delay > 0
        for f in self.outer.landing_at(self.steps) if late else ():
            if f in self.replicas[0].flights:
                self._land(f)
        for f in self.outer.sent_at(self.steps):
            self._send(f)
            if not late:
                self._land(f)

    def _send(self, f: int, lefts: Sequence[Sequence[Tensor] | None] | None = None) -> None:
        measure = self.ledger.due(self.replicas[0].channels[f].step)
        for end in self._loopback.ends:
            end.begin(f"outer step {self.steps}")
        pairs = zip(self.replicas, lefts or [None] * len(self.replicas), strict=True)
        flights = [replica.send(f, 0, measure=measure and not replica.rank, left=left) for replica, left in pairs]
        self._incoming[f] = [self._gathered(sent) for sent in zip(*(flight.sent for flight in flights), strict=True)]

    def _gathered(self, sent: Sequence[Outgoing]) -> Incoming:
        """Every worker's message, as it comes to the first."""
        longest = longest_message(sent[0].layout)
        ends = zip(self._loopback.ends, sent, strict=True)
        arriving = [end.gather(one.message, fixed=one.fixed, longest=longest, what="a fragment") for end, one in ends]
        return arriving[0]

    def _land(self, f: int) -> None:
        first, channels = self.replicas[0], [replica.channels[f] for replica in self.replicas]
        answers = first.points[f].fragment.empty()
        sents = zip(*(replica.flights[f].sent for replica in self.replicas), strict=True)
        for sent, incoming, out in zip(sents, self._incoming.pop(f), answers, strict=True):
            channels[0].receive(sent[0], incoming.wait(), out)
            elements = mean_count(reduce(both_counts, [one.elements for one in sent]), len(sent))
            self.ledger.add(incoming.traffic, sent[0].layout.numel, sent[0].norms, elements)
        for channel in channels:
            channel.judge()
        channels[0].fault = next((channel.fault for channel in channels if channel.fault), None)
        for channel in channels[1:] if channels[0].fault is not None else ():
            channel.undo_()
        fault = channels[0].finish()
        for channel in channels[1:]:
            channel.keep()
        self.ledger.see([self.lr], [self.outer.lr])
        self.ledger.finish(skipped=fault is not None)
        self._take(f, answers, fault)

    def _take(self, f: int, answers: Sequence[Tensor], fault: NonFiniteGradient | None) -> None:
        """Take the outer step, or leave it."""
        if fault is None:
            self.replicas[0].points[f].step_(answers, self.lr, self.outer.momentum)
        for replica in self.replicas:
            if fault is None:
                replica.land_(f)
            elif self._given.nonfinite == "skip":
                replica.settle_(f)
            else:
                replica.flights.pop(f)
        if fault is not None and self._given.nonfinite == "raise":
            raise NonFiniteUpdate(fault.rank, fault.parameter, fault.step, fault.overflows)

    def flush(self) -> float:
        """Bring all workers together: windows and memories are exchanged dense; the norm of the update."""
        for f in sorted(self.replicas[0].flights):
            self._land(f)
        return math.hypot(*map(self._flush, range(self.outer.fragments)))

    def _flush(self, f: int) -> float:
        channels = [replica.channels[f] for replica in self.replicas]
        debts = [owed(channel, None) for channel in channels]
        every = [replica.owes(f, own) for replica, own in zip(self.replicas, debts, strict=True)]
        dense = [dense_channel(channel, own) for channel, own in zip(channels, every, strict=True)]
        updates: dict[str, Tensor] = {}
        for name in every[0]:
            layout = dense[0].layout([name])
            sent = [channel.send(layout, Given(own[name])) for channel, own in zip(dense, every, strict=True)]
            incoming = self._gathered(sent)
            self.ledger.book(incoming.traffic)
            updates[name] = dense[0].receive(sent[0], incoming.wait(), torch.empty_like(every[0][name]))
        if (fault := dense[0].finish()) is not None:
            raise fault
        for channel, own in zip(channels, debts, strict=True):
            forget_(channel, own)
        norm = moved_(self.replicas[0], f, updates)
        for replica in self.replicas[1:]:
            replica.settle_(f)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """The state of all workers, in the form that a merged checkpoint of real ranks has."""
        return merge_states([save_outer(replica, self.steps) for replica in self.replicas])

    def load_state_dict(self, state: Mapping[str, Any], *, on_resize: OnResize = "raise") -> None:
        """Load the merged state of all workers, after their parameters."""
        for fitting in [prepared_outer(replica, state, on_resize) for replica in self.replicas]:
            fitting.commit_()
        self.steps, self._incoming = int(state["step"]), {}
        for f in sorted(self.replicas[0].flights):
            self._send(f, [replica.flights[f].left for replica in self.replicas])


def _check_alike(first: Mapping[str, Tensor], parameters: Mapping[str, Tensor], rank: int) -> None:
    """Refuse workers that do not begin at one point."""
    if list(first) != list(parameters):
        raise ConfigError(f"worker {rank} has other parameters than worker 0: give all the same names in one order")
    for name, parameter in parameters.items():
        if not torch.equal(parameter, first[name]):
            raise ConfigError(f"worker {rank}'s {name!r} begins elsewhere than worker 0's: all must begin at one point")

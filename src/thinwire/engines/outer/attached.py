"""What takes one rank's outer steps: the handle that `attach_outer` returns."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from thinwire.checkpoint import OnResize, digest
from thinwire.engines.ddp.agreement import load_together_
from thinwire.engines.ddp.verdict import EVERY, Verdict
from thinwire.engines.flush import dense_channel, forget_, owed
from thinwire.engines.outer.replica import Replica
from thinwire.engines.outer.saved import prepared_outer, save_outer
from thinwire.engines.outer.schedule import Outer
from thinwire.errors import AttachError, NonFiniteUpdate, PeerLost, StateError, ThinwireError, WireError
from thinwire.exchange import Exchange, Incoming
from thinwire.ledger import Ledger
from thinwire.outgoing import Given, longest_message


@dataclass(frozen=True)
class OuterAttachment:
    """What `attach_outer` was given beside the model, its optimizer and the settings."""

    nonfinite: Literal["raise", "skip"] = "raise"
    seed: int = 0
    ledger_every: int = 10

    def __post_init__(self) -> None:
        if self.nonfinite not in ("raise", "skip"):
            raise AttachError(f'nonfinite must be "raise" or "skip", got {self.nonfinite!r}')


class OuterHandle:
    """What `attach_outer` returns: the ledger and the state of this rank.

    >>> import torch
    >>> import torch.distributed as dist
    >>> from thinwire import attach_outer
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = torch.nn.Linear(10, 1)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> handle = attach_outer(model, optimizer, "memsgd(topk(0.1))", every=2)
    >>> for _ in range(4):
    ...     model(torch.ones(4, 10)).mean().backward()
    ...     optimizer.step()
    >>> handle.steps, int(handle.ledger.summary()["steps"])  # of the optimizer, and outer ones
    (4, 2)
    >>> dist.destroy_process_group()
    """

    divides_by_active = False
    """The mean is over all workers, whoever has data (what `ddp.join` asks of a verdict)."""

    def __init__(self, replica: Replica, exchange: Exchange, given: OuterAttachment) -> None:
        self.replica, self._exchange, self._given = replica, exchange, given
        self.ledger = Ledger(exchange.size, every=given.ledger_every)
        self.steps = 0
        """Steps of the optimizer so far."""
        self.detached = False
        self.unhook: Callable[[], None] = lambda: None
        self._incoming: dict[int, list[Incoming]] = {}
        self._errors: list[ThinwireError] = []
        self._moving = False

    @property
    def outer(self) -> Outer:
        """The settings in force."""
        return self.replica.outer

    @property
    def lr(self) -> float:
        """The outer rate. It may be changed between steps, on every rank alike: memories are carried to the new one."""
        return self.replica.lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self.replica.lr = Outer(self.outer.rule, 1, lr).lr

    def describe(self) -> dict[str, str]:
        """What must be the same on every rank, as texts: and every hundredth outer step the outer point itself."""
        channels = self.replica.channels
        texts = {"rule": str(self.outer.rule), "seed": str(channels[0].seed), "the outer rate": repr(self.lr)}
        texts |= {"steps of the optimizer": str(self.steps), "outer steps": str([c.step for c in channels])}
        return texts | (self._points() if channels[0].step % EVERY == 0 else {})

    def _points(self) -> dict[str, str]:
        points = self.replica.points
        checksums = [[f"{digest(flat):08x}" for flat in point.flats] for point in points]
        return {f"the outer point of fragment {f}": f"checksum {', '.join(c)}" for f, c in enumerate(checksums)}

    def settings(self) -> dict[str, str]:
        """What `attach_outer` compares between ranks."""
        given, infos = self._given, [info for c in self.replica.channels for info in c.parameters.items()]
        settings = {**self.outer.describe(), "seed": str(given.seed), "nonfinite": given.nonfinite}
        settings |= {f"parameter {name!r}": f"{list(info.shape)} {info.dtype}" for name, info in infos}
        parameters = self.replica.parameters.items()
        return settings | {f"the start of parameter {n!r}": f"checksum {digest(p):08x}" for n, p in parameters}

    # ------------------------------------------------------------------------------------------------------------ steps

    def advance(self, *_: object) -> None:
        """Take note of one step of the optimizer: what its hook does."""
        step = self.steps + 1
        self._moving = True
        try:
            self._exchange_due(step)
        except PeerLost:
            raise  # the step does not count: what is saved now resumes before it
        except ThinwireError:
            self.steps = step
            raise
        finally:
            self._moving = False
        self.steps = step

    def _exchange_due(self, step: int) -> None:
        late = self.outer.delay > 0
        for f in self.outer.landing_at(step) if late else ():
            if f in self.replica.flights:
                self._land(f)
        for f in self.outer.sent_at(step):
            self._send(f)
            if not late:
                self._land(f)

    def _send(self, f: int, left: Sequence[Tensor] | None = None) -> None:
        """Begin the exchange of a fragment."""
        channel = self.replica.channels[f]
        self._exchange.begin(f"outer step {channel.step} of fragment {f}")
        mark = zlib.crc32(json.dumps(self.describe()).encode())
        flight = self.replica.send(f, mark, measure=self.ledger.due(channel.step), left=left)
        try:
            self._incoming[f] = [
                self._exchange.gather(
                    sent.message, fixed=sent.fixed, longest=longest_message(sent.layout), what=f"fragment {f}"
                )
                for sent in flight.sent
            ]
        except ThinwireError:
            self._give_up(f)
            raise

    def _land(self, f: int) -> None:
        """End the exchange of a fragment: all ranks take the outer step, or none does."""
        channel, point = self.replica.channels[f], self.replica.points[f]
        answers, flight = point.fragment.empty(), self.replica.flights[f]
        try:
            for sent, incoming, out in zip(flight.sent, self._incoming.pop(f), answers, strict=True):
                messages = incoming.wait()
                self._attempt(partial(channel.receive, sent, messages, out))
                self.ledger.add(incoming.traffic, sent.layout.numel, sent.norms, sent.elements)
            self._attempt(channel.judge)
            verdict = Verdict.agreed(self._exchange, self._taken_error(), channel.fault, True, self)
        except PeerLost:
            channel.abandon()
            if not self.outer.delay:
                del self.replica.flights[f]
            raise
        channel.fault = verdict.fault
        if verdict.error is not None:
            self._give_up(f)
            self.ledger.finish(skipped=True)
            raise verdict.error
        fault = channel.finish()
        self.ledger.see([self.lr], [self.outer.lr])
        self.ledger.finish(skipped=fault is not None)
        if fault is None:
            point.step_(answers, self.lr, self.outer.momentum)
            self.replica.land_(f)
        elif self._given.nonfinite == "skip":
            self.replica.settle_(f)
        else:
            self._give_up(f)
            raise NonFiniteUpdate(fault.rank, fault.parameter, fault.step, fault.overflows)

    def _attempt(self, reading: Callable[[], object]) -> None:
        """Do what may fail on this rank alone; the others wait for the verdict, and must hear of it."""
        try:
            reading()
        except ThinwireError as error:
            self._errors.append(error)
        except Exception as error:
            words = f"rank {self._exchange.rank} could not read what it was sent: {type(error).__name__}: {error}"
            problem = WireError(words)
            problem.__cause__ = error
            self._errors.append(problem)

    def _taken_error(self) -> ThinwireError | None:
        errors, self._errors = self._errors, []
        return errors[0] if errors else None

    def _give_up(self, f: int) -> None:
        """Undo an exchange that will not be applied; what was moved stays unsent."""
        self.replica.channels[f].abandon()
        self.replica.flights.pop(f, None)
        self._incoming.pop(f, None)

    # ------------------------------------------------------------------------------------------------ between the steps

    def flush(self) -> float:
        """Bring all workers together: windows and memories travel dense, and every θ_i becomes the outer point.

        For the end of training, and before a checkpoint that another number of workers is to load. Exchanges in flight
        are applied first. Call it on every rank, between steps; gives the norm of the update.
        """
        self._check_between_steps("flush")
        for f in sorted(self.replica.flights):
            self._land(f)
        return math.hypot(*map(self._flush, range(self.outer.fragments)))

    def _flush(self, f: int) -> float:
        channel = self.replica.channels[f]
        self._exchange.begin("flushing the windows and memories")
        debts = owed(channel, None)
        updates = self.replica.owes(f, debts)
        dense = dense_channel(channel, updates)
        for name, update in updates.items():
            sent, what = dense.send(dense.layout([name]), Given(update)), f"what is unsaid of {name!r}"
            incoming = self._exchange.gather(sent.message, fixed=True, longest=0, what=what)
            self.ledger.book(incoming.traffic)
            self._attempt(partial(dense.receive, sent, incoming.wait(), update))
        self._attempt(dense.judge)
        verdict = Verdict.agreed(self._exchange, self._taken_error(), dense.fault, True, self)
        dense.fault = verdict.fault
        error = verdict.error or dense.finish()
        if error is not None:
            raise error
        forget_(channel, debts)
        return moved_(self.replica, f, updates)

    def detach(self, *, flush: bool = True) -> dict[str, Any]:
        """Take thinwire off the optimizer: from now on this rank (with DDP inside: its site) trains by itself.

        All workers are brought together first (`flush`), or with `flush=False` left where they are. Call it on every
        rank, between steps; gives the last state.
        """
        self._check_between_steps("detach")
        if flush:
            self.flush()
        self.unhook()
        self.detached = True
        return self.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, also in the middle of a window or of a delay. Every rank must save its own.

        The parameters and the optimizer are saved as ever, but by every rank: between two exchanges they differ. Call
        it between steps.
        """
        self._check_between_steps("state_dict")
        return save_outer(self.replica, self.steps)

    def load_state_dict(self, state: Mapping[str, Any], *, on_resize: OnResize = "raise") -> None:
        """Load this rank's state, after its parameters; exchanges that were in flight are sent again.

        Of another number of ranks: their merged states (`merge_states`), saved after `flush()`. Call it on every rank:
        all load, or (with a `StateError` on each) none.
        """
        self._check_between_steps("load_state_dict")
        for f in list(self.replica.flights):
            self._give_up(f)
        self._exchange.begin("loading a state")
        load_together_(self._exchange, partial(prepared_outer, self.replica, state, on_resize))
        self.steps = int(state["step"])
        for f, flight in sorted(self.replica.flights.items()):
            self._send(f, flight.left)

    def _check_between_steps(self, what: str) -> None:
        if self._moving:
            raise StateError(f"{what} was called in the middle of an outer step: call it between optimizer steps")


@torch.no_grad()
def moved_(replica: Replica, f: int, updates: Mapping[str, Tensor]) -> float:
    """θ <- θ - update, and every worker to θ; the norm of the update. (Of several workers beside each other, the first
    moves the point, and the others `settle_`.)"""
    views = replica.points[f].fragment.views(replica.points[f].flats)
    for name, update in updates.items():
        views[name].sub_(update.view(views[name].shape))
    replica.settle_(f)
    return math.sqrt(sum(float(update.double().square().sum()) for update in updates.values()))

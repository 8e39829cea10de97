"""One worker of a run that others leave and join: it exchanges gradients after the backward pass, step by step.

enroll(exchange)   a new group of workers: who is there, do they agree, what becomes of the state (membership.py)
exchange()         send, receive, agree: the model's gradients become the exchanged ones, and the step is open
commit()           it is taken: the optimizer may step
revoke()           it is not: what was sent is taken back, and the gradient kept (transaction.py)
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from thinwire.channel import Channel
from thinwire.checkpoint import prepared, save
from thinwire.engines.ddp.agreement import first_difference, told
from thinwire.engines.ddp.bucket import SecondMoments
from thinwire.engines.ddp.verdict import Verdict
from thinwire.engines.elastic.chronicle import Chronicle, mark_of
from thinwire.engines.elastic.membership import Roster, enter_, mean_of, rescale_, settle_, shares
from thinwire.engines.elastic.transaction import Transaction
from thinwire.engines.needs import check_agreement, check_momentum, check_need, check_one_backward, warn_of_optimizer
from thinwire.engines.step_sizes import StepSizes
from thinwire.errors import AttachError, MomentError, NonFiniteGradient, QuorumError, ThinwireError
from thinwire.exchange import Exchange, Incoming
from thinwire.feedback import Feedback, Need, Rule, rule_of
from thinwire.layout import Layout
from thinwire.ledger import Ledger
from thinwire.outgoing import Given, Outgoing, longest_message

if TYPE_CHECKING:
    from thinwire.moments import Moments

LOG = logging.getLogger("thinwire")
BUCKET = 1 << 22
"""Numbers that travel as one message: 16 MB dense. The first is on its way while the second is compressed."""


@dataclass(frozen=True)
class Departure:
    """A worker that left, and the norm of the update that it had not sent when that was measured last."""

    member: int
    step: int
    """Of the measurement."""
    unsent: float


@dataclass(frozen=True)
class Elasticity:
    """What an elastic worker was given beside model, rule and optimizer."""

    moments: Moments | None = None
    nonfinite: Literal["raise", "skip"] = "raise"
    fold: bool = True
    seed: int = 0
    ledger_every: int = 10

    def __post_init__(self) -> None:
        if self.nonfinite not in ("raise", "skip"):
            raise AttachError(f'nonfinite must be "raise" or "skip", got {self.nonfinite!r}')


class ElasticHandle:
    """One worker's end of an elastic run: its channel, its ledger, and who else takes part.

    >>> import torch
    >>> from thinwire import MemSGD, TopK
    >>> from thinwire.engines.elastic import ElasticHandle, Elasticity
    >>> from thinwire.exchange import Loopback
    >>> model = torch.nn.Linear(10, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> handle = ElasticHandle(model, MemSGD(TopK(0.1)), optimizer, Elasticity())
    >>> handle.enroll(Loopback(1).ends[0])
    >>> model(torch.ones(4, 10)).mean().backward()
    >>> handle.exchange()
    True
    >>> handle.revoke()  # as if somebody had been lost: the whole gradient waits in the memory
    >>> handle.owed()["weight"].count_nonzero().item()
    10
    """

    divides_by_active = False
    """The mean is over all workers of the step (what `ddp.join` asks of a verdict)."""

    def __init__(self, model: nn.Module, rule: Rule, optimizer: torch.optim.Optimizer, given: Elasticity) -> None:
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        check_resizable(rule_of(rule, name, p.numel()) for name, p in self._parameters.items())
        self.channel = Channel(rule, self._parameters, rank=0, size=1, seed=given.seed)
        self._given, self._step_sizes = given, StepSizes(self._parameters, optimizer)
        self._check(given)
        self.member = secrets.randbits(62)
        """The number by which this worker is known to the others."""
        self.ledger = Ledger(1, every=given.ledger_every)
        self.roster, self.chronicle, self.epoch = Roster(), Chronicle(), 0
        self.departures: list[Departure] = []
        """Who left so far, and what was lost with each."""
        self._exchange: Exchange | None = None
        self._layouts = _buckets(self.channel)
        self._step: Transaction | None = None
        self._doubt: Transaction | None = None
        self._unsent: dict[int, tuple[int, float]] = {}
        self._errors: list[ThinwireError] = []
        self._rates: list[float] = []
        self._mark = 0

    def _check(self, given: Elasticity) -> None:
        channel, sizes = self.channel, self._step_sizes
        remedy = "pass moments=thinwire.moments.watch(model)"
        check_need(channel, Need.MOMENTS, given.moments is not None, remedy)
        check_one_backward(channel)
        check_agreement(channel, False, "workers that come and go")
        check_momentum(channel, sizes)
        warn_of_optimizer(channel, sizes, stacklevel=5)
        self._moments = None if given.moments is None else SecondMoments(channel, given.moments, self._parameters)

    @property
    def rule(self) -> Rule:
        """The rule in force."""
        return self.channel.rule

    @property
    def size(self) -> int:
        """How many workers take part."""
        return self.channel.size

    def describe(self) -> dict[str, str]:
        """What all workers of a step must have in common, as texts. Each message carries a digest of it."""
        texts = {"rule": str(self.rule), "seed": str(self.channel.seed), "step": str(self.channel.step)}
        texts |= {"quorum": f"{self.epoch:x}", "workers": str(self.size)}
        rates = enumerate(self._rates)
        return texts | {f"the learning rate of the optimizer's parameter group {g}": repr(rate) for g, rate in rates}

    def settings(self) -> dict[str, str]:
        """What all workers of a run must have in common."""
        given, infos = self._given, self.channel.parameters.items()
        texts = {"rule": str(self.rule), "seed": str(self.channel.seed), "nonfinite": given.nonfinite}
        texts |= {f"parameter {name!r}": f"{list(info.shape)} {info.dtype}" for name, info in infos}
        return texts | self._step_sizes.settings()

    # ----------------------------------------------------------------------------------------------------- who is there

    def enroll(self, exchange: Exchange) -> None:
        """Go on with this group of workers, all of which call it: between steps, whenever the group has changed.

        A worker with other settings than the run's is an `AttachError` there, and on the others a `QuorumError`; so is
        one that has taken another last step than most, on all: `astray` then says who must take the state of another.
        """
        self._abandon()
        self._exchange = None
        exchange.begin("looking who is there")
        text = json.dumps(self.settings()).encode()
        mine = [self.member, mark_of(text), self.chronicle.mark, mark_of(self.roster.members), int(self.is_member)]
        rows = exchange.everyone([*mine, self.channel.step, secrets.randbits(62)], "the roster")
        self._check_settings(exchange, rows)
        self._check_history(rows)
        self._regroup(exchange, rows)
        self._exchange, self._doubt = exchange, None

    @property
    def is_member(self) -> bool:
        """Whether the common state that this worker holds is one that it had a share in."""
        return self.member in self.roster.members

    def _check_settings(self, exchange: Exchange, rows: Sequence[Sequence[int]]) -> None:
        if all(row[1] == rows[0][1] for row in rows):
            return
        texts = told(exchange, self.settings(), "the settings")
        words = f"workers differ in {first_difference(texts)}"
        right = _held_by_most(rows, 1)
        if rows[exchange.rank][1] == right and self.chronicle.eras:
            raise QuorumError(f"{words}. This worker is of the run and goes on without those that differ")
        raise AttachError(f"{words}. Give every worker the same rule, seed, model and optimizer")

    def _check_history(self, rows: Sequence[Sequence[int]]) -> None:
        self.astray = rows[[row[0] for row in rows].index(self.member)][2] != _held_by_most(rows, 2)
        if any(row[2] != rows[0][2] for row in rows):
            raise QuorumError(
                f"workers have taken different last steps (those of {len({row[2] for row in rows})} histories meet): "
                f"this one is {'astray and takes the state of another' if self.astray else 'right'}"
            )

    def _regroup(self, exchange: Exchange, rows: Sequence[Sequence[int]]) -> None:
        """Take the new roster: the state of the channel becomes that of this group."""
        old, new = self.roster, Roster(tuple(row[0] for row in rows))
        members = [row for row in rows if row[4]]
        settled = all(row[3] == members[0][3] for row in members) and len(members) == len(old.members)
        means = {} if settled or not members else self._means(exchange, [bool(row[4]) for row in rows])
        came_from = new.came_from(old) if old.members else (None,) * len(rows)
        self.channel.regroup_(exchange.rank, came_from)
        settle_(self.channel, means)
        if not self.is_member:
            enter_(self.channel)
        self.roster, self.epoch = new, mark_of(number for row in rows for number in row)
        self.ledger.workers = exchange.size
        self._see_off(new.left(old))

    def _means(self, exchange: Exchange, members: Sequence[bool]) -> dict[tuple[str, str], Tensor]:
        """The mean of what each member of the run has of the common slots: it travels dense."""
        own = shares(self.channel)
        means: dict[tuple[str, str], Tensor] = {}
        for (name, slot), share in own.items():
            message, what = share.detach().contiguous().view(torch.uint8), f"slot {slot!r} of {name!r}"
            incoming = exchange.gather(message, fixed=True, longest=0, what=what)
            self.ledger.book(incoming.traffic)
            every = [row.to(share.device).contiguous().view(share.dtype) for row in incoming.wait()]
            means[name, slot] = mean_of([vector for vector, is_in in zip(every, members, strict=True) if is_in])
        return means

    def _see_off(self, left: Sequence[int]) -> None:
        for member in left:
            step, unsent = self._unsent.pop(member, (-1, math.nan))
            self.departures.append(Departure(member, step, unsent))
            LOG.warning(
                "a worker left at step %d. Where it does not come back, what it had not sent is lost: an update of "
                "norm %.3g (measured at step %d), of which one in %d would have been applied",
                *(self.channel.step, unsent, step, self.size + len(left)),
            )

    # ------------------------------------------------------------------------------------------------------------ steps

    def exchange(self) -> bool:
        """Exchange the gradients of the model, which become the mean of what all have said.

        Gives whether the step can be taken; it is open until `commit` or `revoke`. With NaN or infinity on any worker
        it is undone on all, and `NonFiniteGradient` is raised or (`nonfinite="skip"`) False given. Where somebody is
        lost it is a `PeerLost`, after which `revoke` is to be called.
        """
        exchange = self._begin()
        if exchange is None:
            raise QuorumError("this worker is in no group: enroll it first")
        exchange.begin(f"step {self.channel.step} of {exchange.size} workers")
        step = self._step
        assert step is not None
        self._check_terms(exchange)
        arrivals = [(sent, self._gather(exchange, sent)) for sent in map(self._send, self._layouts)]
        answers = [self._receive(sent, incoming) for sent, incoming in arrivals]
        self._attempt_judging()
        self._tell_unsent(exchange, step.sent)
        verdict = Verdict.agreed(exchange, self._taken_error(), self.channel.fault, True, self)
        self.channel.fault = verdict.fault
        if verdict.error is not None or verdict.fault is not None:
            return self._refuse(verdict)
        for layout, answer in zip(self._layouts, answers, strict=True):
            self._write(layout, answer)
        return True

    def _begin(self) -> Exchange | None:
        """Open a step; one that was left open is undone."""
        self._abandon()
        self._errors = []
        self._rates = self._step_sizes.rates()
        self.ledger.see(self._rates, self._step_sizes.peaks())
        self._mark = zlib.crc32(json.dumps(self.describe()).encode())
        self._step = Transaction(self.channel, self.epoch, fold=self._given.fold)
        return self._exchange

    def _send(self, layout: Layout) -> Outgoing:
        """This worker's letter about a bucket; its state moves."""
        assert self._step is not None
        given = Given(
            _gradients(layout, self._parameters),
            step_sizes=self._step_sizes.at(self._rates),
            moment=None if self._moments is None else self._moment(self._moments, layout),
            measure=self.ledger.due(self.channel.step),
            mark=self._mark,
        )
        sent = self.channel.send(layout, given)
        self._step.sent.append(sent)
        return sent

    def _check_terms(self, exchange: Exchange) -> None:
        """Refuse, on all workers alike, a batch that is too small for a rule that squares its samples' gradients."""
        for layout in self._layouts if self._moments is not None else ():
            assert self._moments is not None
            self._moments.check_terms(layout, self._moments.terms(layout), exchange)

    def _moment(self, moments: SecondMoments, layout: Layout) -> Tensor | None:
        errors: list[MomentError] = []
        moment = moments.take(layout, 1.0, errors)
        self._errors += errors
        return moment

    def _gather(self, exchange: Exchange, sent: Outgoing) -> Incoming:
        longest, what = longest_message(sent.layout), "a bucket"
        incoming = exchange.gather(sent.message, fixed=sent.fixed, longest=longest, what=what)
        self.ledger.add(incoming.traffic, sent.layout.numel, sent.norms, sent.elements)
        return incoming

    def _receive(self, sent: Outgoing, incoming: Incoming) -> Tensor:
        messages = incoming.wait()
        info = self.channel.parameters[sent.layout.pieces[0].name]
        out = torch.empty(sent.layout.numel, dtype=info.dtype, device=info.device)
        try:
            self.channel.receive(sent, messages, out)
        except ThinwireError as error:  # the others wait for the verdict, and must hear of it
            self._errors.append(error)
        return out

    def _attempt_judging(self) -> None:
        try:
            self.channel.judge()
        except ThinwireError as error:
            self._errors.append(error)

    def _tell_unsent(self, exchange: Exchange, sent: Sequence[Outgoing]) -> None:
        """Tell the others how much waits here, where it is measured: who stays knows then what a leaver takes along."""
        if not self.ledger.due(self.channel.step):
            return
        norms = [norm for one in sent for norm in one.norms.values() if norm.residual is not None]
        square = sum(float(norm.residual) * (norm.step_size or 1.0) ** 2 for norm in norms if norm.residual is not None)
        bits = struct.unpack("<q", struct.pack("<d", math.sqrt(square)))[0]
        rows = exchange.everyone([bits], "norms of what is not sent")
        unsent = [struct.unpack("<d", struct.pack("<q", number))[0] for (number,) in rows]
        self._unsent = {m: (self.channel.step, norm) for m, norm in zip(self.roster.members, unsent, strict=True)}

    def _taken_error(self) -> ThinwireError | None:
        errors, self._errors = self._errors, []
        return errors[0] if errors else None

    def _refuse(self, verdict: Verdict) -> bool:
        """Undo a step that all have agreed not to take."""
        self.ledger.finish(skipped=True)
        fault = verdict.fault
        self._abandon()
        if verdict.error is not None:
            raise verdict.error
        assert fault is not None
        if self._given.nonfinite == "raise":
            raise NonFiniteGradient(fault.rank, fault.parameter, self.channel.step, fault.overflows)
        return False

    @torch.no_grad()
    def _write(self, layout: Layout, answer: Tensor) -> None:
        """Put the exchanged gradient where the optimizer looks for it."""
        for piece, view in layout.views(answer):
            parameter = self._parameters[piece.name]
            gradient = view.view(piece.shape)
            if parameter.grad is None:
                parameter.grad = gradient.clone()
            else:
                parameter.grad.copy_(gradient)

    def commit(self) -> None:
        """Take the step that is open, as all others do."""
        step, self._step = self._step, None
        if step is None:
            raise QuorumError("no step is open: call exchange first")
        step.commit_()
        self.chronicle = self.chronicle.taken(step.epoch, step.step)
        self._doubt = step
        self._clear_moments()
        self.ledger.finish(skipped=False)

    def revoke(self) -> None:
        """Take back the step that is open, or that could not even begin; its gradient waits in the memory (`fold`)."""
        if self._step is None:
            self._begin()
        step = self._step
        assert step is not None
        for layout in self._layouts[len(step.sent) :]:
            self._send(layout)
        step.revoke_(self._step_sizes.at(self._rates))
        self._step, self._doubt, self._errors = None, step, []
        self._clear_moments()
        self.ledger.finish(skipped=True)

    def _abandon(self) -> None:
        self._step = None
        self.channel.abandon()

    def _clear_moments(self) -> None:
        if self._moments is not None:
            self._moments.clear()

    def owed(self) -> dict[str, Tensor]:
        """What this worker has not sent, by parameter: its memory, in the rule's units. Nothing of a rule without."""
        named = {name: rule.owes[0] for name, rule in self.channel.rules.items() if rule.owes}
        return {name: self.channel.worker.view(name, slot).clone() for name, slot in named.items()}

    # ------------------------------------------------------------------------------------------------------------ state

    def shared_state(self) -> dict[str, Any]:
        """What all workers have in common, for a newcomer to take: nothing of it is this worker's own."""
        state = save(self.channel)
        common = {f"{s.name}/{n}" for n in self.channel.parameters for s in self.channel.server.slots_of(n)}
        slots = {key: tensor for key, tensor in state["slots"].items() if key in common}
        history = {"members": list(self.roster.members), "eras": self.chronicle.numbers()}
        return {**state, "slots": slots, "history": history}

    def load_shared_state(self, state: Mapping[str, Any]) -> None:
        """Take what all workers have in common from one of them; what is this worker's own stays."""
        self._abandon()
        chronicle = Chronicle.of(state["history"]["eras"])
        if self._doubt is not None:
            self._doubt.settle_(chronicle.holds(self._doubt.epoch, self._doubt.step))
            self._doubt = None
        rescale_(self.channel, dict(state["step_sizes"]))
        self.channel.regroup_(0, (None,) * int(state["workers"]))
        own = {key: slot for key, slot in save(self.channel)["slots"].items() if key not in state["slots"]}
        prepared(self.channel, {**state, "slots": {**state["slots"], **own}}, "raise").commit_()
        self.roster, self.chronicle = Roster(tuple(state["history"]["members"])), chronicle
        self._unsent, self._exchange = {}, None


def check_resizable(rules: Iterable[Feedback]) -> None:
    """Refuse a rule that is made for one number of workers."""
    for rule, workers in product(dict.fromkeys(rules), (1, 2, 3)):
        try:
            rule.admit_workers(workers)
        except AttachError as error:
            raise AttachError(
                f"{rule} cannot be resized, and workers come and go here: {error}. Use ef21 in its place"
            ) from error


def _held_by_most(rows: Sequence[Sequence[int]], column: int) -> int:
    """The value that is right where workers differ: that of the run's members who have come furthest; of most of them;
    of the first."""
    members = [row for row in rows if row[4]] or rows
    furthest = max(row[5] for row in members)
    values = [row[column] for row in members if row[5] == furthest]
    return max(values, key=lambda value: (values.count(value), -values.index(value)))


def _buckets(channel: Channel) -> list[Layout]:
    """The parameters in their order, cut where type or device changes and where a message is long enough."""
    groups: list[list[str]] = []
    kind, numel = None, 0
    for name, info in channel.parameters.items():
        if kind != (info.dtype, info.device) or numel + info.numel > BUCKET:
            groups.append([])
            kind, numel = (info.dtype, info.device), 0
        groups[-1].append(name)
        numel += info.numel
    return [channel.layout(names) for names in groups]


def _gradients(layout: Layout, parameters: Mapping[str, Tensor]) -> Tensor:
    """The gradients of a bucket, flat; zeros of a parameter that was not used."""
    named = [parameters[piece.name] for piece in layout.pieces]
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1) for p in named])

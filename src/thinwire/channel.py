"""One worker's end: a rule, its state and its random keys; it turns gradients into bytes and bytes into gradients."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thinwire.errors import NonFiniteGradient
from thinwire.feedback import Need, Round, Rule, Signal, Slot, rule_of
from thinwire.feedback.auto import dense_form
from thinwire.feedback.family.participation import takes_part
from thinwire.hub import Answer, Answers, Hub, Shares
from thinwire.layout import Layout
from thinwire.ops import Key, first_nonfinite
from thinwire.outgoing import (
    Given,
    Norms,
    Outgoing,
    Sketched,
    Template,
    are_fixed,
    check_agreed,
    elements_of,
    expected_of,
    flagged,
    norms_of,
    overflow_of,
    sketched_of,
    summand_of,
    without,
)
from thinwire.owners import Owners
from thinwire.payload import Empty, Payload
from thinwire.payload.letter import FINITE, Contents, Expected, Letter, read, read_alike, read_late, rows_of, write
from thinwire.payload.sums import read_total
from thinwire.replay import Now, Replays
from thinwire.step import Clock, Fault, Part, Underway, Unjudged, held_of, parts_of
from thinwire.store import ParameterInfo, Store
from thinwire.whole import Whole

ALL_FINITE = torch.tensor(FINITE)
"""The flag of most letters."""
COMMON = 1
"""The place of what all ranks hold alike among a channel's stores."""


class Channel:
    """One worker's end of a rule over named parameters.

    A step is `send` and `receive` for each bucket, then `judge` and `finish`. If any rank's gradient was not finite,
    `finish` undoes the whole step on every rank: no state advances, in no bucket. On a GPU, `receive` does not wait
    for what it receives (unless sizes vary): `judge` looks at all of it at once.

    Channels of one process (`beside` another) have the server's state and the clock in common: one of them finishes a
    step for all, and the others `keep` what they did.

    >>> import torch
    >>> from thinwire import Channel, MemSGD, TopK
    >>> channel = Channel(MemSGD(TopK(0.1)), {"weight": torch.zeros(10, 3)}, rank=0, size=2)
    >>> channel.step, sorted(need.name for need in channel.needs), channel.layout(["weight"]).numel
    (0, ['STEP_SIZE'], 30)
    """

    def __init__(
        self,
        rule: Rule,
        parameters: Mapping[str, Tensor],
        *,
        rank: int,
        size: int,
        seed: int = 0,
        beside: Channel | None = None,
        owners: Owners | None = None,
    ) -> None:
        self.rule, self.rank, self.size, self.seed = rule, rank, size, seed
        infos = {name: ParameterInfo.of(i, p) for i, (name, p) in enumerate(parameters.items())}
        self.parameters = infos
        self.rules = {name: rule_of(rule, name, info.numel) for name, info in infos.items()}
        for each in set(self.rules.values()):
            each.admit_workers(size)
        self.hub = None if owners is None else Hub(owners, self.rules, infos, rank)
        """What this rank does of the server's work, where that is shared out (`exchange="server"`)."""
        self.rules = self.rules if self.hub is None else self.hub.rules
        self.worker = Store({n: [s for s in r.slots if s.per_worker] for n, r in self.rules.items()}, infos, size)
        common = {n: [s for s in r.slots if not (s.per_worker or self.is_owned(n, s))] for n, r in self.rules.items()}
        self.server: Store = beside.server if beside is not None else Store(common, infos, size)
        self.clock: Clock = beside.clock if beside is not None else Clock()
        self.run = 0
        """A number by which the states of one run are known from those of others."""
        self._underway = Underway(self.worker, self.server, self.clock)
        self._groups: dict[Layout, tuple[Part, ...]] = {}
        self._groups_of = self.started
        self._replays: Replays[Any] = Replays()
        self._name, self._agrees = str(rule), any(Need.AGREEMENT in each.needs for each in set(self.rules.values()))

    def is_owned(self, name: str, slot: Slot) -> bool:
        """Whether a common slot is kept by owners of shares, each its own."""
        return self.hub is not None and any(own.name == slot.name for own in self.hub.hops[name].slots)

    @property
    def stores(self) -> list[Store]:
        """All that is remembered: each worker's own, what all have in common, and a server's share."""
        return [self.worker, self.server, *([] if self.hub is None else [self.hub.store])]

    @property
    def step(self) -> int:
        """How many steps are finished."""
        return self.clock.now.step

    @step.setter
    def step(self, step: int) -> None:
        self.clock.now = replace(self.clock.now, step=step)

    @property
    def started(self) -> frozenset[str]:
        """The parameters that were exchanged before."""
        return self.clock.now.started

    @property
    def step_sizes(self) -> Mapping[str, float]:
        """The step size with which each parameter was exchanged last, where its rule needs one."""
        return self.clock.now.step_sizes

    @property
    def needs(self) -> frozenset[Need]:
        """All that the rules in use ask of the engine."""
        return frozenset[Need]().union(*(rule.needs for rule in self.rules.values()))

    @property
    def wants_full(self) -> bool:
        """Whether some rule asks for full gradients at this step."""
        return any(
            Need.FULL in rule.needs and (name not in self.started or rule.wants_full(self._key().shared()))
            for name, rule in self.rules.items()
        )

    @property
    def fault(self) -> Fault | None:
        """What was not finite in this step, as far as was judged; a rank may have to take it from another."""
        return self._underway.fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        self._underway.fault = fault

    @property
    def moving(self) -> bool:
        """Whether a step has begun that is neither finished nor abandoned."""
        return self._underway.has_begun

    def regroup_(self, rank: int, came_from: Sequence[int | None]) -> None:
        """Go on in another group of workers, between steps: as which rank, and as which of the old ranks each of the
        new ones was known before (None: a newcomer). A rule that is not made for so many workers raises, and nothing is
        changed. What each worker has of its own stays; `thinwire.engines.elastic` says what else is to be done."""
        for each in set(self.rules.values()):
            each.admit_workers(len(came_from))
        self.rank, self.size = rank, len(came_from)
        self._replays.clear()
        self.worker.workers = self.size
        self.server.regroup_(came_from)

    def layout(self, names: Sequence[str]) -> Layout:
        """The layout of a flat buffer that holds these parameters in this order."""
        return Layout.of([(name, self.parameters[name].index, self.parameters[name].shape) for name in names])

    # ------------------------------------------------------------------------------------------------------------ send

    def sketch(self, layout: Layout, given: Given) -> Sketched | None:
        """This worker's letter before that about one bucket, for rules with `Need.AGREEMENT`; None where there are
        none. What comes of everyone's goes into `Given.agreed`. Nothing advances."""
        if not self._agrees:
            return None
        parts = tuple(part for part in self._parts(layout, given.used) if Need.AGREEMENT in part.rule.needs)
        if not parts:
            return None
        flag, given = flagged(layout, given)
        signals = [self._signal(part, layout, given, self._rescale(part, given.step_sizes)) for part in parts]
        every = zip(parts, signals, strict=True)
        made = [each.rule.sketch(said, each.layout, self.worker.bind(each.layout), self._key()) for each, said in every]
        return sketched_of(parts, made, layout, self._expected(layout, parts, given.mark), flag, self.rank)

    def send(self, layout: Layout, given: Given) -> Outgoing:
        """This worker's letter about one bucket.

        What is given may hold NaN or infinity: then the letter's flag says so, and no rank takes the step.
        """
        parts, sizes = self._parts(layout, given.used), given.step_sizes
        expected = self._expected(layout, parts, given.mark)
        now = Now(self._key(), tuple(self._rescale(part, sizes) for part in parts), expected.digest)
        mute = [held_of(part, sizes) for part in parts]
        for part in parts:
            self._underway.begin_sending(part)
        alike = None if any(mute) or self.hub is not None else self._pattern(layout, parts, given)
        if alike is not None:
            return self._written_again(alike, layout, parts, given, expected, now)
        flag, payloads = self._said(layout, parts, given, now, mute)
        shares = None
        if self.hub is not None:
            asked = self.hub.asked(parts, now.ratios, given.step_sizes)
            shares = self.hub.shares(asked, payloads, expected, flag)
        return Outgoing(
            letter=write(payloads, expected.digest, flag, self.rank) if shares is None else shares.letters[self.rank],
            expected=expected,
            fixed=are_fixed(parts, payloads),
            elements=elements_of(payloads),
            layout=layout,
            parts=parts,
            scale=given.scale,
            norms=self._norms(layout, parts, given),
            summand=None if shares is not None else summand_of(parts, payloads, flag),
            shares=shares,
        )

    def _said(
        self, layout: Layout, parts: Sequence[Part], given: Given, now: Now, mute: Sequence[Collection[str]]
    ) -> tuple[Tensor, list[Payload]]:
        """What the rules of all parts say, behind the flag.

        Where what they choose can show that all was finite, nobody looks at the gradients before: 10 M take 1.7 ms.
        (Those of parameters that take no part are then not looked at either; they are not sent.)
        """
        if self._shows_all(parts, given, mute):
            payloads = self._payloads(layout, parts, given, now, mute)
            if all(payload.clears for payload in payloads):
                self._underway.clear(parts)
                return ALL_FINITE, payloads
            self._underway.take_back(parts)
        flag, given = flagged(layout, given)
        return flag, self._payloads(layout, parts, given, now, mute)

    def _shows_all(self, parts: Sequence[Part], given: Given, mute: Sequence[Collection[str]]) -> bool:
        """Whether what is said of some parts may show that all was finite: on a GPU nobody waits to see it."""
        shown = all(part.rule.shows_all and not part.first for part in parts)
        return shown and not (any(mute) or given.gradients.is_cuda)

    def _payloads(
        self, layout: Layout, parts: Sequence[Part], given: Given, now: Now, mute: Sequence[Collection[str]]
    ) -> list[Payload]:
        """What the rules of all parts say."""
        signals = [self._signal(part, layout, given, ratios) for part, ratios in zip(parts, now.ratios, strict=True)]
        every = zip(parts, signals, mute, strict=True)
        return [self._payload(part, signal, held, now.key) for part, signal, held in every]

    def _pattern(self, layout: Layout, parts: Sequence[Part], given: Given) -> Hashable | None:
        """What a step has in common with those in which the GPU does the same with other numbers; None if nothing."""
        if not given.gradients.is_cuda or given.moment is not None or given.previous is not None:
            return None
        patterns = tuple(part.rule.pattern(self._key()) for part in parts)
        if None in patterns or any(part.rule.varies or part.rule.participation < 1 for part in parts):
            return None
        return layout, parts, patterns, given.scale, given.gradients.dtype, self.seed

    @property
    def _recorded(self) -> Replays[Any]:
        """What was recorded: nothing, where state was laid out anew since."""
        return self._replays.at((self.worker.packings, self.server.packings))

    def _written_again(
        self, alike: Hashable, layout: Layout, parts: tuple[Part, ...], given: Given, expected: Expected, now: Now
    ) -> Outgoing:
        """A letter as in steps before, from work that is recorded when it has come often enough."""

        def work(read: Sequence[Tensor], written: Sequence[Tensor], now: Now) -> tuple[list[Tensor], Template]:
            own = replace(given, gradients=read[0])
            flag, payloads = self._said(layout, parts, own, now, [()] * len(parts))
            assert now.digest is not None
            letter, fixed = write(payloads, now.digest, flag, self.rank), are_fixed(parts, payloads)
            return [letter.message], Template(letter.fields, fixed, elements_of(payloads))

        stepped = tuple(ratios is None for ratios in now.ratios)
        (message,), template = self._recorded.do(("send", alike, stepped), [given.gradients], [], now, work)
        return Outgoing(
            letter=Letter(message, template.fields).about(expected.digest),
            expected=expected,
            fixed=template.fixed,
            elements=template.elements,
            layout=layout,
            parts=parts,
            scale=given.scale,
            norms=self._norms(layout, parts, given),
            alike=alike,
        )

    def _parts(self, layout: Layout, used: Sequence[bool] | None) -> tuple[Part, ...]:
        """The bucket's pieces grouped by rule and by whether they were exchanged before.

        Where all are used the groups are kept until another parameter starts: 3 µs a parameter to find them anew.
        """
        if used is not None:
            return parts_of(layout, used, self.rules, self.started)
        if self._groups_of is not self.started:
            self._groups, self._groups_of = {}, self.started
        if layout not in self._groups:
            self._groups[layout] = parts_of(layout, [True] * len(layout.pieces), self.rules, self.started)
        return self._groups[layout]

    def _signal(self, part: Part, layout: Layout, given: Given, ratios: Sequence[float] | None) -> Signal:
        """What the rule of a part is told."""
        dtype, needs = self._dtype(part), part.rule.needs
        moment = given.moment if Need.MOMENTS in needs else None
        previous = given.previous if Need.PREVIOUS in needs else None
        return Signal(
            value=part.take(given.gradients, layout, dtype, given.scale),
            rescale=ratios,
            first=part.first,
            moment=None if moment is None else part.take(moment, layout, dtype, 1.0),
            previous=None if previous is None else part.take(previous, layout, dtype, given.scale),
            workers=self.size,
            agreed=None if given.agreed is None else given.agreed.get(part.places),
        )

    def _rescale(self, part: Part, step_sizes: Mapping[str, float] | None) -> tuple[float, ...] | None:
        """Previous step size / this one, for each piece, where the rule needs it.

        None too where no step size has moved. Remembers this one for the next step, and for whoever asks what a rule
        still owes.
        """
        needed = Need.STEP_SIZE in part.rule.needs
        if step_sizes is None or not (needed or part.rule.owes):
            return None
        now, before = {piece.name: step_sizes[piece.name] for piece in part.layout.pieces}, self.step_sizes
        self._underway.step_sizes.update({name: size for name, size in now.items() if 0 < size < math.inf})
        if not needed:
            return None
        ratios = tuple(before[name] / s if s and before.get(name, s) != s else 1.0 for name, s in now.items())
        return None if all(ratio == 1.0 for ratio in ratios) else ratios

    def _payload(self, part: Part, signal: Signal, held: Collection[str], key: Key) -> Payload:
        """What the rule says; about parameters that are held, nothing."""
        if not part.first and not takes_part(part.rule, key):
            return Empty()
        if not held:
            return self._sent(part, signal, key)
        self._underway.held.update(held)
        nothing = replace(signal, value=without(held, part.layout, signal.value.clone()))
        self.worker.clear_pieces(part.layout, held)
        payload = self._sent(part, nothing, key)
        self.worker.restore_pieces(part.layout, held)
        return payload

    def _sent(self, part: Part, signal: Signal, key: Key) -> Payload:
        """The rule's message, and its state as it is kept until the next one."""
        check_agreed(part, signal)
        state = self.worker.bind(part.layout)
        if part.rule.reads_common:
            state = state | self.server.bind(part.layout)
        payload = part.rule.send(signal, part.layout, state, key)
        self.worker.put(part.layout, state, key)
        return payload

    def _norms(self, layout: Layout, parts: Sequence[Part], given: Given) -> Mapping[str, Norms]:
        """What the ledger wants to know of what was given and not sent, if it does."""
        if not given.measure:
            return {}
        _, given = flagged(layout, given)
        measured = [self._measure(part, self._signal(part, layout, given, None)) for part in parts]
        return {name: norms for each in measured for name, norms in each.items()}

    def _measure(self, part: Part, signal: Signal) -> dict[str, Norms]:
        residual = part.rule.residual(signal, self.worker.bind(part.layout))
        needed = Need.STEP_SIZE in part.rule.needs
        sizes = {**self.step_sizes, **self._underway.step_sizes} if needed else {}  # in whose units the memories are
        return norms_of(signal.value, residual, part.layout, sizes)

    def _expected(self, layout: Layout, parts: Sequence[Part], mark: int) -> Expected:
        """What every rank's letter about this bucket must have in common with this rank's."""
        dtypes = [self._dtype(part) for part in parts]
        return expected_of(layout, parts, dtypes, mark, self._name, self._key())

    def dense_twin(self) -> Channel:
        """The same end, state and step under way, with rules that leave nothing out (`dense_form`)."""
        twin = Channel(self.rule, {}, rank=self.rank, size=self.size, seed=self.seed, beside=self)
        twin.parameters, twin.worker, twin._underway = self.parameters, self.worker, self._underway
        twin.rules = {name: dense_form(rule) for name, rule in self.rules.items()}
        return twin

    def whole(self, layout: Layout, given: Given) -> Whole:
        """All that this worker has to say of one bucket, its memory with it, where rules leave nothing out.

        Where what is given or remembered is not finite, neither is the mean over ranks: all see it in what they
        receive.
        """
        flag, clean = flagged(layout, given)
        parts, sizes = self._parts(layout, clean.used), clean.step_sizes
        mute = [held_of(part, sizes) for part in parts]
        payloads: list[Payload] = []
        for part, held in zip(parts, mute, strict=True):
            signal = self._signal(part, layout, clean, self._rescale(part, sizes))
            self._underway.begin_sending(part)
            payloads.append(self._payload(part, signal, held, self._key()))
        spoilt = self._underway.overflow(parts) if int(flag) == FINITE else layout.pieces[int(flag)].name
        return Whole.of(payloads, layout, parts, given.scale, frozenset[str]().union(*mute), spoilt)

    # --------------------------------------------------------------------------------------------------------- receive

    def receive(self, sent: Outgoing, messages: Sequence[Tensor] | Tensor, out: Tensor) -> Tensor:
        """Write the exchanged gradient, times the scale, into `out`: NaN if any rank's gradient was not finite."""
        if out.is_cuda and sent.fixed:
            return self._receive_unjudged(sent, messages, out)
        contents = read_alike(messages, sent.letter, sent.expected) if sent.fixed else read(messages, sent.expected)
        return self._received(sent, contents.flags, contents.payloads, out)

    def _received(
        self, sent: Outgoing, flags: Sequence[int], payloads: Sequence[Sequence[Payload]], out: Tensor
    ) -> Tensor:
        overflow = FINITE
        if all(flag == FINITE for flag in flags):
            self._begin_receiving(sent)
            self._receive_parts(sent, payloads, out, self._key())
            overflow = overflow_of(out, sent, payloads)
            for part in sent.parts if overflow == FINITE else ():
                if part.rule.hands_over_common:
                    self._underway.clear_in(self.server, part.layout)
        refused = self._underway.refuse(sent.layout, flags, overflow)
        return out.fill_(math.nan) if refused else out

    def receive_total(
        self, sent: Outgoing, flags: Sequence[int], messages: Sequence[Tensor] | Tensor, out: Tensor
    ) -> Tensor:
        """As `receive`, of messages that were added up on their way: all ranks' flags, and the totals of shares."""
        assert sent.summand is not None
        total = read_total(messages, sent.summand, sent.expected)
        return self._received(sent, flags, [total], out)

    def receive_means(self, sent: Whole, numbers: Tensor, beside: Tensor | None, out: Tensor) -> Tensor:
        """As `receive`, of what all ranks say on average."""
        self._begin_receiving(sent)
        self._receive_parts(sent, [[payload] for payload in sent.of_means(numbers, beside)], out, self._key())
        self.look_at(out, sent.layout)
        return out

    def look_at(self, out: Tensor, layout: Layout) -> None:
        """Note whether what all ranks hold alike is finite; on a GPU, when it is judged."""
        if not out.is_cuda:
            self._underway.refuse(layout, (), int(first_nonfinite(out, layout)))
            return

        def work(read: Sequence[Tensor], written: Sequence[Tensor], now: Now) -> tuple[list[Tensor], None]:
            fine = torch.ones(self.size, dtype=torch.int64, device=out.device)
            return [torch.cat([fine.neg(), fine, first_nonfinite(read[0], layout).view(1)])], None

        (verdict,), _ = self._replays.do(("look", layout, out.dtype), [out], [], Now(self._key()), work)
        self._underway.unjudged.append(Unjudged((), None, layout, out, verdict))

    def _receive_unjudged(self, sent: Outgoing, messages: Sequence[Tensor] | Tensor, out: Tensor) -> Tensor:
        """Decode by the fields of one's own letter; whether that was right is left to `judge`."""
        rows = messages if isinstance(messages, Tensor) else rows_of(messages, sent.message.numel())

        def work(read: Sequence[Tensor], written: Sequence[Tensor], now: Now) -> tuple[list[Tensor], None]:
            letter, expected = Letter(read[1], sent.letter.fields), replace(sent.expected, key=now.key)
            contents = read_late(read[0], letter, expected)
            self._receive_parts(sent, contents.payloads, written[0], now.key)
            overflow = first_nonfinite(written[0], sent.layout).view(1)
            return [torch.cat([contents.flags, contents.sound, overflow])], None

        self._begin_receiving(sent)
        what = None if sent.alike is None else ("receive", sent.alike, rows.shape, out.dtype)
        (verdict,), _ = self._recorded.do(what, [rows, sent.message], [out], Now(self._key()), work)
        self._underway.unjudged.append(Unjudged(rows, sent.expected, sent.layout, out, verdict))
        return out

    def _begin_receiving(self, sent: Outgoing | Whole) -> None:
        for part in sent.parts:
            self._underway.begin_receiving(part)

    def _receive_parts(
        self, sent: Outgoing | Whole, payloads: Sequence[Sequence[Payload]], out: Tensor, key: Key
    ) -> None:
        if sum(len(part.places) for part in sent.parts) < len(sent.layout.pieces):
            out.zero_()  # some parameters took no part
        for part, every in zip(sent.parts, payloads, strict=True):
            self._receive_part(part, every, sent, out, key)

    def _receive_part(
        self, part: Part, payloads: Sequence[Payload], sent: Outgoing | Whole, out: Tensor, key: Key
    ) -> None:
        alone = len(part.places) == len(sent.layout.pieces) and out.dtype == self._dtype(part)
        result = out if alone else torch.empty(part.layout.numel, dtype=self._dtype(part), device=out.device)
        state = self.server.bind(part.layout)
        if isinstance(payloads, Answers):
            payloads.hop.hear(payloads, state, result, payloads.beside)
        else:
            part.rule.receive(Round(payloads, key.shared(), part.first), part.layout, state, result)
        if sent.scale != 1.0:
            result.mul_(sent.scale)
        if not alone:
            part.put(result, out, sent.layout)

    def opened(self, sent: Outgoing, messages: Sequence[Tensor] | Tensor) -> Contents:
        """What all ranks say to this one as the owner of its shares."""
        hub, shares = self._served(sent)
        return hub.opened(shares, messages, sent.expected)

    def answer(self, sent: Outgoing, contents: Contents | None) -> Answer:
        """What this owner then has to tell everyone; None where it could not be read what it was told."""
        hub, shares = self._served(sent)
        return hub.answer(shares, contents, sent.expected, self._underway)

    def receive_answers(self, sent: Outgoing, own: Answer, messages: Sequence[Tensor] | Tensor, out: Tensor) -> Tensor:
        """As `receive`, of what all owners have answered; every rank's flag was told to each of them."""
        hub, shares = self._served(sent)
        assert own.flags is not None
        return self._received(sent, own.flags, hub.heard(shares, own, messages, sent.expected), out)

    def _served(self, sent: Outgoing) -> tuple[Hub, Shares]:
        assert self.hub is not None
        assert sent.shares is not None
        return self.hub, sent.shares

    # --------------------------------------------------------------------------------------------------- end of a step

    def judge(self) -> None:
        """Look at what was received without waiting, and at what is remembered: the one wait of a step for the GPU.

        Where a gradient was not finite, `out` becomes NaN; a message that was not sound is a `WireError`. A memory that
        overflows is this rank's own `fault`: whoever drives the channels sees to it that all of them hear of it.
        """
        self._underway.judge(self.rank, self.size)

    def look(self) -> None:
        """Begin what `judge` ends by waiting."""
        self._underway.look()

    def refused(self) -> Tensor | None:
        """1 where `judge` will find anything wrong, else 0: on a GPU, which nobody waits for. None on a CPU."""
        return self._underway.refused()

    def finish(self) -> NonFiniteGradient | None:
        """End the step: keep what was done, or undo all of it and say whose gradient was not finite."""
        self.judge()
        if (fault := self.fault) is not None:
            self.abandon()
            return NonFiniteGradient(fault.rank, fault.parameter, self.step, fault.overflows)
        self._underway.finish()
        return None

    def abandon(self) -> None:
        """Undo all that was done since the last `finish`."""
        self.undo_()
        self.clock.abandon()

    def undo_(self) -> None:
        """Undo what this channel did in a step that is to be abandoned."""
        self._underway.undo_()

    def keep(self) -> None:
        """Let go of what `undo_` would need."""
        self._underway.forget()

    def _dtype(self, part: Part) -> torch.dtype:
        return self.parameters[part.layout.pieces[0].name].state_dtype

    def _key(self) -> Key:
        return Key(self.seed, self.step, self.rank)

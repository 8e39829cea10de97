"""One worker's end: a rule, its state and its random keys; it turns gradients into bytes and bytes into gradients."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from thinwire.errors import NonFiniteGradient
from thinwire.feedback import Feedback, Need, Round, Rule, Signal, Slot, rule_of
from thinwire.feedback.auto import dense_form
from thinwire.feedback.family.participation import takes_part
from thinwire.hub import Answer, Answers, Hub, Shares, Subject
from thinwire.layout import Layout
from thinwire.ops import Key, first_nonfinite
from thinwire.owners import Owners
from thinwire.payload import Empty, Payload
from thinwire.payload.base import Count, both_counts
from thinwire.payload.letter import FINITE, Contents, Expected, Letter, read, read_late, write
from thinwire.payload.sums import Summand, read_total
from thinwire.step import Clock, Fault, Part, Underway, Unjudged, part_of
from thinwire.store import ParameterInfo, Store
from thinwire.whole import Whole

COMMON = 1
"""The place of what all ranks hold alike among a channel's stores."""


@dataclass(frozen=True)
class Given:
    """What one worker gives for one bucket, laid out as the bucket is; none of it is changed."""

    gradients: Tensor
    """Times `scale`."""
    step_sizes: Mapping[str, float] | None = None
    """Of every parameter. Where a rule needs one and it is zero, the parameter's state stays as it is, and zeros are
    sent for it: no size of a message may depend on what one rank alone believes."""
    scale: float = 1.0
    """The loss scale, by which the result is multiplied again."""
    used: Sequence[bool] | None = None
    """Which pieces some rank used; the others take no part, and their state stays as it is."""
    moment: Tensor | None = None
    """Second moments where a rule needs them, zeros elsewhere; *not* scaled."""
    previous: Tensor | None = None
    """Gradients of the same samples at the previous point, times `scale`."""
    measure: bool = False
    """Whether the ledger wants norms."""
    mark: int = 0
    """A number that all ranks must have in common, such as a digest of the step sizes."""


@dataclass(frozen=True)
class Norms:
    """Squared norms of one worker's gradient and of what it has not said, for one parameter."""

    gradient: Tensor
    residual: Tensor | None
    step_size: float | None = None
    """The step size that both are to be multiplied by, where the rule keeps its memory in units of updates."""


@dataclass(frozen=True)
class Outgoing:
    """A letter on its way, and what is needed to read the answers."""

    letter: Letter
    expected: Expected
    fixed: bool
    """Whether every rank's letter is as long as this one."""
    elements: Count
    """How many numbers the letter holds, where its formats count them."""
    layout: Layout
    parts: tuple[Part, ...]
    scale: float
    norms: Mapping[str, Norms]
    summand: Summand | None = None
    """What may be added up on its way in place of the letter."""
    shares: Shares | None = None
    """Letters to every owner in place of the letter, which is then this rank's to itself."""

    @property
    def message(self) -> Tensor:
        """The bytes that travel."""
        return self.letter.message


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
        self._name, self._method = str(rule), zlib.crc32(str(rule).encode())

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
        self.worker.workers = self.size
        self.server.regroup_(came_from)

    def layout(self, names: Sequence[str]) -> Layout:
        """The layout of a flat buffer that holds these parameters in this order."""
        return Layout.of([(name, self.parameters[name].index, self.parameters[name].shape) for name in names])

    # ------------------------------------------------------------------------------------------------------------ send

    def send(self, layout: Layout, given: Given) -> Outgoing:
        """This worker's letter about one bucket.

        What is given may hold NaN or infinity: then the letter's flag says so, and no rank takes the step.
        """
        flag, given = _flagged(layout, given)
        parts = self._parts(layout, given.used)
        payloads: list[Payload] = []
        norms: dict[str, Norms] = {}
        for part in parts:
            signal = self._signal(part, layout, given)
            payloads.append(self._payload(part, signal, self._held(part, given.step_sizes)))
            if given.measure:
                norms |= self._measure(part, signal)
        expected = self._expected(layout, parts, given.mark)
        shares = self._shares(parts, payloads, expected, flag, given)
        return Outgoing(
            letter=write(payloads, expected.digest, flag, self.rank) if shares is None else shares.letters[self.rank],
            expected=expected,
            fixed=all(payload.fixed and not p.rule.varies for p, payload in zip(parts, payloads, strict=True)),
            elements=_elements(payloads),
            layout=layout,
            parts=parts,
            scale=given.scale,
            norms=norms,
            summand=None if shares is not None else _summand(parts, payloads, flag),
            shares=shares,
        )

    def _shares(
        self, parts: Sequence[Part], payloads: Sequence[Payload], expected: Expected, flag: Tensor, given: Given
    ) -> Shares | None:
        """What goes to each owner, where the server's work is shared out."""
        if self.hub is None:
            return None
        sizes = given.step_sizes
        asked = [
            Subject(part, self.hub.owners.cut(part.layout), self._rescale(part, sizes), self._held(part, sizes))
            for part in parts
        ]
        return self.hub.shares(asked, payloads, expected, flag)

    def _parts(self, layout: Layout, used: Sequence[bool] | None) -> tuple[Part, ...]:
        """The bucket's pieces grouped by rule and by whether they were exchanged before.

        Where all are used the groups are kept until another parameter starts: 3 µs a parameter to find them anew.
        """
        if used is not None:
            return self._grouped(layout, used)
        if self._groups_of is not self.started:
            self._groups, self._groups_of = {}, self.started
        if layout not in self._groups:
            self._groups[layout] = self._grouped(layout, [True] * len(layout.pieces))
        return self._groups[layout]

    def _grouped(self, layout: Layout, used: Sequence[bool]) -> tuple[Part, ...]:
        groups: dict[tuple[Feedback, bool], list[int]] = {}
        for place, piece in enumerate(layout.pieces):
            if used[place]:
                groups.setdefault((self.rules[piece.name], piece.name not in self.started), []).append(place)
        return tuple(part_of(layout, rule, first, tuple(places)) for (rule, first), places in groups.items())

    def _signal(self, part: Part, layout: Layout, given: Given) -> Signal:
        """What the rule of a part is told."""
        dtype, needs = self._dtype(part), part.rule.needs
        moment = given.moment if Need.MOMENTS in needs else None
        previous = given.previous if Need.PREVIOUS in needs else None
        return Signal(
            value=part.take(given.gradients, layout, dtype, given.scale),
            rescale=self._rescale(part, given.step_sizes),
            first=part.first,
            moment=None if moment is None else part.take(moment, layout, dtype, 1.0),
            previous=None if previous is None else part.take(previous, layout, dtype, given.scale),
            workers=self.size,
        )

    def _rescale(self, part: Part, step_sizes: Mapping[str, float] | None) -> tuple[float, ...] | None:
        """Previous step size / this one, for each piece, where the rule needs it.

        Remembers this one for the next step, and for whoever asks what a rule still owes.
        """
        needed = Need.STEP_SIZE in part.rule.needs
        if step_sizes is None or not (needed or part.rule.owes):
            return None
        now, before = {piece.name: step_sizes[piece.name] for piece in part.layout.pieces}, self.step_sizes
        self._underway.step_sizes.update({name: size for name, size in now.items() if 0 < size < math.inf})
        if not needed:
            return None
        return tuple(before[name] / s if s and before.get(name, s) != s else 1.0 for name, s in now.items())

    def _held(self, part: Part, step_sizes: Mapping[str, float] | None) -> set[str]:
        """Parameters about which nothing can be said in units of updates, for their step size is zero."""
        if step_sizes is None or Need.STEP_SIZE not in part.rule.needs:
            return set()
        return {piece.name for piece in part.layout.pieces if step_sizes[piece.name] == 0}

    def _payload(self, part: Part, signal: Signal, held: Collection[str]) -> Payload:
        """What the rule says; about parameters that are held, nothing."""
        self._underway.begin_sending(part)
        if not part.first and not takes_part(part.rule, self._key()):
            return Empty()
        if not held:
            return self._sent(part, signal)
        self._underway.held.update(held)
        nothing = replace(signal, value=_without(held, part.layout, signal.value.clone()))
        self.worker.clear_pieces(part.layout, held)
        payload = self._sent(part, nothing)
        self.worker.restore_pieces(part.layout, held)
        return payload

    def _sent(self, part: Part, signal: Signal) -> Payload:
        """The rule's message, and its state as it is kept until the next one."""
        state = self.worker.bind(part.layout)
        if part.rule.reads_common:
            state = state | self.server.bind(part.layout)
        payload = part.rule.send(signal, part.layout, state, self._key())
        self.worker.put(part.layout, state, self._key())
        return payload

    def _measure(self, part: Part, signal: Signal) -> dict[str, Norms]:
        residual = part.rule.residual(signal, self.worker.bind(part.layout))
        needed = Need.STEP_SIZE in part.rule.needs
        sizes = {**self.step_sizes, **self._underway.step_sizes} if needed else {}  # in whose units the memories are
        return {
            piece.name: Norms(
                view.square().sum(),
                None if residual is None else residual[piece.part].square().sum(),
                sizes.get(piece.name),
            )
            for piece, view in part.layout.views(signal.value)
        }

    def _expected(self, layout: Layout, parts: Sequence[Part], mark: int) -> Expected:
        """What every rank's letter about this bucket must have in common with this rank's."""
        marks = [mark, layout.digest, *(part.layout.digest ^ part.first for part in parts)]
        common = struct.pack(f"<QQQ{len(marks)}I", self._method, self.seed % (1 << 64), self.step, *marks)
        return Expected(
            digest=zlib.crc32(common),
            subject=f"step {self.step} of {self._name}",
            pieces=len(layout.pieces),
            parts=tuple((part.layout, self._dtype(part)) for part in parts),
            key=self._key(),
        )

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
        flag, clean = _flagged(layout, given)
        parts, sizes = self._parts(layout, clean.used), clean.step_sizes
        mute = [self._held(part, sizes) for part in parts]
        payloads = [
            self._payload(part, self._signal(part, layout, clean), held) for part, held in zip(parts, mute, strict=True)
        ]
        spoilt = self._underway.overflow(parts) if int(flag) == FINITE else layout.pieces[int(flag)].name
        return Whole.of(payloads, layout, parts, given.scale, frozenset[str]().union(*mute), spoilt)

    # --------------------------------------------------------------------------------------------------------- receive

    def receive(self, sent: Outgoing, messages: Sequence[Tensor] | Tensor, out: Tensor) -> Tensor:
        """Write the exchanged gradient, times the scale, into `out`: NaN if any rank's gradient was not finite."""
        if out.is_cuda and sent.fixed:
            return self._receive_unjudged(sent, messages, out)
        contents = read(messages, sent.expected)
        return self._received(sent, contents.flags, contents.payloads, out)

    def _received(
        self, sent: Outgoing, flags: Sequence[int], payloads: Sequence[Sequence[Payload]], out: Tensor
    ) -> Tensor:
        overflow = FINITE
        if all(flag == FINITE for flag in flags):
            self._receive_parts(sent, payloads, out)
            overflow = int(first_nonfinite(out, sent.layout))
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
        self._receive_parts(sent, [[payload] for payload in sent.of_means(numbers, beside)], out)
        self.look_at(out, sent.layout)
        return out

    def look_at(self, out: Tensor, layout: Layout) -> None:
        """Note whether what all ranks hold alike is finite."""
        self._underway.refuse(layout, (), int(first_nonfinite(out, layout)))

    def _receive_unjudged(self, sent: Outgoing, messages: Sequence[Tensor] | Tensor, out: Tensor) -> Tensor:
        """Decode by the fields of one's own letter; whether that was right is left to `judge`."""
        contents = read_late(messages, sent.letter, sent.expected)
        self._receive_parts(sent, contents.payloads, out)
        verdict = torch.cat([contents.flags, contents.sound, first_nonfinite(out, sent.layout).view(1)])
        self._underway.unjudged.append(Unjudged(messages, sent.expected, sent.layout, out, verdict))
        return out

    def _receive_parts(self, sent: Outgoing | Whole, payloads: Sequence[Sequence[Payload]], out: Tensor) -> None:
        if sum(len(part.places) for part in sent.parts) < len(sent.layout.pieces):
            out.zero_()  # some parameters took no part
        for part, every in zip(sent.parts, payloads, strict=True):
            self._receive_part(part, every, sent, out)

    def _receive_part(self, part: Part, payloads: Sequence[Payload], sent: Outgoing | Whole, out: Tensor) -> None:
        self._underway.begin_receiving(part)
        alone = len(part.places) == len(sent.layout.pieces) and out.dtype == self._dtype(part)
        result = out if alone else torch.empty(part.layout.numel, dtype=self._dtype(part), device=out.device)
        state = self.server.bind(part.layout)
        if isinstance(payloads, Answers):
            payloads.hop.hear(payloads, state, result, payloads.beside)
        else:
            part.rule.receive(Round(payloads, self._key().shared(), part.first), part.layout, state, result)
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


def longest_message(layout: Layout) -> int:
    """A bound in bytes that no message about these parameters reaches, whatever its format."""
    return 1024 + 256 * len(layout.pieces) + 32 * layout.numel


def _flagged(layout: Layout, given: Given) -> tuple[Tensor, Given]:
    """The place of the first piece that is not finite, and what is sent: on a CPU zeros in place of such numbers.

    On a GPU nobody waits to know: whatever is sent is refused.
    """
    flag = first_nonfinite(given.gradients, layout)
    for more in (given.moment, given.previous):
        if more is not None:
            flag = torch.where(flag == FINITE, first_nonfinite(more, layout), flag)
    if flag.is_cuda or int(flag) == FINITE:
        return flag, given
    zeros = torch.zeros_like(given.gradients)
    moment, previous = (None if more is None else zeros for more in (given.moment, given.previous))
    return flag, replace(given, gradients=zeros, moment=moment, previous=previous)


def _elements(payloads: Sequence[Payload]) -> Count:
    total: Count = 0
    for payload in payloads:
        total = both_counts(total, payload.elements)
    return total


def _summand(parts: Sequence[Part], payloads: Sequence[Payload], flag: Tensor) -> Summand | None:
    """The numbers of a message about parameters of one rule, where that rule wants no more than their mean.

    On a GPU there is none so far: who has the sum only has to wait to know whether it is sound.
    """
    if len(parts) != 1 or not parts[0].rule.averages or flag.is_cuda:
        return None
    numbers = payloads[0].summand
    return None if numbers is None else Summand(payloads[0], numbers, flag)


def _without(names: Collection[str], layout: Layout, flat: Tensor) -> Tensor:
    """Set some pieces to zero, in place."""
    for piece, view in layout.views(flat):
        if piece.name in names:
            view.zero_()
    return flat

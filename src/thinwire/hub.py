"""One rank's own share of a server: the letters that workers write to each owner, and the owner's answer to all."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, final

import torch
from torch import Tensor

from thinwire.compressors import Compressor
from thinwire.compressors.on_shares import OnShares
from thinwire.errors import AttachError, WireError
from thinwire.feedback import Feedback, Round
from thinwire.feedback.second_hop import Question, SecondHop
from thinwire.layout import Layout
from thinwire.ops import Key, add_each_at_
from thinwire.owners import Cut, Owners
from thinwire.payload import Beside, Dense, Empty, Payload, Payloads, Positioned, Reader
from thinwire.payload.letter import FINITE, Contents, Expected, Letter, framed, read, read_alike, read_one, write
from thinwire.payload.message import size
from thinwire.payload.nested import are_moments
from thinwire.step import Part, Underway, held_of
from thinwire.store import ParameterInfo, Store

TO_OWNER, TO_ALL = 1, 2
"""The hops: a letter of one is never taken for a letter of the other, nor for one to another owner."""


@final
@dataclass(frozen=True, eq=False)
class Answers(Payloads):
    """What every owner has told of its own numbers, as one message about all of them."""

    answers: Sequence[Payload]
    cut: Cut
    hop: SecondHop
    beside: Sequence[Tensor] = ()
    """What each worker told every owner beside its message."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, place: object) -> NoReturn:
        raise TypeError("answers stand for one message only together")

    def add_to(self, out: Tensor, alpha: float | Sequence[float] = 1.0) -> Tensor:
        """out += what all have answered; no number is told of twice."""
        assert alpha == 1.0
        placed = [(rank, one) for rank, one in enumerate(self.answers) if isinstance(one, Positioned)]
        add_each_at_(
            out,
            [self.cut.home(rank, one.positions) for rank, one in placed],
            [one.values.to(out.dtype) for _, one in placed],
            1.0,
        )
        others = {rank: one for rank, one in enumerate(self.answers) if not isinstance(one, Positioned | Empty)}
        held = self.cut.take(out) if others else ()
        for rank, one in others.items():
            self.cut.put_(out, rank, one.add_to(held[rank]))
        return out


@dataclass(frozen=True)
class Subject:
    """One part of a bucket as it goes to its owners, beside the letters."""

    part: Part
    cut: Cut
    ratios: Sequence[float] | None
    """Previous step size / this one, for each piece."""
    held: Collection[str]
    """Parameters about which nothing is said, for their step size is zero."""


@dataclass(frozen=True)
class Shares:
    """What one worker says of a bucket: a letter for each owner."""

    letters: Sequence[Letter]
    fixed: bool
    """Whether every rank's letter to an owner is as long as this one's."""
    alike: bool
    """Whether an owner's answer is as long as a letter to it."""
    asked: Sequence[Subject]
    elements: Sequence[int]
    """How many numbers go to each owner, where the format counts them."""
    beside: Sequence[Tensor | None]
    """For each part what every owner is told beside a worker's message, in any case."""

    @property
    def sizes(self) -> list[int]:
        """Bytes of each letter."""
        return [letter.message.numel() for letter in self.letters]

    @property
    def answer_sizes(self) -> list[int] | None:
        """How long each owner's answer is: as long as what it was told of its numbers; None where nobody can know."""
        more = sum(size(framed(payload)) for payload in _besides(self.beside))
        return [own - more for own in self.sizes] if self.fixed and self.alike else None


@dataclass(frozen=True)
class Answer:
    """What an owner tells everyone of a bucket."""

    message: Tensor
    flags: Sequence[int] | None
    """Every rank's flag; None where a letter could not be read."""
    beside: Sequence[Sequence[Tensor]]
    """For each part what every rank has told beside its message."""


class Hub:
    """The second hop on one rank: what it keeps for the numbers that it owns, and what it answers.

    Workers send each owner what they have to say of its numbers. It adds that up in rank order, and tells everyone what
    its rule makes of it: for Mem-SGD the largest of its own memory, which keeps the rest.
    """

    def __init__(
        self, owners: Owners, rules: Mapping[str, Feedback], infos: Mapping[str, ParameterInfo], rank: int
    ) -> None:
        self.owners, self.rank = owners, rank
        self.hops = {name: _second_hop(rule) for name, rule in rules.items()}
        self.rules = {name: _on_shares(rule, owners, name, infos[name].numel) for name, rule in rules.items()}
        self._hop_of = {self.rules[name]: hop for name, hop in self.hops.items()}
        own = {name: own for name, info in infos.items() if (own := _own(info, owners, rank)) is not None}
        self.store = Store({name: self.hops[name].slots for name in own}, own, owners.ranks)

    def share(self, name: str, info: ParameterInfo) -> slice | None:
        """Which numbers of a parameter are this rank's own."""
        return self.owners.share(info.shape, info.index, self.rank)

    def forget_(self, name: str) -> None:
        """Empty what is kept of a parameter, once it was handed over."""
        owed = self.hops[name].owes
        if name in self.store.parameters and owed is not None:
            self.store.write(name, owed, torch.zeros(()))

    # -------------------------------------------------------------------------------------------------------- first hop

    def asked(
        self,
        parts: Sequence[Part],
        ratios: Sequence[Sequence[float] | None],
        step_sizes: Mapping[str, float] | None,
    ) -> list[Subject]:
        """The parts of a bucket as they go to their owners."""
        every = zip(parts, ratios, strict=True)
        return [Subject(part, self.owners.cut(part.layout), own, held_of(part, step_sizes)) for part, own in every]

    def shares(self, asked: Sequence[Subject], payloads: Sequence[Payload], expected: Expected, flag: Tensor) -> Shares:
        """What a worker's payloads say to each owner."""
        split = [payload.split(one.cut) for one, payload in zip(asked, payloads, strict=True)]
        to_owner = list(zip(*split, strict=True)) if split else [()] * self.owners.ranks
        every = [
            [_or_empty(payload, one.cut.parts[owner]) for one, payload in zip(asked, own, strict=True)]
            for owner, own in enumerate(to_owner)
        ]
        beside = [payload.beside if isinstance(payload, Beside) else None for payload in payloads]
        letters = [
            write([*own, *_besides(beside)], _digest(expected, TO_OWNER, owner), flag, self.rank)
            for owner, own in enumerate(every)
        ]
        return Shares(
            letters,
            fixed=all(payload.fixed for own in every for payload in own),
            alike=all(self._hop_of[one.part.rule].is_alike(one.part.first) for one in asked),
            asked=asked,
            elements=[_elements(own) for own in every],
            beside=beside,
        )

    # ------------------------------------------------------------------------------------------------------- second hop

    def opened(self, shares: Shares, messages: Sequence[Tensor] | Tensor, expected: Expected) -> Contents:
        """What all ranks say to this one."""
        common = _expected(expected, TO_OWNER, self.rank, shares.asked)
        layouts = [Layout.of([("beside", 0, (one.numel(),))]) for one in shares.beside if one is not None]
        common = replace(common, parts=(*common.parts, *((one, torch.bfloat16) for one in layouts)))
        own = shares.letters[self.rank]
        contents = read_alike(messages, own, common) if shares.fixed else read(messages, common)
        for every in contents.payloads[len(shares.asked) :]:
            _check_moments(every)
        return contents

    def answer(self, shares: Shares, contents: Contents | None, expected: Expected, underway: Underway) -> Answer:
        """This rank's letter to all. Where nothing could be read, or a flag is raised, it is one of the same length:
        whoever waits for it hears by the verdict that no rank takes the step."""
        nothing = [Empty()] * self.owners.ranks
        said = contents.payloads if contents is not None and contents.payloads else [nothing] * len(shares.asked)
        payloads = [
            self._answer(one, every, expected.key.shared(), underway)
            for one, every in zip(shares.asked, said, strict=False)
        ]
        told = iter(said[len(shares.asked) :])
        beside = [
            () if one is None else [own.values for own in next(told, ()) if isinstance(own, Dense)]
            for one in shares.beside
        ]
        fine = torch.tensor(FINITE, device=shares.letters[0].message.device)
        letter = write(payloads, _digest(expected, TO_ALL, self.rank), fine, self.rank)
        return Answer(letter.message, None if contents is None else contents.flags, beside)

    def _answer(self, asked: Subject, every: Sequence[Payload], key: Key, underway: Underway) -> Payload:
        own = asked.cut.parts[self.rank]
        if not own.pieces:
            return Empty()
        underway.begin(self.store, own)
        held = {piece.name for piece in own.pieces} & set(asked.held)
        self.store.clear_pieces(own, held)
        info = self.store.parameters[own.pieces[0].name]
        ratios = asked.cut.of_shares(asked.ratios)
        question = Question(
            Round(every, key, asked.part.first),
            own,
            None if ratios is None else [ratios[place] for place in asked.cut.places[self.rank]],
            torch.zeros(own.numel, dtype=info.state_dtype, device=info.device),
        )
        payload = self._hop_of[asked.part.rule].answer(question, self.store.bind(own))
        self.store.restore_pieces(own, held)
        if payload.clears and not held:
            underway.clear_in(self.store, own)
        return payload

    def heard(
        self, shares: Shares, own: Answer, messages: Sequence[Tensor] | Tensor, expected: Expected
    ) -> list[Answers]:
        """What all owners have answered, for each part of a bucket."""
        every = [
            read_one(Reader(message), _expected(expected, TO_ALL, owner, shares.asked), owner)
            for owner, message in enumerate(messages)
        ]
        return [
            Answers(answers, one.cut, self._hop_of[one.part.rule], beside)
            for one, answers, beside in zip(shares.asked, zip(*every, strict=True), own.beside, strict=True)
        ]


def _second_hop(rule: Feedback) -> SecondHop:
    hop = rule.second_hop
    if hop is None:
        raise AttachError(
            f'{rule} is not defined for two hops, so exchange="server" cannot serve it. Take memsgd, dgc, memadam, '
            "plain or ef21bc (EF21 in two hops: ef21bc(topk(0.01), topk(0.01))), or leave exchange= out: all gather"
        )
    return hop


def _on_shares(rule: Feedback, owners: Owners, name: str, numel: int) -> Feedback:
    """The rule with each owner's share compressed by itself."""
    for compressor in {rule.compressor, getattr(rule.second_hop, "compressor", rule.compressor)}:
        _check_splits(rule, compressor)
    shared: Feedback = replace(rule, compressor=OnShares(rule.compressor, owners))  # type: ignore[type-var]
    shared.admit(name, numel)
    return shared


def _check_splits(rule: Feedback, compressor: Compressor) -> None:
    """Refuse a compressor whose messages cannot be told apart by owner."""
    cut = Owners(2, least=4).cut(Layout.of([("x", 0, (8,))]))
    if compressor.piecewise:
        try:
            compressor(torch.arange(1.0, 9.0), cut.whole, Key()).split(cut)
            return
        except TypeError:
            pass
    raise AttachError(
        f'exchange="server" cannot serve {rule}: what {compressor} says of one owner\'s numbers cannot be told apart '
        "from the rest. Take topk or randk (per parameter), chunktopk, a threshold or identity, or leave exchange= out"
    )


def _own(info: ParameterInfo, owners: Owners, rank: int) -> ParameterInfo | None:
    """A rank's own share of a parameter, as a parameter."""
    own = owners.share(info.shape, info.index, rank)
    return None if own is None else replace(info, shape=(own.stop - own.start,))


def _or_empty(payload: Payload, part: Layout) -> Payload:
    return payload if part.pieces else Empty()


def _besides(beside: Sequence[Tensor | None]) -> list[Dense]:
    """What is told beside messages, as payloads behind theirs."""
    return [Dense(one) for one in beside if one is not None]


def _values(every: Sequence[Payload]) -> list[Tensor]:
    return [own.values for own in every if isinstance(own, Dense)]


def _check_moments(every: Sequence[Payload]) -> None:
    """Refuse second moments that are none."""
    for rank, own in enumerate(every):
        if isinstance(own, Dense) and not bool(are_moments(own.values)):
            raise WireError(f"rank {rank}: a message holds second moments that are none")


def _elements(payloads: Sequence[Payload]) -> int:
    return sum(int(payload.elements or 0) for payload in payloads)


def _digest(expected: Expected, hop: int, owner: int) -> int:
    return zlib.crc32(struct.pack("<III", expected.digest, hop, owner))


def _expected(expected: Expected, hop: int, owner: int, asked: Sequence[Subject]) -> Expected:
    """What letters of a hop to or from an owner have in common."""
    parts = tuple((one.cut.parts[owner], dtype) for one, (_, dtype) in zip(asked, expected.parts, strict=True))
    return replace(expected, digest=_digest(expected, hop, owner), parts=parts)

"""What must hold of every message, damaged or not: it is refused with a `WireError`, or it is read without a doubt.

Read without a doubt means: the vector has the right shape, positions ascend strictly and lie in range, and packing what
was read gives the same bytes again, so that no two messages mean the same and none was half understood.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tests.fuzz.corpus import KEY, Link, Sample
from torch import Tensor

from thinwire.errors import WireError
from thinwire.payload import Flagged, Payload, Reader, pack_payload, unpack_payload
from thinwire.payload.letter import CHECKED, FINITE, sign_
from thinwire.payload.message import fields

GUARD = 64
"""Bytes of poison before and after a message."""
ACCEPTED = "accepted"


class Finding(AssertionError):
    """Something that must never happen did."""


@dataclass
class Guarded:
    """A message amid poison: whoever writes outside of it, or changes it, is found out."""

    message: bytes
    poison: int
    shift: int = 0

    def __post_init__(self) -> None:
        before, after = bytes([self.poison]) * (GUARD + self.shift), bytes([self.poison]) * GUARD
        self._before = before + self.message + after
        self._buffer = bytearray(self._before)
        self.tensor = torch.frombuffer(self._buffer, dtype=torch.uint8)[len(before) : len(before) + len(self.message)]

    def check(self) -> None:
        require(self._buffer == self._before, "reading changed the message or the bytes around it")


def require(holds: bool, problem: str) -> None:
    if not holds:
        raise Finding(problem)


def kind_of(error: WireError) -> str:
    """An error's text without its numbers and names, to be counted by."""
    text = re.sub(r"'[^']*'", "…", re.sub(r"-?\d+", "#", str(error)))
    text = re.sub(r"\[[#, ]*\]", "[…]", text.removeprefix("rank #: "))
    return re.sub(r"\(step # of .*\)", "(…)", text)


def read(message: Tensor, sample: Sample) -> Payload:
    reader = Reader(message)
    payload = unpack_payload(reader, sample.layout, KEY, sample.dtype)
    reader.finish()
    return payload


def examine_payload(message: bytes, sample: Sample, *, twice: bool = False) -> str:
    """How a payload's message fared: `ACCEPTED`, or the kind of `WireError`; raises `Finding` where neither is right.

    `twice` reads it amid other poison and at another alignment too: the answer must be the same.
    """
    verdict, vector = _examine_once(Guarded(message, 0xAA), sample)
    if twice:
        again, other = _examine_once(Guarded(message, 0x55, shift=1 + len(message) % 7), sample)
        require(verdict == again, f"bytes outside the message change the answer: {verdict} / {again}")
        require(_same(vector, other), "bytes outside the message change the numbers")
    return verdict


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a.view(torch.uint8), b.view(torch.uint8)))


def _examine_once(guarded: Guarded, sample: Sample) -> tuple[str, Tensor | None]:
    try:
        payload = read(guarded.tensor, sample)
    except WireError as error:
        return kind_of(error), None
    finally:
        guarded.check()
    check_payload(payload, sample.layout.numel)
    vector = payload.decode(sample.layout, sample.dtype)
    require(vector.shape == (sample.layout.numel,), "the decoded vector has another shape")
    again = bytes(pack_payload(payload).tolist())
    require(again == guarded.message or not_a_number(payload), "another message means the same")
    guarded.check()
    return ACCEPTED, vector


def not_a_number(payload: Payload) -> bool:
    """Whether some value is NaN: narrow floats lose a NaN's bits, and NaN itself makes a receiver refuse the step."""
    nested = [own for name in ("inner", "one", "two") if (own := getattr(payload, name, None)) is not None]
    values = getattr(payload, "values", None)
    return any(map(not_a_number, nested)) or (values is not None and bool(values.isnan().any()))


def check_payload(payload: Payload, numel: int) -> None:
    """Positions ascend strictly and lie in range."""
    if isinstance(payload, Flagged):
        check_payload(payload.inner, numel)
    positions = getattr(payload, "positions", None)
    if positions is not None and positions.numel():
        require(bool((positions.diff() > 0).all()), "positions do not ascend")
        require(0 <= int(positions[0]) and int(positions[-1]) < numel, "a position is out of range")


def resealed(message: bytes, rank: int) -> bytes:
    """The message with a checksum that fits this rank, so that its damage reaches the decoders."""
    if len(message) < CHECKED:
        return message
    return bytes(sign_(torch.frombuffer(bytearray(message), dtype=torch.uint8), rank).tolist())


def examine_message(message: bytes, link: Link, *, late: bool = False) -> str:
    """How a whole message fared in `Channel.receive`; `late` reads it as a receiver on a GPU does, too."""
    verdict = _receive(Guarded(message, 0xAA, shift=len(message) % 5), link)
    strict = link.out.clone() if verdict == ACCEPTED else None
    if late and link.sent.fixed:
        _examine_late(message, link, strict)
    return verdict


def _receive(guarded: Guarded, link: Link) -> str:
    channel = link.channel
    channel.seen = []
    link.out.fill_(7.0)
    messages = [_tensor(message) for message in link.gathered]
    messages[link.suspect] = guarded.tensor
    try:
        channel.receive(link.sent, messages, link.out)
        fault = channel.fault
    except WireError as error:
        require(f"rank {link.suspect}" in str(error), f"another rank's message is blamed: {error}")
        return kind_of(error)
    finally:
        guarded.check()
        channel.abandon()
    flag = int.from_bytes(guarded.message[12:16], "little", signed=True)
    _check_result(link, guarded.message, flag, fault)
    return ACCEPTED


def _check_result(link: Link, message: bytes, flag: int, fault: object) -> None:
    if fault is not None:
        require(bool(link.out.isnan().all()), "a refused step does not give NaN everywhere")
    else:
        require(bool(link.out.isfinite().all()), "a step that is not refused gives NaN or infinity")
    if flag != FINITE:
        require(fault is not None, "a message that says it is not finite is taken for finite")
        return
    theirs = [payload for rank, payload in link.channel.seen if rank == link.suspect]
    for payload, part in zip(theirs, link.sent.parts, strict=True):
        check_payload(payload, part.layout.numel)
    bodies = [pack_payload(payload) for payload in theirs]
    again = message[:16] + b"".join(fields("Q", body.numel()) + bytes(body.tolist()) for body in bodies)
    require(again == message or any(map(not_a_number, theirs)), "another message means the same")


def _examine_late(message: bytes, link: Link, strict: Tensor | None) -> None:
    """Reading all ranks' messages together, late, marks the one unsound that reading at once refuses, and no other.

    It may refuse more, where fields are not one's own or a step is refused unread, never less, and gives the same
    numbers. Nothing is raised before the verdict, but for a message of another length.
    """
    channel, size = link.channel, link.channel.size
    gathered = link.with_message(message)
    if len(message) != len(link.message):
        _refuses(lambda: channel._receive_unjudged(link.sent, [*map(_tensor, gathered)], link.out), link)
        channel.abandon()
        return
    guarded = Guarded(b"".join(gathered), 0xAA, shift=sum(message) % 9)
    try:
        channel._receive_unjudged(link.sent, guarded.tensor.view(size, len(message)), link.out)
        (unjudged,) = channel._underway.unjudged
        sound = [bool(one) for one in unjudged.verdict[size:-1]]
        require(all(sound[: link.suspect] + sound[link.suspect + 1 :]), "the message of another rank is unsound")
        if not sound[link.suspect]:
            require(strict is None or _unlike(message, link), "reading late refuses what reading at once takes")
            _refuses(channel.judge, link)
            return
        channel.judge()
    finally:
        guarded.check()
        channel.abandon()
    require(strict is not None, "reading late takes what reading at once refuses")
    require(_same(strict, link.out), "reading late gives other numbers")


def _refuses(receive: Callable[[], object], link: Link) -> None:
    try:
        receive()
    except WireError as error:
        require(f"rank {link.suspect}" in str(error), f"another rank's message is blamed: {error}")
    else:  # one with a raised flag may end so too, whatever else stands in it
        require(link.channel.fault is not None, "an unsound message is not refused")


def _unlike(message: bytes, link: Link) -> bool:
    """Whether a message differs from the receiver's own in a field, or says that its gradient was not finite."""
    own = bytes(link.sent.message.tolist())
    finite = int.from_bytes(message[12:16], "little", signed=True) == FINITE
    return not finite or any(message[start:end] != own[start:end] for start, end in link.fields)


def _tensor(message: bytes) -> Tensor:
    return torch.tensor(list(message), dtype=torch.uint8)

"""What must hold of every message, damaged or not: it is refused with a `WireError`, or it is read without a doubt.

Read without a doubt means: the vector has the right shape, positions ascend strictly and lie in range, and packing what
was read gives the same bytes again, so that no two messages mean the same and none was half understood.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from tests.fuzz.corpus import KEY, Link, Sample
from torch import Tensor

from thinwire.errors import WireError
from thinwire.ops import checksum
from thinwire.payload import Flagged, Payload, Reader, pack_payload, unpack_payload
from thinwire.payload.envelope import CHECKED, FINITE
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
    if isinstance(payload, Flagged):
        return not_a_number(payload.inner)
    values = getattr(payload, "values", None)
    return values is not None and bool(values.isnan().any())


def check_payload(payload: Payload, numel: int) -> None:
    """Positions ascend strictly and lie in range."""
    if isinstance(payload, Flagged):
        check_payload(payload.inner, numel)
    positions = getattr(payload, "positions", None)
    if positions is not None and positions.numel():
        require(bool((positions.diff() > 0).all()), "positions do not ascend")
        require(0 <= int(positions[0]) and int(positions[-1]) < numel, "a position is out of range")


def resealed(message: bytes) -> bytes:
    """The message with a checksum that fits, so that its damage reaches the decoders."""
    if len(message) < CHECKED:
        return message
    rest = torch.frombuffer(bytearray(message[CHECKED:] or b"\0"), dtype=torch.uint8)[: len(message) - CHECKED]
    return message[:4] + bytes(checksum(rest).tolist()) + message[CHECKED:]


def examine_message(message: bytes, link: Link, *, late: bool = False) -> str:
    """How a whole message fared in `Channel.receive`; `late` reads it as a receiver on a GPU does, too."""
    guarded = Guarded(message, 0xAA, shift=len(message) % 5)
    verdict = _receive(guarded, link)
    strict = link.out.clone() if verdict == ACCEPTED else None
    if late and link.sent.fixed:
        _examine_late(guarded, link, strict)
    return verdict


def _receive(guarded: Guarded, link: Link) -> str:
    channel = link.channel
    channel.seen = []
    link.out.fill_(7.0)
    try:
        channel.receive(link.sent, [link.sent.message, guarded.tensor], link.out)
        fault = channel._fault
    except WireError as error:
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
    theirs = [payload for rank, payload in link.channel.seen if rank == 1]
    for payload, part in zip(theirs, link.sent.parts, strict=True):
        check_payload(payload, part.layout.numel)
    bodies = [pack_payload(payload) for payload in theirs]
    again = message[:16] + b"".join(fields("Q", body.numel()) + bytes(body.tolist()) for body in bodies)
    require(again == message or any(map(not_a_number, theirs)), "another message means the same")


def _examine_late(guarded: Guarded, link: Link, strict: Tensor | None) -> None:
    """Reading late may refuse more (fields must be one's own), never less, and gives the same numbers."""
    channel = link.channel
    try:
        channel._receive_unjudged(link.sent, [link.sent.message, guarded.tensor], link.out)
        channel.judge()
    except WireError:
        return
    finally:
        guarded.check()
        channel.abandon()
    require(strict is not None, "reading late takes what reading at once refuses")
    assert strict is not None
    require(_same(strict, link.out), "reading late gives other numbers")

"""One worker's end: a rule, its state and its random keys; it turns gradients into bytes and bytes into gradients."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from thinwire.errors import NonFiniteGradient, WireError
from thinwire.feedback import Feedback, Need, Rule, Signal, rule_of
from thinwire.layout import Layout
from thinwire.ops import Key, first_nonfinite
from thinwire.payload import Payload, Reader, pack_payload, unpack_payload
from thinwire.payload.reader import head
from thinwire.store import ParameterInfo, Store

VERSION = 1
_HEADER = "BiI"  # version, place of the first non-finite piece or -1, digest of method, layout and step
FINITE = -1


@dataclass(frozen=True)
class Part:
    """The pieces of a bucket that share a rule and a phase, packed together."""

    rule: Feedback
    layout: Layout
    places: tuple[int, ...]
    first: bool

    def take(self, flat: Tensor, bucket: Layout, dtype: torch.dtype, scale: float) -> Tensor:
        """A copy of this part of the bucket, in the state's type and unscaled units."""
        whole = len(self.places) == len(bucket.pieces)
        part = flat if whole else torch.cat([flat[bucket.pieces[i].part] for i in self.places])
        part = part.to(dtype, copy=whole)
        return part if scale == 1.0 else part.div_(scale)

    def put(self, part: Tensor, flat: Tensor, bucket: Layout) -> None:
        """Write this part back into the bucket, in the bucket's type."""
        for place, (_, view) in zip(self.places, self.layout.views(part), strict=True):
            flat[bucket.pieces[place].part] = view.to(flat.dtype)


@dataclass(frozen=True)
class Norms:
    """Squared norms of one worker's gradient and of what it has not said, for one parameter."""

    gradient: Tensor
    residual: Tensor | None


@dataclass(frozen=True)
class Outgoing:
    """A message on its way, and what is needed to read the answers."""

    message: Tensor
    fixed: bool
    layout: Layout
    parts: tuple[Part, ...]
    scale: float
    norms: Mapping[str, Norms]


class Channel:
    """One worker's end of a rule over named parameters.

    A step is `send` and `receive` for each bucket, then `finish`. If any rank's gradient was not finite, `finish`
    undoes the whole step on every rank: no state advances, in no bucket.
    """

    def __init__(
        self,
        rule: Rule,
        parameters: Mapping[str, Tensor],
        *,
        rank: int,
        size: int,
        seed: int = 0,
        server: Store | None = None,
    ) -> None:
        self.rule, self.rank, self.size, self.seed = rule, rank, size, seed
        infos = {name: ParameterInfo.of(i, p) for i, (name, p) in enumerate(parameters.items())}
        self.parameters = infos
        self.rules = {name: rule_of(rule, name, info.numel) for name, info in infos.items()}
        self.worker = Store({n: [s for s in r.slots if s.per_worker] for n, r in self.rules.items()}, infos, size)
        self.server = server or Store(
            {n: [s for s in r.slots if not s.per_worker] for n, r in self.rules.items()}, infos, size
        )
        self.step = 0
        self.started: set[str] = set()
        self.step_sizes: dict[str, float] = {}
        self._next_step_sizes: dict[str, float] = {}
        self._sent: list[Part] = []
        self._received: list[Part] = []
        self._fault: tuple[int | None, str] | None = None
        self._method = zlib.crc32(str(rule).encode())

    @property
    def needs(self) -> frozenset[Need]:
        """All that the rules in use ask of the engine."""
        return frozenset[Need]().union(*(rule.needs for rule in self.rules.values()))

    def layout(self, names: Sequence[str]) -> Layout:
        """The layout of a flat buffer that holds these parameters in this order."""
        return Layout.of([(name, self.parameters[name].index, self.parameters[name].shape) for name in names])

    def send(
        self,
        layout: Layout,
        flat: Tensor,
        *,
        step_sizes: Mapping[str, float] | None = None,
        scale: float = 1.0,
        used: Sequence[bool] | None = None,
        measure: bool = False,
    ) -> Outgoing:
        """This worker's message for one bucket: `flat` holds its gradients, times `scale`, and is left as it is.

        Parameters that no rank used, or whose step size is zero where the rule needs it, take no part: their state
        stays as it is.
        """
        parts = self._parts(layout, step_sizes, used)
        bad = first_nonfinite(flat, layout)
        clean = flat if bad is None else torch.zeros_like(flat)
        packed: list[Tensor] = []
        norms: dict[str, Norms] = {}
        fixed = True
        for part in parts:
            payload, signal = self._send_part(part, clean, layout, step_sizes, scale)
            if measure:
                norms |= self._measure(part, signal)
            body = pack_payload(payload).to(flat.device)  # an empty payload knows no device
            packed += [head("Q", body.numel(), device=body.device), body]
            fixed = fixed and payload.fixed
        place = FINITE if bad is None else bad
        header = head(_HEADER, VERSION, place, self._digest(layout, parts), device=flat.device)
        return Outgoing(torch.cat([header, *packed]), fixed, layout, parts, scale, norms)

    def _parts(
        self, layout: Layout, step_sizes: Mapping[str, float] | None, used: Sequence[bool] | None
    ) -> tuple[Part, ...]:
        """The bucket's pieces grouped by rule and by whether they were exchanged before."""
        groups: dict[tuple[Feedback, bool], list[int]] = {}
        for place, piece in enumerate(layout.pieces):
            rule = self.rules[piece.name]
            held = Need.STEP_SIZE in rule.needs and step_sizes is not None and step_sizes[piece.name] == 0
            if not held and (used is None or used[place]):
                groups.setdefault((rule, piece.name not in self.started), []).append(place)
        return tuple(_part(layout, rule, first, tuple(places)) for (rule, first), places in groups.items())

    def _send_part(
        self, part: Part, flat: Tensor, layout: Layout, step_sizes: Mapping[str, float] | None, scale: float
    ) -> tuple[Payload, Signal]:
        value = part.take(flat, layout, self._dtype(part), scale)
        signal = Signal(value, self._rescale(part, step_sizes), part.first)
        self.worker.remember(part.layout)
        self._sent.append(part)
        return part.rule.send(signal, part.layout, self.worker.bind(part.layout), self._key()), signal

    def _rescale(self, part: Part, step_sizes: Mapping[str, float] | None) -> tuple[float, ...] | None:
        """Previous step size / this one, for each piece; remembers this one for the next step."""
        if step_sizes is None or Need.STEP_SIZE not in part.rule.needs:
            return None
        now = [step_sizes[piece.name] for piece in part.layout.pieces]
        before = [self.step_sizes.get(piece.name, s) for piece, s in zip(part.layout.pieces, now, strict=True)]
        self._next_step_sizes.update({piece.name: s for piece, s in zip(part.layout.pieces, now, strict=True)})
        return tuple(b / s if b != s else 1.0 for b, s in zip(before, now, strict=True))

    def _measure(self, part: Part, signal: Signal) -> dict[str, Norms]:
        residual = part.rule.residual(signal, self.worker.bind(part.layout))
        return {
            piece.name: Norms(view.square().sum(), None if residual is None else residual[piece.part].square().sum())
            for piece, view in part.layout.views(signal.value)
        }

    def receive(self, sent: Outgoing, messages: Sequence[Tensor], out: Tensor) -> Tensor:
        """Write the exchanged gradient, times the scale, into `out`: NaN if any rank's gradient was not finite."""
        bodies = [self._open(rank, message, sent) for rank, message in enumerate(messages)]
        bad = next(((rank, place) for rank, (place, _) in enumerate(bodies) if place != FINITE), None)
        if bad is not None:
            return self._refuse(bad[0], sent.layout.pieces[bad[1]].name, out)
        out.zero_()
        for part in sent.parts:
            payloads = [self._payload(rank, reader, part) for rank, (_, reader) in enumerate(bodies)]
            self._receive_part(part, payloads, sent, out)
        for _, reader in bodies:
            reader.finish()
        overflow = first_nonfinite(out, sent.layout)
        return out if overflow is None else self._refuse(None, sent.layout.pieces[overflow].name, out)

    def _open(self, rank: int, message: Tensor, sent: Outgoing) -> tuple[int, Reader]:
        """A message's flag and the rest of it, once version and digest are right."""
        reader = Reader(message)
        version, place, digest = reader.fields(_HEADER)
        if version != VERSION:
            raise WireError(
                f"rank {rank} speaks wire version {version}, this rank {VERSION}: use one thinwire everywhere"
            )
        if digest != self._digest(sent.layout, sent.parts):
            raise WireError(
                f"rank {rank}'s message is for another method, set of parameters or step than this rank's "
                f"(step {self.step} of {self.rule}): attach the same rule, and load the same checkpoint, on every rank"
            )
        if not FINITE <= place < len(sent.layout.pieces):
            raise WireError(f"rank {rank}'s message names piece {place} of {len(sent.layout.pieces)}")
        return place, reader

    def _payload(self, rank: int, reader: Reader, part: Part) -> Payload:
        try:
            (length,) = reader.fields("Q")
            body = Reader(reader.take(length))
            payload = unpack_payload(body, part.layout, self._key(), self._dtype(part))
            body.finish()
        except WireError as error:
            raise WireError(f"rank {rank}: {error}") from None
        return payload

    def _receive_part(self, part: Part, payloads: Sequence[Payload], sent: Outgoing, out: Tensor) -> None:
        self.server.remember(part.layout)
        self._received.append(part)
        result = torch.empty(part.layout.numel, dtype=self._dtype(part), device=out.device)
        part.rule.receive(payloads, part.layout, self.server.bind(part.layout), result)
        part.put(result if sent.scale == 1.0 else result.mul_(sent.scale), out, sent.layout)

    def _refuse(self, rank: int | None, parameter: str, out: Tensor) -> Tensor:
        self._fault = self._fault or (rank, parameter)
        return out.fill_(float("nan"))

    def finish(self) -> NonFiniteGradient | None:
        """End the step: keep what was done, or undo all of it and say whose gradient was not finite."""
        fault, self._fault = self._fault, None
        if fault is not None:
            error = NonFiniteGradient(*fault, self.step)
            self.abandon()
            return error
        self.started |= {piece.name for part in self._sent for piece in part.layout.pieces}
        self.step_sizes |= self._next_step_sizes
        self._clear()
        self.step += 1
        return None

    def abandon(self) -> None:
        """Undo all that was done since the last `finish`."""
        for part in self._sent:
            self.worker.restore(part.layout)
        for part in self._received:
            self.server.restore(part.layout)
        self._clear()

    def _clear(self) -> None:
        self._fault, self._sent, self._received, self._next_step_sizes = None, [], [], {}

    def _dtype(self, part: Part) -> torch.dtype:
        return self.parameters[part.layout.pieces[0].name].state_dtype

    def _key(self) -> Key:
        return Key(self.seed, self.step, self.rank)

    def _digest(self, layout: Layout, parts: Sequence[Part]) -> int:
        marks = [layout.digest, *(part.layout.digest ^ part.first for part in parts)]
        return zlib.crc32(struct.pack(f"<QQQ{len(marks)}I", self._method, self.seed % (1 << 64), self.step, *marks))


@lru_cache(maxsize=1024)
def _part(layout: Layout, rule: Feedback, first: bool, places: tuple[int, ...]) -> Part:
    chosen = set(places)
    return Part(rule, layout.select([i in chosen for i in range(len(layout.pieces))]), places, first)

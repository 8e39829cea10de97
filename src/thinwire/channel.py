"""One worker's end: a rule, its state and its random keys; it turns gradients into bytes and bytes into gradients."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NoReturn

import torch
from torch import Tensor

from thinwire.clock import Clock
from thinwire.errors import NonFiniteGradient, WireError
from thinwire.feedback import Feedback, Need, Round, Rule, Signal, rule_of
from thinwire.layout import Layout
from thinwire.ops import Key, first_nonfinite
from thinwire.payload import Empty, LateReader, Payload, Reader, chunks_of, unpack_payload, unpack_payloads
from thinwire.payload.base import Count, both_counts
from thinwire.payload.envelope import FINITE, VERSION, fields_of, open_rest, open_version, seal
from thinwire.payload.message import Chunk, fields, size
from thinwire.store import ParameterInfo, Store


@dataclass(frozen=True)
class Part:
    """The pieces of a bucket that share a rule and a phase, packed together."""

    rule: Feedback
    layout: Layout
    places: tuple[int, ...]
    first: bool

    def take(self, flat: Tensor, bucket: Layout, dtype: torch.dtype, scale: float) -> Tensor:
        """This part of the bucket, in the state's type and unscaled units; the bucket is left as it is."""
        whole = len(self.places) == len(bucket.pieces)
        part = flat if whole else torch.cat([flat[bucket.pieces[i].part] for i in self.places])
        part = part.to(dtype)
        return part if scale == 1.0 else part.div(scale)

    def put(self, part: Tensor, flat: Tensor, bucket: Layout) -> None:
        """Write this part back into the bucket, in the bucket's type."""
        if len(self.places) == len(bucket.pieces):
            flat.copy_(part)
            return
        for place, (_, view) in zip(self.places, self.layout.views(part), strict=True):
            flat[bucket.pieces[place].part] = view.to(flat.dtype)


@dataclass(frozen=True)
class Norms:
    """Squared norms of one worker's gradient and of what it has not said, for one parameter."""

    gradient: Tensor
    residual: Tensor | None
    step_size: float | None = None
    """The step size that both are to be multiplied by, where the rule keeps its memory in units of updates."""


@dataclass(frozen=True)
class Outgoing:
    """A message on its way, and what is needed to read the answers."""

    message: Tensor
    fixed: bool
    digest: int
    """Of all that the ranks must have in common."""
    fields: tuple[bytes, ...]
    """What every rank writes alike, where the size is fixed."""
    layout: Layout
    parts: tuple[Part, ...]
    scale: float
    norms: Mapping[str, Norms]
    elements: Count
    """How many numbers the message holds, where its formats count them."""


@dataclass(frozen=True)
class Fault:
    """Whose numbers are not finite, in which parameter: a gradient's, or a memory's that overflows."""

    rank: int | None
    """None where it is what all ranks' messages add up to."""
    parameter: str
    overflows: bool = False


@dataclass(frozen=True)
class Unjudged:
    """An answer that was decoded on a GPU without waiting: its verdict is still there."""

    sent: Outgoing
    messages: Tensor
    out: Tensor
    verdict: Tensor
    """For each rank its flag, for each rank whether its message was sound, and the place of an overflow or -1."""


class Channel:
    """One worker's end of a rule over named parameters.

    A step is `send` and `receive` for each bucket, then `judge` and `finish`. If any rank's gradient was not finite,
    `finish` undoes the whole step on every rank: no state advances, in no bucket. On a GPU, `receive` does not wait
    for what it receives (unless sizes vary): `judge` looks at all of it at once.

    Channels of one process (`beside` another) have the server's state and the clock in common: one of them finishes a
    step for all, and the others `keep` what they did.
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
    ) -> None:
        self.rule, self.rank, self.size, self.seed = rule, rank, size, seed
        infos = {name: ParameterInfo.of(i, p) for i, (name, p) in enumerate(parameters.items())}
        self.parameters = infos
        self.rules = {name: rule_of(rule, name, info.numel) for name, info in infos.items()}
        for each in set(self.rules.values()):
            each.admit_workers(size)
        self.worker = Store({n: [s for s in r.slots if s.per_worker] for n, r in self.rules.items()}, infos, size)
        common = {n: [s for s in r.slots if not s.per_worker] for n, r in self.rules.items()}
        self.server: Store = beside.server if beside is not None else Store(common, infos, size)
        self.clock: Clock = beside.clock if beside is not None else Clock()
        self.run = 0
        """A number by which the states of one run are known from those of others."""
        self._next_step_sizes: dict[str, float] = {}
        self._held: set[str] = set()
        self._sent: list[Part] = []
        self._received: list[Part] = []
        self._unjudged: list[Unjudged] = []
        self._judged = False
        self.fault: Fault | None = None
        """What was not finite in this step, as far as was judged; a rank may have to take it from another."""
        self._method = zlib.crc32(str(rule).encode())

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
        moment: Tensor | None = None,
        previous: Tensor | None = None,
        measure: bool = False,
        mark: int = 0,
    ) -> Outgoing:
        """This worker's message for one bucket: `flat` holds its gradients, times `scale`, and is left as it is.

        `moment` holds the second moments where a rule needs them (zeros elsewhere), laid out alike but *not* scaled;
        `previous` the gradients at the previous point, times `scale`. One that is not finite is treated as such a
        gradient is. Parameters that no rank used take no part: their state stays as it is. So does that of parameters
        whose step size is zero where the rule needs it, but zeros are sent for them: no size of a message may depend on
        what one rank alone believes. `mark` is a number that all ranks must have in common, such as a digest of the
        step sizes.
        """
        parts = self._parts(layout, used)
        flag = first_nonfinite(flat, layout)
        for more in (moment, previous):
            if more is not None:
                flag = torch.where(flag == FINITE, first_nonfinite(more, layout), flag)
        if not flat.is_cuda and int(flag) != FINITE:  # on a GPU nobody waits to know: whatever is sent is refused
            flat = torch.zeros_like(flat)
            moment, previous = (None if more is None else flat for more in (moment, previous))
        body: list[Chunk] = []
        norms: dict[str, Norms] = {}
        fixed = True
        elements: Count = 0
        for part in parts:
            signal = self._signal(part, flat, moment, previous, layout, step_sizes, scale)
            payload = self._send_part(part, signal, self._held_of(part, step_sizes))
            if measure:
                norms |= self._measure(part, signal)
            chunks = chunks_of(payload)
            body += [fields("Q", size(chunks)), *chunks]
            fixed = fixed and payload.fixed and not part.rule.varies
            elements = both_counts(elements, payload.elements)
        digest = self._digest(layout, parts, mark)
        message = seal(body, digest, flag, self.rank)
        return Outgoing(message, fixed, digest, fields_of(body, digest), layout, parts, scale, norms, elements)

    def _parts(self, layout: Layout, used: Sequence[bool] | None) -> tuple[Part, ...]:
        """The bucket's pieces grouped by rule and by whether they were exchanged before."""
        groups: dict[tuple[Feedback, bool], list[int]] = {}
        for place, piece in enumerate(layout.pieces):
            if used is None or used[place]:
                groups.setdefault((self.rules[piece.name], piece.name not in self.started), []).append(place)
        return tuple(_part(layout, rule, first, tuple(places)) for (rule, first), places in groups.items())

    def _held_of(self, part: Part, step_sizes: Mapping[str, float] | None) -> set[str]:
        """Parameters about which nothing can be said in units of updates, for their step size is zero."""
        if step_sizes is None or Need.STEP_SIZE not in part.rule.needs:
            return set()
        return {piece.name for piece in part.layout.pieces if step_sizes[piece.name] == 0}

    def _signal(
        self,
        part: Part,
        flat: Tensor,
        moment: Tensor | None,
        previous: Tensor | None,
        layout: Layout,
        step_sizes: Mapping[str, float] | None,
        scale: float,
    ) -> Signal:
        dtype = self._dtype(part)
        moment = moment if Need.MOMENTS in part.rule.needs else None
        previous = previous if Need.PREVIOUS in part.rule.needs else None
        return Signal(
            value=part.take(flat, layout, dtype, scale),
            rescale=self._rescale(part, step_sizes),
            first=part.first,
            moment=None if moment is None else part.take(moment, layout, dtype, 1.0),
            previous=None if previous is None else part.take(previous, layout, dtype, scale),
        )

    def _send_part(self, part: Part, signal: Signal, held: Collection[str]) -> Payload:
        self._begin(self.worker, part.layout)
        self._sent.append(part)
        if not part.first and not part.rule.participants(self._key()):
            return Empty()
        state = self.worker.bind(part.layout)
        if not held:
            return part.rule.send(signal, part.layout, state, self._key())
        self._held.update(held)
        nothing = replace(signal, value=_without(held, part.layout, signal.value.clone()))
        self.worker.clear_pieces(part.layout, held)
        payload = part.rule.send(nothing, part.layout, state, self._key())
        self.worker.restore_pieces(part.layout, held)
        return payload

    def _begin(self, store: Store, layout: Layout) -> None:
        """Note a layout's state before it moves: what `abandon` goes back to, and what is saved meanwhile."""
        store.remember(layout)
        with self.clock.lock:
            store.move(layout, self.clock.now.turn)

    def _rescale(self, part: Part, step_sizes: Mapping[str, float] | None) -> tuple[float, ...] | None:
        """Previous step size / this one, for each piece, where the rule needs it.

        Remembers this one for the next step, and for whoever asks what a rule still owes.
        """
        needed = Need.STEP_SIZE in part.rule.needs
        if step_sizes is None or not (needed or part.rule.owes):
            return None
        now, before = {piece.name: step_sizes[piece.name] for piece in part.layout.pieces}, self.step_sizes
        self._next_step_sizes.update({name: size for name, size in now.items() if 0 < size < math.inf})
        if not needed:
            return None
        return tuple(before[name] / s if s and before.get(name, s) != s else 1.0 for name, s in now.items())

    def _measure(self, part: Part, signal: Signal) -> dict[str, Norms]:
        residual = part.rule.residual(signal, self.worker.bind(part.layout))
        needed = Need.STEP_SIZE in part.rule.needs
        sizes = {**self.step_sizes, **self._next_step_sizes} if needed else {}  # in whose units the memories are
        return {
            piece.name: Norms(
                view.square().sum(),
                None if residual is None else residual[piece.part].square().sum(),
                sizes.get(piece.name),
            )
            for piece, view in part.layout.views(signal.value)
        }

    def receive(self, sent: Outgoing, messages: Sequence[Tensor] | Tensor, out: Tensor) -> Tensor:
        """Write the exchanged gradient, times the scale, into `out`: NaN if any rank's gradient was not finite."""
        if out.is_cuda and sent.fixed:
            return self._receive_unjudged(sent, messages, out)
        readers = [Reader(message) for message in messages]
        flags = [int(self._open(rank, reader, sent)) for rank, reader in enumerate(readers)]
        bad = next((rank for rank, flag in enumerate(flags) if flag != FINITE), None)
        if bad is not None:
            return self._refuse(bad, flags[bad], sent.layout, out)
        self._decode(sent, readers, out)
        overflow = int(first_nonfinite(out, sent.layout))
        return out if overflow == FINITE else self._refuse(None, overflow, sent.layout, out)

    def _receive_unjudged(self, sent: Outgoing, messages: Sequence[Tensor] | Tensor, out: Tensor) -> Tensor:
        """Decode by the fields of one's own message; whether that was right is left to `judge`."""
        rows = messages if isinstance(messages, Tensor) else _rows(messages, sent.message.numel())
        reader = LateReader(rows, sent.message, sent.fields)
        flags = self._open(None, reader, sent)
        self._clear_unsent(sent, out)
        for part in sent.parts:
            self._receive_part(part, self._payloads(reader, part), sent, out)
        reader.finish()
        verdict = torch.cat([flags, reader.sound(), first_nonfinite(out, sent.layout).view(1)])
        self._unjudged.append(Unjudged(sent, rows, out, verdict))
        return out

    def judge(self) -> None:
        """Look at what was received without waiting, and at what is remembered: the one wait of a step for the GPU.

        Where a gradient was not finite, `out` becomes NaN; a message that was not sound is a `WireError`. A memory that
        overflows is this rank's own `fault`: whoever drives the channels sees to it that all of them hear of it.
        """
        unjudged, self._unjudged = self._unjudged, []
        verdicts = torch.stack([one.verdict for one in unjudged]).tolist() if unjudged else []
        for one, verdict in zip(unjudged, verdicts, strict=True):
            flags, sound, overflow = verdict[: self.size], verdict[self.size : -1], verdict[-1]
            if not all(sound):
                one.out.fill_(float("nan"))
                self._explain(sound.index(0), one)
            bad = next((rank for rank, flag in enumerate(flags) if flag != FINITE), None)
            if bad is not None:
                self._refuse(bad, flags[bad], one.sent.layout, one.out)
            elif overflow != FINITE:
                self._refuse(None, overflow, one.sent.layout, one.out)
        if not self._judged:
            self._judged = True
            self._check_memories()

    def _explain(self, rank: int, one: Unjudged) -> NoReturn:
        """Read an unsound message again, field by field, for the error that says what is wrong with it."""
        reader = Reader(one.messages[rank])
        self._open(rank, reader, one.sent)
        for part in one.sent.parts:
            self._payload(rank, reader, part)
        reader.finish()
        raise WireError(f"rank {rank}'s message has other fields than this rank's, where all must be alike")

    def _open(self, rank: int | None, reader: Reader, sent: Outgoing) -> Tensor:
        """A message's flag, once version, checksum and digest are right."""
        with _from_rank(rank):
            version = open_version(reader)
        if version > 255:
            raise WireError(f"rank {rank}: message was damaged on its way: its version reads {version}")
        if version != VERSION:
            raise WireError(
                f"rank {rank} speaks wire version {version}, this rank {VERSION}: use one thinwire everywhere"
            )
        with _from_rank(rank):
            digest, flag = open_rest(reader, _ranks(self.size, sent.message.device) if rank is None else rank)
        if digest != sent.digest:
            raise WireError(
                f"rank {rank}'s message is for another method, set of parameters, step or step size than this rank's "
                f"(step {self.step} of {self.rule}): attach the same rule, and load the same checkpoint, on every rank"
            )
        pieces = len(sent.layout.pieces)
        inside = flag.clamp(FINITE, pieces - 1) == flag
        reader.require(inside, "rank {}'s message names a piece beyond the {} of the bucket", rank, pieces)
        return flag

    def _decode(self, sent: Outgoing, readers: Sequence[Reader], out: Tensor) -> None:
        """Turn what stands behind the envelopes into the exchanged gradient."""
        self._clear_unsent(sent, out)
        for part in sent.parts:
            payloads = [self._payload(rank, reader, part) for rank, reader in enumerate(readers)]
            self._receive_part(part, payloads, sent, out)
        for rank, reader in enumerate(readers):
            with _from_rank(rank):
                reader.finish()

    def _clear_unsent(self, sent: Outgoing, out: Tensor) -> None:
        """Zero where some parameters took no part."""
        if sum(len(part.places) for part in sent.parts) < len(sent.layout.pieces):
            out.zero_()

    def _payloads(self, reader: LateReader, part: Part) -> Sequence[Payload]:
        (length,) = reader.fields("Q")
        end = reader.place + length
        payloads = unpack_payloads(reader, part.layout, self._key(), self._dtype(part))
        assert reader.place == end  # by the fields of this rank's own message
        return payloads

    def _payload(self, rank: int, reader: Reader, part: Part) -> Payload:
        with _from_rank(rank):
            (length,) = reader.fields("Q")
            end = reader.place + length
            payload = unpack_payload(reader, part.layout, self._key(), self._dtype(part))
            reader.require(reader.place == end, "a part of {} bytes announces {}", reader.place - end + length, length)
        return payload

    def _receive_part(self, part: Part, payloads: Sequence[Payload], sent: Outgoing, out: Tensor) -> None:
        self._begin(self.server, part.layout)
        self._received.append(part)
        alone = len(part.places) == len(sent.layout.pieces) and out.dtype == self._dtype(part)
        result = out if alone else torch.empty(part.layout.numel, dtype=self._dtype(part), device=out.device)
        round = Round(payloads, self._key().shared(), part.first)
        part.rule.receive(round, part.layout, self.server.bind(part.layout), result)
        if sent.scale != 1.0:
            result.mul_(sent.scale)
        if not alone:
            part.put(result, out, sent.layout)

    def _refuse(self, rank: int | None, place: int, layout: Layout, out: Tensor) -> Tensor:
        self.fault = self.fault or Fault(rank, layout.pieces[place].name)
        return out.fill_(float("nan"))

    def _check_memories(self) -> None:
        """Find out whether what this rank remembers, or all ranks hold in common, is still finite after the step."""
        moved = [(self.worker, part.layout) for part in self._sent]
        moved += [(self.server, part.layout) for part in self._received]
        flats = [(layout, flat) for store, layout in moved for flat in store.vectors(layout)]
        for layout, flat in _suspects(flats) if self.fault is None else ():
            place = int(first_nonfinite(flat, layout))
            if place != FINITE and self.fault is None:
                self.fault = Fault(self.rank, layout.pieces[place].name, overflows=True)

    def finish(self) -> NonFiniteGradient | None:
        """End the step: keep what was done, or undo all of it and say whose gradient was not finite."""
        self.judge()
        if self.fault is not None:
            error = NonFiniteGradient(self.fault.rank, self.fault.parameter, self.step, self.fault.overflows)
            self.abandon()
            return error
        sent = {piece.name for part in self._sent for piece in part.layout.pieces}
        self.clock.finish(sent - self._held, self._next_step_sizes)
        self.keep()
        return None

    def abandon(self) -> None:
        """Undo all that was done since the last `finish`."""
        self.undo_()
        self.clock.abandon()

    def undo_(self) -> None:
        """Undo what this channel did in a step that is to be abandoned."""
        turn = self.clock.now.turn
        for part in self._sent:
            self.worker.restore(part.layout, turn)
        for part in self._received:
            self.server.restore(part.layout, turn)
        self.keep()

    def keep(self) -> None:
        """Let go of what `undo_` would need."""
        self.fault, self._sent, self._received, self._next_step_sizes, self._held = None, [], [], {}, set()
        self._judged = False
        self._unjudged.clear()

    @property
    def moving(self) -> bool:
        """Whether a step has begun that is neither finished nor abandoned."""
        return bool(self._sent or self._received)

    def _dtype(self, part: Part) -> torch.dtype:
        return self.parameters[part.layout.pieces[0].name].state_dtype

    def _key(self) -> Key:
        return Key(self.seed, self.step, self.rank)

    def _digest(self, layout: Layout, parts: Sequence[Part], mark: int) -> int:
        marks = [mark, layout.digest, *(part.layout.digest ^ part.first for part in parts)]
        return zlib.crc32(struct.pack(f"<QQQ{len(marks)}I", self._method, self.seed % (1 << 64), self.step, *marks))


def longest_message(layout: Layout) -> int:
    """A bound in bytes that no message about these parameters reaches, whatever its format."""
    return 1024 + 256 * len(layout.pieces) + 32 * layout.numel


def _without(names: Collection[str], layout: Layout, flat: Tensor) -> Tensor:
    """Set some pieces to zero, in place."""
    for piece, view in layout.views(flat):
        if piece.name in names:
            view.zero_()
    return flat


@lru_cache(maxsize=16)
def _ranks(size: int, device: torch.device) -> Tensor:
    """Every rank's number, one in each row; kept, for each step asks for it."""
    return torch.arange(size, dtype=torch.int32, device=device).unsqueeze(1)


def _suspects(flats: Sequence[tuple[Layout, Tensor]]) -> Sequence[tuple[Layout, Tensor]]:
    """Those that may hold NaN or infinity: on a GPU by the largest magnitude of each, in a few launches and a wait."""
    flats = [(layout, flat) for layout, flat in flats if flat.numel()]
    if not flats or not flats[0][1].is_cuda:
        return flats
    largest = torch.stack([norm.double() for norm in torch._foreach_norm([flat for _, flat in flats], math.inf)])
    fine = torch.isfinite(largest).tolist()
    return [pair for pair, is_fine in zip(flats, fine, strict=True) if not is_fine]


def _rows(messages: Sequence[Tensor], length: int) -> Tensor:
    """The messages of all ranks, one in each row."""
    for rank, message in enumerate(messages):
        if message.numel() != length:
            raise WireError(f"rank {rank}: message has {message.numel()} bytes where this rank's own has {length}")
    return torch.stack([*messages])


@contextmanager
def _from_rank(rank: int | None) -> Iterator[None]:
    """Have a `WireError` say whose message it is."""
    try:
        yield
    except WireError as error:
        raise WireError(f"rank {rank}: {error}") from None


@lru_cache(maxsize=1024)
def _part(layout: Layout, rule: Feedback, first: bool, places: tuple[int, ...]) -> Part:
    chosen = set(places)
    return Part(rule, layout.select([i in chosen for i in range(len(layout.pieces))]), places, first)

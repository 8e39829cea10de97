"""The timeline of one step: when gradients are there, when the link has carried them, and when the step is over.

A rank computes on one thread and sends on one link, each in order. Of the buckets i = 1, 2, ... of a backward pass

    here_i  = ready_i + encode_1 + ... + encode_i + what collectives before it took of the cores
    start_i = max(here_i, a lane is free)                          so many collectives are in flight at once
    due_i   = max(start_i + alpha, due_(i-1)) + 8 bytes_i / (share * rate)           first in, first out

and when the backward pass is over, messages are awaited and decoded in order, ranks agree on the step, and the
optimizer moves. bytes_i is (W - 1) n where messages of n bytes are gathered, 2 (W - 1)/W n where a buffer of n bytes is
summed around a ring. Nothing here measures or sends: it is arithmetic on plain values, so whoever decides on line (by
bucket, say) asks `step_time` with each choice and takes the least.

>>> ethernet = Wire(workers=4, up=1e8)
>>> compute = Compute(forward=0.010, backward=0.020, optimizer=0.002)
>>> ready = (0.008, 0.020)  # two buckets of a million numbers each
>>> dense = step_time([Shipment(at, SUM, 4e6) for at in ready], ethernet, compute)
>>> sparse = step_time([Shipment(at, GATHER, 15e3, encode=0.003, decode=0.002) for at in ready], ethernet, compute)
>>> for step in (dense, sparse):
...     print(f"{1e3 * step.total:.1f} ms, of which {1e3 * step.exposed:.1f} wait for the wire")
980.0 ms, of which 948.0 wait for the wire
43.6 ms, of which 1.6 wait for the wire
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from thinwire.errors import ConfigError
from thinwire.link import seconds_on

Kind = Literal["sum", "gather", "tell", "shares", "later"]
SUM: Kind = "sum"
"""A ring all-reduce of a buffer."""
GATHER: Kind = "gather"
"""A ring all-gather of messages."""
TELL: Kind = "tell"
"""Short messages that every rank sends to each other directly: an all-to-all of the same row."""
SHARES: Kind = "shares"
"""Messages added up on their way: a share to each rank, and when the backward pass is over, a total from each."""
LATER: Kind = "later"
"""Nothing: a short message that waits, and travels with that of a later bucket."""
VERDICT = 16
"""Bytes that each rank tells each other at the end of a step."""


@dataclass(frozen=True)
class Collective:
    """What one collective costs among the ranks of a wire, beside its bytes at the wire's rate.

    seconds = alpha + 8 bytes / (share * rate),     of which the host's cores work host + host_byte * bytes
    """

    alpha: float = 0.0
    """Seconds of a message of no length, from start to end."""
    share: float = 1.0
    """What is left of the rate for a message's own bytes: headers, acknowledgements and waiting have the rest."""
    least: float = 0.0
    """Seconds of each byte that leaves where nothing limits the rate."""
    host: float = 0.0
    host_byte: float = 0.0
    """Seconds of a core, of each collective and of each byte that leaves; 0 where cores are idle anyway."""

    def scaled(self, hops: float) -> Collective:
        """With so many times as many messages one after the other."""
        return replace(self, alpha=self.alpha * hops, host=self.host * hops)


NOTHING = Collective()


@dataclass(frozen=True)
class Wire:
    """What joins W ranks: rates in bits a second each way (None: no limit), and the cost of each kind of collective.

    >>> wire = Wire(4, up=8e6, sum=Collective(alpha=0.006))
    >>> wire.seconds(SUM, 1e6), wire.seconds(GATHER, 1e6)  # 1.5 and 3 MB at a megabyte a second
    (1.506, 3.0)
    >>> wire.at(8).seconds(SUM, 1e6)  # 1.75 MB, and 14 messages in place of 6 before the last arrives
    1.764
    """

    workers: int
    up: float | None = None
    down: float | None = None
    """None: as `up`."""
    sum: Collective = Collective()
    gather: Collective = Collective()
    tell: Collective = Collective()
    lanes: int = 2
    """Collectives in flight at once: gloo has two threads, NCCL one stream."""
    skew: float = 0.0
    """Seconds that ranks which have computed for a while wait for the last of them."""

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise ConfigError(f"a wire joins at least 2 workers, got {self.workers}: one alone exchanges nothing")
        if self.lanes < 1:
            raise ConfigError(
                f"at least one collective must be in flight at a time, got {self.lanes} lanes; gloo has 2"
            )
        for way, rate in (("up", self.up), ("down", self.down)):
            if rate is not None and not 0 < rate < math.inf:
                raise ConfigError(
                    f"the rate {way} must be finite and above 0 bits a second, got {rate}; 1e8 is 100mbit"
                )

    @property
    def rate(self) -> float | None:
        """Bits a second of the slower way: as many bytes come as go."""
        return min((rate for rate in (self.up, self.down) if rate is not None), default=None)

    def cost(self, kind: Kind) -> Collective:
        """Of one collective of a kind, or of the first half of `SHARES`."""
        return {SUM: self.sum, GATHER: self.gather, TELL: self.tell, SHARES: self.tell, LATER: NOTHING}[kind]

    def sent(self, kind: Kind, nbytes: float) -> float:
        """Bytes that leave a rank for a message, or a buffer, of so many bytes."""
        others = self.workers - 1
        if kind == LATER:
            return 0.0
        return 2 * others / self.workers * nbytes if kind in (SUM, SHARES) else others * nbytes

    def carrying(self, kind: Kind, nbytes: float) -> float:
        """Seconds for which the link is busy with it."""
        cost, rate, sent = self.cost(kind), self.rate, self.sent(kind, nbytes)
        return max(cost.least * sent, 0.0 if rate is None else seconds_on(cost.share * rate, sent))

    def seconds(self, kind: Kind, nbytes: float) -> float:
        """From its start to its end where nothing else is sent."""
        hops = 2 if kind == SHARES else 1
        return hops * self.cost(kind).alpha + self.carrying(kind, nbytes)

    def host(self, kind: Kind, nbytes: float) -> float:
        """Seconds of this host's cores."""
        cost = self.cost(kind)
        return cost.host + cost.host_byte * self.sent(kind, nbytes)

    def at(self, workers: int) -> Wire:
        """The same with another number of workers: what costs a message each costs as many times as much."""
        more = (workers - 1) / (self.workers - 1)
        summing, gathering, telling = (cost.scaled(more) for cost in (self.sum, self.gather, self.tell))
        return replace(self, workers=workers, sum=summing, gather=gathering, tell=telling)

    def shaped(self, up: float | None, down: float | None = None) -> Wire:
        """The same at other rates."""
        return replace(self, up=up, down=down)


@dataclass(frozen=True)
class Compute:
    """Seconds of a step in which nothing is exchanged."""

    forward: float
    backward: float
    optimizer: float = 0.0

    def __post_init__(self) -> None:
        _check("computing", self.forward, self.backward, self.optimizer)

    @property
    def total(self) -> float:
        """Of the whole step."""
        return self.forward + self.backward + self.optimizer


@dataclass(frozen=True)
class Shipment:
    """One bucket's way to the other ranks."""

    ready: float
    """Seconds from the beginning of the backward pass to its last gradient, where nothing is exchanged."""
    kind: Kind
    nbytes: float
    """Of a rank's message; of the whole buffer for `SUM` and `SHARES`."""
    encode: float = 0.0
    decode: float = 0.0
    """Seconds of this rank's thread: before the message leaves, and when all have arrived."""

    def __post_init__(self) -> None:
        _check("a bucket", self.ready, self.nbytes, self.encode, self.decode)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, and what they went for. The parts add up to the total."""

    compute: float
    encode: float
    decode: float
    stolen: float
    """By collectives, of the cores that the backward pass was using."""
    exposed: float
    """For the wire and for the last rank, not hidden behind anything."""
    verdict: float
    sent: float
    """Bytes that left this rank."""

    @property
    def total(self) -> float:
        return self.compute + self.encode + self.decode + self.stolen + self.exposed + self.verdict

    def over(self, steps: int) -> StepTime:
        """The average of so many steps that this one exchange closes."""
        return StepTime(*(getattr(self, each.name) / steps for each in fields(self)))


def step_time(
    shipments: Sequence[Shipment],
    wire: Wire,
    compute: Compute,
    *,
    crowding: float = 0.0,
    verdicts: int = 0,
    between: float = 0.0,
) -> StepTime:
    """The step that exchanges these buckets, in the order in which they become ready.

    `crowding` says how many seconds a second of a collective's host work takes from computing: 0 where a core is free
    for it, 1 where this rank's only core does both, 2 where two ranks share one. `verdicts` counts the small rounds at
    the end of the step by which ranks agree, `between` the seconds of whatever else a method's hook does there.

    >>> step_time([Shipment(0.5, SUM, 1e6)], Wire(2, up=8e6), Compute(1.0, 1.0)).total  # 1 MB, half of it hidden
    2.5
    """
    first = _outward(shipments, wire, crowding)
    late = first.encode + first.stolen
    now = backward_over = compute.backward + late
    dues, ends = list(first.dues), first.link
    for place, each in enumerate(shipments):
        if each.kind == SHARES:  # its second half begins when the first has come
            now = max(now, dues[place])
            ends = max(ends, now + wire.tell.alpha) + wire.carrying(SHARES, each.nbytes) / 2
            dues[place] = ends
    for due, each in zip(dues, shipments, strict=True):
        now = max(now, due) + each.decode
    decode = sum(each.decode for each in shipments)
    return StepTime(
        compute=compute.total,
        encode=first.encode,
        decode=decode,
        stolen=first.stolen,
        exposed=now - backward_over - decode + (wire.skew if shipments else 0.0),
        verdict=verdicts * wire.seconds(TELL, VERDICT) + between,
        sent=sum(wire.sent(each.kind, each.nbytes) for each in shipments) + verdicts * wire.sent(TELL, VERDICT),
    )


@dataclass(frozen=True)
class _Outward:
    """The buckets on their way: when each arrives, when the link is free, and what the backward pass lost."""

    dues: tuple[float, ...]
    link: float
    encode: float
    stolen: float


def _outward(shipments: Sequence[Shipment], wire: Wire, crowding: float) -> _Outward:
    lanes, dues = [0.0] * wire.lanes, []
    link = encode = stolen = 0.0
    for place, each in enumerate(shipments):
        encode += each.encode
        start = max(each.ready + encode + stolen, min(lanes))
        half = 0.5 if each.kind == SHARES else 1.0
        link = max(start + wire.cost(each.kind).alpha, link) + half * wire.carrying(each.kind, each.nbytes)
        lanes[lanes.index(min(lanes))] = link
        dues.append(link)
        if place < len(shipments) - 1:  # behind the last there is no backward pass left to disturb
            stolen += crowding * wire.host(each.kind, each.nbytes)
    return _Outward(tuple(dues), link, encode, stolen)


def _check(what: str, *values: float) -> None:
    for value in values:
        if not 0 <= value < math.inf:
            raise ConfigError(
                f"seconds and bytes of {what} must be finite and at least 0, got {value}: measure it anew"
            )

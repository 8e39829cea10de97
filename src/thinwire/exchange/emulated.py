"""An emulated link: what real ranks of one machine exchange comes no sooner than a link of some rate had carried it.

Nothing is slowed down on its way. A collective takes place at once, beside the backward pass, and whoever waits for its
result waits until a first-in-first-out link of this rate would have carried its bytes. There are no packets here, no
protocol headers, no losses, and no root: what a real wire adds to this is in `docs/lab.md`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from thinwire.errors import ConfigError
from thinwire.exchange.protocol import Exchange, Incoming, Reduces, Scatters, Trades, Traffic, allgather_bytes
from thinwire.link import seconds_on, show_rate

LATENCY = 1e-4
"""Seconds that the last byte is on its way: of a switch and two short cables."""
NUMBER = 8
"""Bytes of a number that all ranks tell each other."""


@final
class Link:
    """One rank's own link, with a queue each way: a byte leaves when those that were handed over before it have left.

        free <- max(free, now) + 8 bytes / rate;      due = the later way's free + latency

    Rates are bits a second; None carries any number of bytes at once.

    >>> times = iter([0.0, 0.0, 5.0])
    >>> link = Link(8e6, latency=0.0, clock=lambda: next(times))  # a megabyte a second
    >>> link.carry(1e6, 1e6), link.carry(1e6, 0), link.carry(0, 1e6)  # the second one queues, the third need not
    (1.0, 2.0, 6.0)
    """

    def __init__(
        self,
        up: float | None,
        down: float | None = None,
        *,
        latency: float = LATENCY,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 0 <= latency < math.inf:
            raise ConfigError(f"the latency of a link must be seconds of at least 0, got {latency}; 1e-4 is usual")
        self._latency, self._clock, self._sleep = latency, clock, sleep
        self._up_free = self._down_free = -math.inf
        self.shape(up, up if down is None else down)

    def shape(self, up: float | None, down: float | None) -> None:
        """Give the link other rates; what was handed over before keeps its time."""
        self.up, self.down = _checked("up", up), _checked("down", down)

    def __str__(self) -> str:
        shown = ["unshaped" if rate is None else show_rate(rate) for rate in (self.up, self.down)]
        words = shown[0] if shown[0] == shown[1] else f"{shown[0]} up, {shown[1]} down"
        return f"emulated link, {words}"

    def carry(self, sent: float, received: float) -> float:
        """Hand over so many bytes each way; the moment, by the link's clock, at which both have been carried."""
        now = self._clock()
        self._up_free = _after(self._up_free, now, self.up, sent)
        self._down_free = _after(self._down_free, now, self.down, received)
        if self.up is None and self.down is None:
            return now
        return max(self._up_free, self._down_free) + self._latency

    def wait(self, due: float) -> None:
        """Wait until a moment has come."""
        while (rest := due - self._clock()) > 0:
            self._sleep(rest)


def _checked(way: str, rate: float | None) -> float | None:
    if rate is not None and not 0 < rate < math.inf:
        raise ConfigError(f"the rate {way} must be finite and above 0 bits a second, got {rate}; 1e8 is 100mbit")
    return rate


def _after(free: float, now: float, rate: float | None, nbytes: float) -> float:
    """When one way is free again."""
    return max(free, now) + (0.0 if rate is None else seconds_on(rate, nbytes))


@dataclass(frozen=True)
class Delayed:
    """Messages on their way over an emulated link."""

    incoming: Incoming
    link: Link
    due: float

    @property
    def traffic(self) -> Traffic:
        """What moving them costs this worker."""
        return self.incoming.traffic

    def wait(self) -> Sequence[Tensor] | Tensor:
        """The messages, once they are here and the link would have carried them."""
        messages = self.incoming.wait()
        self.link.wait(self.due)
        return messages


class Emulated:
    """An `Exchange` whose ranks are joined as if by links of some rate: the same messages, later.

    >>> from thinwire.exchange import Loopback
    >>> import torch
    >>> one, two = Loopback(2).ends
    >>> sent = torch.zeros(1250, dtype=torch.uint8)
    >>> arriving = two.gather(sent, fixed=True, longest=0, what="x")
    >>> slow, start = Emulated(one, Link(1e6)), time.monotonic()
    >>> messages = slow.gather(sent, fixed=True, longest=0, what="x").wait()  # 10 ms at 1 Mbit/s
    >>> len(messages), time.monotonic() - start >= 0.01
    (2, True)
    """

    def __init__(self, inner: Exchange, link: Link) -> None:
        self.inner, self.link = inner, link

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self.inner.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.inner.size

    def begin(self, moment: str) -> None:
        """A round of collectives begins."""
        self.inner.begin(moment)

    def gather(self, message: Tensor, *, fixed: bool, longest: int, what: str) -> Delayed:
        """Start to gather everyone's message. Lengths that must be told first wait behind what is under way."""
        if fixed:
            return self._delayed(self.inner.gather(message, fixed=fixed, longest=longest, what=what))
        told = self._told(1)
        incoming = self.inner.gather(message, fixed=fixed, longest=longest, what=what)
        self.link.wait(told)
        return self._delayed(incoming, less=self._bytes(1))

    def _delayed(self, incoming: Incoming, less: int = 0) -> Delayed:
        traffic = incoming.traffic
        return Delayed(incoming, self.link, self.link.carry(traffic.sent - less, traffic.received - less))

    def everyone(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        """Every rank's few numbers, in rank order; waits for all, and for the link."""
        told = self._told(len(numbers))
        rows = self.inner.everyone(numbers, what)
        self.link.wait(told)
        return rows

    def _told(self, count: int) -> float:
        """When so many numbers to each other rank, and from it, have been carried."""
        return self.link.carry(self._bytes(count), self._bytes(count))

    def _bytes(self, count: int) -> int:
        return allgather_bytes(NUMBER * count, self.size)


class EmulatedSums(Emulated):
    """The same around an exchange by which messages can be added up on their way."""

    inner: Scatters

    def scatter(self, rows: Tensor, what: str) -> Delayed:
        """Start to send row j to rank j."""
        return self._delayed(self.inner.scatter(rows, what))


class EmulatedTrades(EmulatedSums):
    """The same around an exchange by which each rank can be told something else, too."""

    def trade(self, letters: Sequence[Tensor], sizes: Sequence[int], what: str) -> Delayed:
        """Start to send letter j to rank j."""
        assert isinstance(self.inner, Trades)
        return self._delayed(self.inner.trade(letters, sizes, what))


class EmulatedGroup(EmulatedTrades):
    """The same around an exchange that adds up plain numbers too: what leaves a rank for a ring queues."""

    def reduce_(self, numbers: Tensor, what: str) -> Delayed:
        """Start to replace numbers by their sum over all ranks."""
        assert isinstance(self.inner, Reduces)
        return self._delayed(self.inner.reduce_(numbers, what))


def emulated(exchange: Exchange, link: Link | None) -> Exchange:
    """The exchange behind a link, or as it is where there is none."""
    if link is None:
        return exchange
    if not isinstance(exchange, Scatters):
        return Emulated(exchange, link)
    if isinstance(exchange, Trades) and isinstance(exchange, Reduces):
        return EmulatedGroup(exchange, link)
    return EmulatedTrades(exchange, link) if isinstance(exchange, Trades) else EmulatedSums(exchange, link)

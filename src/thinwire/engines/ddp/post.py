"""Post: one rank's messages of a step, on their way to the others and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from thinwire.channel import Channel
from thinwire.engines.ddp.averaging import Averaging
from thinwire.engines.ddp.bucket import Arrival
from thinwire.engines.ddp.laps import Laps, NoLaps
from thinwire.engines.ddp.two_hops import send_answers, send_shares
from thinwire.errors import ThinwireError, WireError
from thinwire.exchange import Exchange, Incoming, Reduces, Scatters, Sharded, Traffic, adds_up
from thinwire.exchange.bundle import FULL, SHORT, gather_together
from thinwire.layout import Layout
from thinwire.ledger import Ledger
from thinwire.outgoing import Agreed, Given, Outgoing, Sketched, longest_message
from thinwire.payload.letter import Contents
from thinwire.payload.sums import add_up, write_shares, write_total


class Post:
    """What a handle has sent in the step under way, what has come of it, and what went wrong on this rank alone.

    Messages about a bucket are gathered, added up on their way, or sent to the owners of its numbers; on a GPU a bucket
    of which nothing but the mean is asked is reduced by the exchange itself.
    """

    def __init__(self, channel: Channel, exchange: Exchange, ledger: Ledger) -> None:
        self._channel, self._exchange, self._ledger = channel, exchange, ledger
        self._scatters, self.reduces = isinstance(exchange, Scatters), isinstance(exchange, Reduces)
        self.errors: list[ThinwireError] = []
        """The other ranks wait for this one's verdict, and hear of them by it."""
        self.laps: Laps = NoLaps()
        self.clear()

    def clear(self) -> None:
        """Forget what is under way."""
        self._arrivals: list[Arrival] = []
        self._waiting: list[Arrival] = []
        self._means: list[Averaging] = []

    def agreed(self, layout: Layout, given: Given, place: int) -> Given:
        """What is given, with what all ranks agree upon before they send, where rules ask for that."""
        sketched = self._channel.sketch(layout, given)
        return given if sketched is None else replace(given, agreed=self._agreement(sketched, place))

    def _agreement(self, sketched: Sketched, place: int) -> Agreed:
        """Add up all ranks' sketches, and wait for the sum. A rank that cannot read them goes on with zeros, in
        messages of the right size, and the others hear of it by the verdict."""
        if not sketched.numbers.numel():
            return sketched.none()
        arrival = Arrival(sketched.outgoing, sketched.numbers, place)
        found: list[Agreed] = []
        messages = self._summed(arrival, f"sketches of bucket {place}")

        def read() -> None:
            if not arrival.in_shares:
                agreed, fault = sketched.agree(messages)
            else:
                assert arrival.flags is not None
                agreed, fault = sketched.agree_total(arrival.flags, messages)
            found.append(agreed)
            self._channel.fault = self._channel.fault or fault

        if not arrival.in_shares or arrival.flags is not None:
            self.attempt(read)
        return found[0] if found else sketched.none()

    def _summed(self, arrival: Arrival, what: str) -> Sequence[Tensor] | Tensor:
        """All ranks' letters, or the totals of their shares, once they are here."""
        sent, exchange = arrival.sent, self._exchange
        if not self._adds_up(sent):
            incoming = exchange.gather(sent.message, fixed=True, longest=0, what=what)
            self._ledger.carry(incoming.traffic)
            return incoming.wait()
        self._ledger.carry(self._traffic_of_sum(sent))
        letters = self._scatter(arrival, what).wait()
        return self._add_up(arrival, letters).wait()

    def send(self, sent: Outgoing, gradient: Tensor, place: int) -> None:
        """Send a message on its way; what comes of it is written where the gradient is."""
        arrival = Arrival(sent, gradient, place)
        self._arrivals.append(arrival)
        self._start(arrival)

    def sent(self, *, last: bool) -> None:
        """A bucket is done: short messages that wait for each other go, if they are many, or it was the last. What was
        sent of those before it is added up and passed on, while this one is on its way and the next is computed."""
        self._send_waiting(0 if last else FULL)
        self._pass_on(self._arrivals[:-1])

    def _start(self, arrival: Arrival) -> None:
        """Send a message on its way, to be gathered or added up; a short one waits for the next."""
        sent, exchange = arrival.sent, self._exchange
        if isinstance(exchange, Sharded):
            self._send_shares(exchange, arrival)
        elif self._adds_up(sent):
            arrival.incoming = self._scatter(arrival, arrival.what)
            self._book(arrival, self._traffic_of_sum(sent))
        elif sent.usual >= SHORT or sent.message.is_cuda:
            self._gather([arrival])
        else:
            self._waiting.append(arrival)

    def _adds_up(self, sent: Outgoing) -> bool:
        own = sent.summand
        return own is not None and self._scatters and adds_up(own.numbers.nbytes, self._exchange.size)

    def _scatter(self, arrival: Arrival, what: str) -> Incoming:
        """Start to tell each rank its share of a message, to be added up there."""
        sent, exchange, arrival.in_shares = arrival.sent, self._exchange, True
        assert isinstance(exchange, Scatters)
        assert sent.summand is not None
        return exchange.scatter(write_shares(sent.summand, sent.expected, exchange.rank, exchange.size), what)

    def _traffic_of_sum(self, sent: Outgoing) -> Traffic:
        assert sent.summand is not None
        size = self._exchange.size
        return Traffic.of_sum(sent.message.numel(), sent.summand.share_size(size), size)

    def _send_waiting(self, least: int) -> None:
        """Send what waits off, if it is so many bytes."""
        if self._waiting and sum(each.sent.usual for each in self._waiting) >= least:
            waiting, self._waiting = self._waiting, []
            self._gather(waiting)

    def _gather(self, arrivals: Sequence[Arrival]) -> None:
        """Start to gather the messages of some buckets in one collective."""
        try:
            parts = gather_together(
                self._exchange,
                [one.sent.message for one in arrivals],
                fixed=all(one.sent.fixed for one in arrivals),
                longest=sum(longest_message(one.sent.layout) for one in arrivals),
                what=" and ".join(one.what for one in arrivals),
            )
        except WireError as error:  # a length that cannot be: every rank has heard it, and none gathers these buckets
            self.errors.append(error)
            return
        for one, part in zip(arrivals, parts, strict=True):
            one.incoming = part
            self._book(one, part.traffic)

    def _book(self, arrival: Arrival, traffic: Traffic) -> None:
        sent = arrival.sent
        self._ledger.add(traffic, sent.layout.numel, sent.norms, sent.elements)

    def average(self, layout: Layout, flat: Tensor, place: int) -> None:
        """Start to replace a bucket by its mean over all ranks."""
        assert isinstance(self._exchange, Reduces)
        averaging = Averaging.bare(self._exchange, flat, layout, f"bucket {place}", half=False)
        for traffic in averaging.traffics:
            self._ledger.add(traffic, layout.numel, {}, layout.numel)
        self._means.append(averaging)

    def receive_early(self) -> None:
        """On a GPU, turn earlier buckets' messages into gradients while the backward pass goes on: nobody waits for
        them, for what they say is judged at the end of the step."""
        for arrival in self._arrivals[:-1] if not isinstance(self._exchange, Sharded) else ():
            if arrival.incoming is not None and arrival.sent.fixed and arrival.gradient.is_cuda:
                incoming, arrival.incoming = arrival.incoming, None
                self._receive_from(incoming, arrival)

    def receive_all(self) -> None:
        """Turn what has arrived into gradients, in the order it was sent. An error is kept for the verdict."""
        self._pass_on(self._arrivals)
        if isinstance(self._exchange, Sharded):
            self._answer(self._exchange)
        for arrival in self._arrivals:
            if arrival.incoming is not None:
                self._receive_from(arrival.incoming, arrival)
        for averaging in self._means:
            averaging.receive(self._channel)

    def _receive_from(self, incoming: Incoming, arrival: Arrival) -> None:
        try:
            messages = incoming.wait()
        except WireError as error:  # those that travelled together cannot be told apart
            self.errors.append(error)
        else:
            self.laps.lap("wait", arrival.place)
            self.attempt(partial(self._receive, arrival, messages))
        self.laps.lap("decode", arrival.place)

    def _receive(self, arrival: Arrival, messages: Sequence[Tensor] | Tensor) -> None:
        if arrival.sent.shares is not None:
            if arrival.answer is not None and arrival.answer.flags is not None:
                self._channel.receive_answers(arrival.sent, arrival.answer, messages, arrival.gradient)
        elif not arrival.in_shares:
            self._channel.receive(arrival.sent, messages, arrival.gradient)
        elif arrival.flags is not None:
            self._channel.receive_total(arrival.sent, arrival.flags, messages, arrival.gradient)

    def _pass_on(self, arrivals: Sequence[Arrival]) -> None:
        """Add up the shares of some buckets, each once: every rank does so at the same hook, or collectives would meet
        others' of another bucket."""
        for arrival in arrivals:
            if arrival.in_shares and not arrival.passed_on and arrival.incoming is not None:
                letters = arrival.incoming.wait()
                self.laps.lap("wait", arrival.place)
                arrival.passed_on, arrival.incoming = True, self._add_up(arrival, letters)

    def _add_up(self, arrival: Arrival, letters: Sequence[Tensor] | Tensor) -> Incoming:
        """Add up this rank's share of a message, and start to tell the others. Where a letter cannot be read they wait
        all the same: they get zeros, and hear by the verdict that no rank takes the step."""
        sent, own = arrival.sent, arrival.sent.summand
        assert own is not None
        total = own.numbers.new_zeros(own.share(self._exchange.size))

        def add() -> None:
            arrival.flags, found = add_up(letters, own, sent.expected)
            total.copy_(found)

        self.attempt(add)
        message = write_total(total, own, sent.expected, self._exchange.rank)
        return self._exchange.gather(message, fixed=True, longest=0, what="the totals of a bucket")

    def _send_shares(self, exchange: Sharded, arrival: Arrival) -> None:
        """Start to tell every owner of its numbers."""
        try:
            arrival.incoming = send_shares(exchange, arrival.sent, arrival.what, self._ledger)
        except WireError as error:  # a length that cannot be: every rank has heard it
            self.errors.append(error)
        else:
            self._book(arrival, arrival.incoming.traffic)

    def _answer(self, exchange: Sharded) -> None:
        """Start to tell everyone what this rank makes of all that it was told of its own numbers."""
        for arrival in self._arrivals:
            if arrival.incoming is not None:
                found: list[Contents] = []
                messages, arrival.incoming = arrival.incoming.wait(), None
                self.attempt(partial(self._open, arrival, messages, found))
                arrival.answer = self._channel.answer(arrival.sent, found[0] if found else None)
        try:
            send_answers(exchange, self._arrivals, self._ledger)
        except WireError as error:
            self.errors.append(error)

    def _open(self, arrival: Arrival, messages: Sequence[Tensor] | Tensor, found: list[Contents]) -> None:
        found.append(self._channel.opened(arrival.sent, messages))

    def attempt(self, reading: Callable[[], object]) -> None:
        """Do what may fail on this rank alone; the others wait for the verdict, and must hear of it."""
        try:
            reading()
        except ThinwireError as error:
            self.errors.append(error)
        except Exception as error:
            problem = WireError(
                f"rank {self._exchange.rank} could not read what it was sent: {type(error).__name__}: {error}"
            )
            problem.__cause__ = error
            self.errors.append(problem)

"""What a step would take if its buckets travelled otherwise: the timeline of a step, with what was measured put in."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.engines.auto.modes import BucketFacts, Mode, Plan, Window
from thinwire.timeline import GATHER, SUM, Collective, Compute, Shipment, Wire, step_time

FASTEST = 1e12
"""Bits a second; what a probe finds beyond is taken for this."""


class Forecast:
    """Seconds of a step under any plan.

    The hosts' own seconds (computing, encoding, decoding) and the bytes of messages are those last seen in each mode;
    the wire is what probes found.
    """

    def __init__(self, workers: int, buckets: Sequence[BucketFacts]) -> None:
        self.workers, self.buckets = workers, tuple(buckets)
        self.wire: Wire | None = None
        """None: not probed yet, or no longer believed."""
        self._compute = (0.0,) * len(self.buckets)
        self._hosts: dict[tuple[int, Mode], tuple[float, float]] = {}
        self._messages: dict[int, float] = {}
        self._verdict = 0.0

    def learn(self, window: Window, plan: Plan) -> None:
        """Take in what was seen under a plan."""
        self._compute = window.compute
        self._verdict = window.verdict or self._verdict
        for place, mode in enumerate(plan):
            self._hosts[place, mode] = (window.encode[place], window.decode[place])
            if mode is Mode.COMPRESSED:
                self._messages[place] = window.message[place]

    def probed(self, alpha: float, nbytes: int, seconds: float) -> None:
        """A sum of so many bytes took so long, and one of hardly any alpha."""
        sent = 2 * (self.workers - 1) / self.workers * nbytes
        rate = min(8 * sent / max(seconds - alpha, 1e-6), FASTEST)
        cost = Collective(alpha)
        self.wire = Wire(self.workers, up=rate, sum=cost, gather=cost, tell=Collective(min(alpha, self._verdict)))

    def probe_seconds(self, nbytes: int) -> float:
        """What a sum of so many bytes should take."""
        assert self.wire is not None
        return self.wire.seconds(SUM, nbytes)

    def probe_bytes(self, seconds: float) -> int:
        """How many bytes take so long on the wire, whole numbers of 32 bits."""
        assert self.wire is not None
        assert self.wire.up is not None
        sent = self.wire.up * seconds / 8
        return int(sent * self.workers / (2 * (self.workers - 1))) // 4 * 4

    def __call__(self, plan: Plan) -> float:
        """Seconds of a step."""
        assert self.wire is not None
        ready, shipments = 0.0, []
        for place, mode in enumerate(plan):
            ready += self._compute[place] if place else 0.0
            shipments.append(self._shipment(place, mode, ready))
        compute = Compute(self._compute[0], ready)
        return step_time(shipments, self.wire, compute, verdicts=int(Mode.COMPRESSED in plan)).total

    def _shipment(self, place: int, mode: Mode, ready: float) -> Shipment:
        facts = self.buckets[place]
        encode, decode = self._hosts.get((place, mode), self._unseen(place))
        if mode is Mode.COMPRESSED:
            return Shipment(ready, GATHER, self._messages.get(place, 0.0), encode, decode)
        return Shipment(ready, SUM, facts.numel * (2 if mode is Mode.HALF else facts.itemsize), encode, decode)

    def _unseen(self, place: int) -> tuple[float, float]:
        """Of a mode that was not tried: nothing where it is DDP's own, else what leaving out the rest takes."""
        return (0.0, 0.0) if self.buckets[place].bare else self._hosts.get((place, Mode.COMPRESSED), (0.0, 0.0))

    def words(self) -> str:
        """What is believed of the wire."""
        if self.wire is None or self.wire.up is None:
            return "the wire was not measured yet"
        return (
            f"the wire, by sums of known size: {self.wire.up / 1e6:,.3g} Mbit/s beside "
            f"{1e3 * self.wire.sum.alpha:.3g} ms a collective"
        )


def probe_is_near(found: float, expected: float, factor: float, least: float) -> bool:
    """Whether a probe took about what it should: within a factor, or within so many seconds."""
    return abs(found - expected) <= least or expected / factor <= found <= expected * factor

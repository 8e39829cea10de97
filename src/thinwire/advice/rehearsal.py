"""A rehearsal: what a step takes of a machine that exchanges nothing, and what each method adds to it. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

from thinwire.timeline import Collective, Compute, Kind, Shipment, StepTime, Wire, step_time


@dataclass(frozen=True)
class Leg:
    """What a method sends about one bucket: bytes of a rank's message, and seconds to encode and to decode."""

    ready: float
    """The share of the backward pass after which the bucket's last gradient is there."""
    kind: Kind
    nbytes: float
    encode: float = 0.0
    decode: float = 0.0
    each: float = 0.0
    """Of decoding one worker's message; `decode` is what there is beside them."""

    def shipment(self, workers: int, backward: float) -> Shipment:
        """Among so many workers, in a backward pass of so many seconds."""
        return Shipment(self.ready * backward, self.kind, self.nbytes, self.encode, self.decode + workers * self.each)


@dataclass(frozen=True)
class Burden:
    """What a method adds to a step."""

    legs: tuple[Leg, ...]
    optimizer: float
    """Seconds of the optimizer that goes with the method."""
    between: float = 0.0
    """Seconds of whatever else its hook does."""
    verdicts: int = 0
    """Small rounds by which ranks agree on the step."""
    rounds: int = 0
    """All-reduces that wait for one before them, beside those of the legs."""
    every: int = 1
    """Steps of computing before an exchange."""
    state: float | None = None
    """Bytes a parameter that it remembers, beside the model, its gradients and the optimizer."""


@dataclass(frozen=True)
class Findings:
    """What one rank found."""

    compute: Compute
    """Seconds of a step in which nothing is exchanged."""
    low: float
    high: float
    """The quartiles of its turns, as factors on the median."""
    parameters: int
    burdens: Mapping[str, Burden]

    def plain(self) -> dict[str, Any]:
        """As JSON has it; `of_plain` is the inverse."""
        return asdict(self)

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Findings:
        burdens = {method: _burden(each) for method, each in plain["burdens"].items()}
        return Findings(**{**plain, "burdens": burdens, "compute": Compute(**plain["compute"])})

    def replayed(self, seconds: float) -> Findings:
        """The same where computing takes so long, a third of it forward, and gradients come evenly."""
        burdens = {method: _evenly(burden) for method, burden in self.burdens.items()}
        return replace(self, compute=Compute(seconds / 3, 2 * seconds / 3), burdens=burdens, low=1.0, high=1.0)

    def times(self, more: float) -> Findings:
        """The same with so many times the parameters: bytes and codecs grow alike."""
        burdens = {method: _larger(burden, more) for method, burden in self.burdens.items()}
        return replace(self, parameters=round(more * self.parameters), burdens=burdens)


@dataclass(frozen=True)
class Rehearsal:
    """One model among so many workers on one kind of machine, and what joins them."""

    model: str
    batch: int | None
    here: int
    """How many workers shared a machine while it was measured."""
    cores: int
    machine: str
    found: Findings
    wire: Wire
    known: bool = False
    """Whether the wire was measured; else its latencies are usual ones."""
    slept: float = 0.0
    """Seconds of the forward pass that were slept in place of computing: they take no core."""

    @property
    def crowding(self) -> float:
        """What a second of a collective's work on the cores takes from computing."""
        return self.here / self.cores if self.here >= self.cores else 0.0

    @property
    def slower(self) -> float:
        """How many times longer whatever works takes where workers share cores: they were measured on one each."""
        return max(1.0, self.here / self.cores)

    @property
    def compute(self) -> Compute:
        """Seconds of a step without exchange, as workers take it together."""
        alone, slower = self.found.compute, self.slower
        forward = self.slept + slower * max(0.0, alone.forward - self.slept)
        return Compute(forward, slower * alone.backward, slower * alone.optimizer)

    def step(self, method: str, wire: Wire) -> StepTime:
        """One step by a method, on average where not every step exchanges."""
        burden = _slowed(self.found.burdens[method], self.slower)
        compute = replace(self.compute, optimizer=burden.optimizer)
        if burden.every == 1:
            return self._exchange(burden, wire, compute)
        window = Compute(*(burden.every * s for s in (compute.forward, compute.backward, compute.optimizer)))
        late = replace(burden, legs=tuple(replace(leg, ready=1.0) for leg in burden.legs))
        return self._exchange(late, wire, window).over(burden.every)

    def _exchange(self, burden: Burden, wire: Wire, compute: Compute) -> StepTime:
        return step_time(
            [leg.shipment(wire.workers, compute.backward) for leg in burden.legs],
            wire,
            compute,
            crowding=self.crowding,
            verdicts=burden.verdicts,
            between=burden.between + burden.rounds * wire.sum.alpha,
        )

    def plain(self) -> dict[str, Any]:
        """As JSON has it; `of_plain` is the inverse."""
        return asdict(self)

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Rehearsal:
        found, wire = Findings.of_plain(plain["found"]), _wire(plain["wire"])
        return Rehearsal(**{**plain, "found": found, "wire": wire})


def _burden(plain: Mapping[str, Any]) -> Burden:
    return Burden(**{**plain, "legs": tuple(Leg(**leg) for leg in plain["legs"])})


def _wire(plain: Mapping[str, Any]) -> Wire:
    return Wire(**{**plain, **{kind: Collective(**plain[kind]) for kind in ("sum", "gather", "tell")}})


def _slowed(burden: Burden, times: float) -> Burden:
    """On cores that are shared."""
    legs = (
        replace(leg, encode=times * leg.encode, decode=times * leg.decode, each=times * leg.each) for leg in burden.legs
    )
    return replace(burden, legs=tuple(legs), optimizer=times * burden.optimizer, between=times * burden.between)


def _evenly(burden: Burden) -> Burden:
    """With gradients that come in time with their number."""
    sizes = [max(leg.encode, 1e-9) for leg in burden.legs]
    places = [at / sum(sizes) for at in accumulate(sizes)]
    legs = (replace(leg, ready=min(1.0, at)) for leg, at in zip(burden.legs, places, strict=True))
    return replace(burden, legs=tuple(legs), optimizer=0.0)


def _larger(burden: Burden, more: float) -> Burden:
    legs = [
        replace(leg, **{what: more * getattr(leg, what) for what in ("nbytes", "encode", "decode", "each")})
        for leg in burden.legs
    ]
    return replace(burden, legs=tuple(legs), optimizer=more * burden.optimizer)

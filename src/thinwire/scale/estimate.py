"""What an exchange costs a worker at any number of workers: bytes of real messages, and seconds by the timeline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from thinwire.channel import Channel
from thinwire.errors import AttachError, ConfigError
from thinwire.exchange import adds_up, allgather_bytes, allreduce_bytes, owners_among
from thinwire.exchange.emulated import LATENCY
from thinwire.exchange.group import DIRECT
from thinwire.feedback import Need
from thinwire.outgoing import Given, Outgoing
from thinwire.owners import LEAST
from thinwire.spec import parse
from thinwire.timeline import GATHER, SHARES, SUM, TELL, Collective, Compute, Kind, Shipment, Wire, step_time

MOST_WORKERS = 4096
BUCKET = 25 << 20
"""Bytes of DDP's buckets."""
RING, EVERYONE, SUMS, SERVER = "dense float32 ring", "gather", "added up", "server"
"""The exchanges: DDP's own all-reduce; and thinwire's messages, gathered, added up, or by a sharded server."""


@dataclass(frozen=True, kw_only=True)
class ScaleSetting:
    """What is asked: a rule, on how many workers, for a model of how many numbers, over which links.

    >>> ScaleSetting(rule="memsgd(topk(0.01))", workers=(1,))
    Traceback (most recent call last):
        ...
    thinwire.errors.ConfigError: --workers takes numbers from 2 to 4,096, got 1: one alone exchanges nothing
    """

    rule: str
    workers: tuple[int, ...]
    parameters: int = 1_000_000
    rate: float = 1e8
    """Bits a second of every worker's link, each way."""
    latency: float = LATENCY
    """Seconds that a message is on its way."""
    message: float = 5e-5
    """Seconds of a core that sending a message and taking one in costs. gloo, 1 kB to each of 4 to 16 ranks on two
    cores: 3 to 8 of them."""
    compute: float = 0.03
    """Seconds of a step in which nothing is exchanged."""
    least: int = LEAST
    """Numbers of a share of the server's, at least."""
    numbers: int = 0
    """Of the convex problem that is trained; 0: none."""
    steps: int = 200
    step_size: float = 0.1
    """Of that problem, over 1 / L."""

    def __post_init__(self) -> None:
        for workers in self.workers:
            if not 2 <= workers <= MOST_WORKERS:
                why = "one alone exchanges nothing" if workers < 2 else "nobody has tried more"
                raise ConfigError(f"--workers takes numbers from 2 to {MOST_WORKERS:,}, got {workers:,}: {why}")
        for option, number in (("--parameters", self.parameters), ("--steps", self.steps), ("--least", self.least)):
            if not 1 <= number <= 10**9:
                raise ConfigError(f"{option} takes a number from 1 to 10⁹, got {number:,}")
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise ConfigError(f"--rate must be above 0 bits a second, got {self.rate:g}")
        if not 0 <= self.numbers <= 10**8:
            raise ConfigError(f"--convex takes a number from 0 to 10⁸, got {self.numbers:,}")
        if not 0 < self.step_size <= 2:
            raise ConfigError(f"--step-size must lie in (0, 2], over 1/L, got {self.step_size:g}: 0.1 is usual")
        for option in ("latency", "message", "compute"):
            seconds = getattr(self, option)
            if not (math.isfinite(seconds) and 0 <= seconds < 3600):
                raise ConfigError(f"--{option} takes milliseconds from 0 to an hour, got {1e3 * seconds:g}")

    def wire(self, workers: int) -> Wire:
        """A ring passes messages on from one to the next; what goes to everyone directly is on its way at once."""
        hops, hop = workers - 1, self.latency + self.message
        return Wire(
            workers,
            up=self.rate,
            sum=Collective(alpha=2 * hops * hop),
            gather=Collective(alpha=hops * hop),
            tell=Collective(alpha=self.latency + hops * self.message),
        )


@dataclass(frozen=True)
class Cost:
    """One exchange among some workers, a step."""

    exchange: str
    workers: int
    sent: float
    """Bytes that leave a worker, in the mean."""
    most: float
    """Of the worker that sends most."""
    entries: float | None
    """Numbers that leave a worker, in the mean, where the format counts them."""
    messages: int
    """That a worker sends."""
    latency: float
    """Seconds of its hops, were there no bytes in them."""
    seconds: float
    """Of a step."""

    def plain(self) -> dict[str, Any]:
        """As a record has it."""
        return asdict(self)

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Cost:
        return Cost(**plain)


def costs(setting: ScaleSetting, workers: int) -> list[Cost]:
    """Every exchange that the rule can take."""
    dense = 4 * setting.parameters
    sent = allreduce_bytes(dense, workers)
    ring = _cost(setting, RING, workers, SUM, dense, sent, sent, sent / 4, 2 * (workers - 1))
    served = second_hop(setting, workers)
    return [ring, _everyone(setting, workers), *([] if served is None else [served])]


def _everyone(setting: ScaleSetting, workers: int) -> Cost:
    """Messages gathered; or added up on their way, where they can be."""
    sent = _sent(setting, workers, served=False)
    size, own = sent.message.numel(), sent.summand
    entries = None if sent.elements is None else float(sent.elements) * (workers - 1)
    if own is not None and adds_up(own.numbers.nbytes, workers):
        moved, hops = 2 * (workers - 1) * own.share_size(workers), 2 * (workers - 1)
        share = own.share(workers)
        return _cost(setting, SUMS, workers, SHARES, size, moved, moved, hops * share, hops)
    moved, kind = allgather_bytes(size, workers), TELL if size <= DIRECT else GATHER
    return _cost(setting, EVERYONE, workers, kind, size, moved, moved, entries, workers - 1)


def second_hop(setting: ScaleSetting, workers: int) -> Cost | None:
    """The sharded server, whose answers are taken to be as long as what owners are told; None where the rule has none.

    >>> setting = ScaleSetting(rule="memsgd(topk(0.01))", workers=(16,), parameters=100_000)
    >>> cost = second_hop(setting, 16)
    >>> cost.entries <= 2 * 1_000, cost.messages
    (True, 30)
    """
    try:
        sent = _sent(setting, workers, served=True)
    except AttachError:
        return None
    assert sent.shares is not None
    sizes, counts = sent.shares.sizes, sent.shares.elements
    answers = sent.shares.answer_sizes or sizes
    both = [sum(sizes) - own + (workers - 1) * answer for own, answer in zip(sizes, answers, strict=True)]
    mean, entries = sum(both) / workers, 2 * (workers - 1) * sum(counts) / workers
    return _cost(setting, SERVER, workers, SHARES, sum(sizes), mean, max(both), entries, 2 * (workers - 1))


def _sent(setting: ScaleSetting, workers: int, *, served: bool) -> Outgoing:
    """One worker's message about normal gradients."""
    owners = owners_among(workers, setting.least) if served else None
    parameters = {"x": torch.zeros(setting.parameters)}
    channel = Channel(parse(setting.rule), parameters, rank=0, size=workers, owners=owners)
    if unmet := channel.needs - {Need.STEP_SIZE}:
        raise ConfigError(f"{setting.rule} needs {min(need.value for need in unmet)}, which normal gradients have not")
    gradient = torch.randn(setting.parameters, generator=torch.Generator().manual_seed(0))
    return channel.send(channel.layout(["x"]), Given(gradient, step_sizes={"x": 1.0}))


def _cost(
    setting: ScaleSetting,
    exchange: str,
    workers: int,
    kind: Kind,
    nbytes: float,
    sent: float,
    most: float,
    entries: float | None,
    messages: int,
) -> Cost:
    """Priced by the timeline, in DDP's buckets, each ready when its share of the backward pass is over."""
    wire, buckets = setting.wire(workers), -(-4 * setting.parameters // BUCKET)
    compute = Compute(setting.compute / 3, setting.compute * 2 / 3)
    ready = [compute.backward * (place + 1) / buckets for place in range(buckets)]
    step = step_time([Shipment(at, kind, nbytes / buckets) for at in ready], wire, compute, verdicts=1)
    hops = (2 if kind == SHARES else 1) * wire.cost(kind).alpha
    return Cost(exchange, workers, sent, most, entries, messages, hops, step.total)

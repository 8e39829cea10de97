"""The network as it is: what collectives of several sizes take among the ranks of a group, and the wire that fits it.

seconds(n) = alpha + least * sent(n)       fitted to each kind by robust least squares of relative errors
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist

from thinwire.exchange import Group
from thinwire.exchange.group import DIRECT
from thinwire.timeline import GATHER, SUM, TELL, Collective, Kind, Wire

SIZES: dict[Kind, tuple[int, ...]] = {
    TELL: (16, 4096, 16384, DIRECT),
    GATHER: (2 * DIRECT, 4 * DIRECT, 16 * DIRECT),
    SUM: (16, 4096, DIRECT, 4 * DIRECT, 16 * DIRECT, 64 * DIRECT),
}
"""Bytes of a message, or of a buffer that is summed. gloo tells short messages directly, and longer ones by a ring."""
REPEATS, BURST, ENOUGH = 9, 4, 1.0
"""Turns of each size, of so many in a row, or as many as take so many seconds; a size of which two take longer is the
last of its kind."""
SHORT, LONG = 5e-4, 5e-3
"""Seconds of a core before each: as between two collectives of a step, and as a backward pass."""
SIDE = 200
"""Of the matrices by whose products it is spent."""
GLOO_THREADS = 2
"""Of a process group, each of which does one collective at a time."""
TOUGH = 1.345
"""Huber's constant: errors beyond so many standard deviations weigh as their size, not as its square."""


@dataclass(frozen=True)
class Timed:
    """One size of one kind of collective: medians over repeats of the slowest rank's seconds, and of its cores'."""

    sent: float
    seconds: float
    host: float


def measured_wire(group: Group, device: torch.device, *, enough: float = ENOUGH) -> Wire:
    """The wire that joins the ranks of a group, from its own collectives. Every rank calls it, and gets the same."""
    meter = _Meter(group, device, enough)
    found = {kind: _fitted([*meter.sizes(kind)]) for kind in SIZES}
    lanes = GLOO_THREADS if dist.get_backend(group.group) == "gloo" else 1
    skew = max(0.0, meter.timed(TELL, SIZES[TELL][0], LONG).seconds - found[TELL].alpha)
    return Wire(group.size, sum=found[SUM], gather=found[GATHER], tell=found[TELL], lanes=lanes, skew=skew)


@final
class _Meter:
    """Measures collectives of one group, each among a little computing."""

    def __init__(self, group: Group, device: torch.device, enough: float) -> None:
        self._group, self._device, self._enough = group, device, enough
        self._square = torch.randn(SIDE, SIDE)
        self._work(20)
        busy = time.process_time()
        self._work(100)
        self._product = max(1e-6, (time.process_time() - busy) / 100)
        """Seconds of a core that one product takes."""

    def _work(self, products: int) -> None:
        for _ in range(products):
            torch.mm(self._square, self._square)

    def sizes(self, kind: Kind) -> Iterator[Timed]:
        """Every size of a kind, until one takes too long."""
        for place, nbytes in enumerate(SIZES[kind]):
            timed = self.timed(kind, nbytes, SHORT)
            yield timed
            if place and 2 * timed.seconds > self._enough:
                break

    def timed(self, kind: Kind, nbytes: int, before: float) -> Timed:
        """One size, with so many seconds of a core before each: what a collective adds to them."""
        products, run = round(before / self._product), _collective(self._group, kind, nbytes, self._device)
        self._turn(products, run, 1)
        once = self._agreed(self._turn(products, run, 1)[0])
        many = BURST if once < self._enough / BURST else 1
        rounds = max(2, min(REPEATS, int(self._enough / (many * once))))
        alone = [self._turn(products, None, many) for _ in range(rounds)] if many > 1 else [(0.0, 0.0)]
        taken = [self._turn(products, run, many) for _ in range(rounds)]
        seconds, host = (statistics.median(column) for column in zip(*taken, strict=True))
        bare, work = (statistics.median(column) for column in zip(*alone, strict=True))
        sent = Wire(self._group.size).sent(kind, nbytes)
        return Timed(sent, max(0.0, self._mean(seconds - bare)), max(0.0, self._mean(host - work)))

    def _turn(self, products: int, run: Callable[[], None] | None, many: int) -> tuple[float, float]:
        """Seconds by the clock and of this process's cores, of one among many; all ranks begin together."""
        self._group.everyone([0], "beginning together")
        busy, start = time.process_time(), time.perf_counter()
        for _ in range(many):
            self._work(products)
            if run is not None:
                run()
        return (time.perf_counter() - start) / many, (time.process_time() - busy) / many

    def _agreed(self, seconds: float) -> float:
        """The slowest rank's, on all alike."""
        rows = self._group.everyone([round(1e9 * seconds)], "how often to measure")
        return max(1, *(row[0] for row in rows)) / 1e9

    def _mean(self, seconds: float) -> float:
        rows = self._group.everyone([round(1e9 * seconds)], "what a collective took")
        return statistics.fmean(row[0] for row in rows) / 1e9


def _collective(group: Group, kind: Kind, nbytes: int, device: torch.device) -> Callable[[], None]:
    if kind == SUM:
        buffer = torch.zeros(nbytes // 4, device=device)
        return lambda: _sum(buffer, group.group)
    message = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    return lambda: _gather(group, message)


def _sum(buffer: torch.Tensor, group: Any) -> None:
    work: Any = dist.all_reduce(buffer, group=group, async_op=True)
    work.wait()
    _settle(buffer)


def _gather(group: Group, message: torch.Tensor) -> None:
    group.begin("measuring the network")
    group.gather(message, fixed=True, longest=0, what="a message of zeros").wait()
    _settle(message)


def _settle(tensor: torch.Tensor) -> None:
    """On a GPU a collective is over when its stream is."""
    if tensor.is_cuda:
        torch.cuda.synchronize()


def _fitted(timed: Sequence[Timed]) -> Collective:
    sent = [each.sent for each in timed]
    alpha, least = line(sent, [each.seconds for each in timed])
    host, host_byte = line(sent, [each.host for each in timed])
    return Collective(alpha=alpha, least=least, host=host, host_byte=host_byte)


def line(x: Sequence[float], y: Sequence[float], rounds: int = 20) -> tuple[float, float]:
    """a and b of y = a + b x, neither below 0, by least squares of (y - a - b x) / y in which outliers weigh little.

    >>> a, b = line([0, 1, 2, 3, 4], [1.0, 3.0, 5.0, 70.0, 9.0])
    >>> round(a, 2), round(b, 2)
    (1.0, 2.0)
    """
    xs, ys = np.asarray(x, dtype=float), np.maximum(np.asarray(y, dtype=float), 1e-9)
    weights = np.ones_like(ys)
    a = b = 0.0
    for _ in range(rounds):
        a, b = _weighted(xs, ys, weights / ys**2)
        errors = np.abs(ys - a - b * xs) / ys
        scale = 1.4826 * float(np.median(errors)) + 1e-6
        weights = np.minimum(1.0, TOUGH * scale / np.maximum(errors, 1e-12))
    return a, b


def _weighted(x: Any, y: Any, weights: Any) -> tuple[float, float]:
    """The best line that begins at 0 or above and does not fall."""
    mean_x, mean_y = np.average(x, weights=weights), np.average(y, weights=weights)
    spread = np.average((x - mean_x) ** 2, weights=weights)
    b = np.average((x - mean_x) * (y - mean_y), weights=weights) / spread if spread else 0.0
    a = mean_y - b * mean_x
    if b < 0:
        return float(mean_y), 0.0
    if a < 0:
        return 0.0, float(np.average(x * y, weights=weights) / np.average(x * x, weights=weights))
    return float(a), float(b)

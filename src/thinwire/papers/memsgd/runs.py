"""A run: one setting from x₀ ~ N(0, 0.01²) through its epochs on the lock-free engine, and the bits of its messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from thinwire import QSGD, Identity, RandK, TopK
from thinwire.channel import Channel
from thinwire.ops import backend
from thinwire.outgoing import Given
from thinwire.papers.memsgd.settings import MemSGDSetting, Scale, parsed, thread_counts

if TYPE_CHECKING:  # numba comes with it, and records are read without
    from thinwire.linear import Samples, Snapshot

LOOKS = 10
"""In an epoch, but about POINTS in a run: where time is the subject few, since threads start anew after each."""
POINTS = {"theory": 100, "bits": 100, "cores": 20, "memories": 20}
LARGEST = 1e12
"""The loss beyond which a run counts as diverged."""
WARM = 64
"""Steps of a run before the clock starts, in which the kernels are compiled."""
MESSAGES = 8
"""Whose mean length counts."""


# ----------------------------------------------------------------------------------------------------------------- bits


def paper_bits(rule: str, d: int, entries: float | None) -> float:
    """Of a message as the paper's notebook counts; `entries` is of a sparse row, None where rows are dense.

    Sparsifiers: 64 a coordinate. SGD: 64 for each number that is not zero. QSGD with s = 2^b levels: the least of
    (b + 1) d, of Elias' bound 3 s (s + √d) + 32, and of b + 1 + 32 for each number that is not zero.

    >>> [round(paper_bits(f"plain(qsgd({s}, 2000))", 2000, None)) for s in (4, 16, 256)]
    [617, 2947, 18000]
    >>> [round(paper_bits(f"plain(qsgd({s}, 47236))", 47_236, 70)) for s in (4, 16, 256)]
    [2450, 2590, 2870]
    """
    match compressor := parsed(rule).compressor:
        case TopK(count=count) | RandK(count=count):
            assert count is not None
            return 64 * count
        case QSGD(levels=s):
            b = math.log2(s)
            elias = 3 * s * (s + math.sqrt(d)) + 32
            return min((b + 1) * d, elias, *([] if entries is None else [(b + 33) * entries]))
    assert isinstance(compressor, Identity)
    return 64 * (d if entries is None else entries)


def honest_bits(rule: str, d: int, sparse: bool, steps: int, written: int) -> float:
    """Of so many messages with so many numbers other than zero in all, and of x₀, which is 32 d.

    A position takes ⌈log₂ d⌉ bits, a number 32, and no position where all d are sent. QSGD: 32 for each norm, and the
    less of a sign and a level of 0 … s for all d, and of sign, level of 1 … s and position for those that are not zero.

    >>> honest_bits("memsgd(topk(count=1))", 2000, False, 10, 10) - 32 * 2000
    430
    """
    start, position = 32 * d, math.ceil(math.log2(d))
    match parsed(rule).compressor:
        case QSGD(levels=s):
            every = steps * d * (1 + math.ceil(math.log2(s + 1)))
            return start + 32 * steps + min(every, written * (1 + math.ceil(math.log2(s)) + position))
        case Identity() if not sparse:
            return start + 32 * d * steps
    return start + written * (32 + position)


def wire_bits(rule: str, samples: Samples) -> float:
    """Of a message as thinwire packs it, with its envelope: the mean over the gradients of a few samples at x = 0."""
    first = samples.rows[:MESSAGES]
    gradients = torch.from_numpy(first if samples.dense else first.toarray())
    with backend("reference"):  # eight messages are not worth the time that kernels take to compile
        return 8 * sum(_message(rule, gradient).numel() for gradient in gradients) / len(gradients)


def _message(rule: str, gradient: torch.Tensor) -> torch.Tensor:
    channel = Channel(parsed(rule), {"x": gradient}, rank=0, size=1)
    return channel.send(channel.layout(["x"]), Given(gradient, step_sizes={"x": 1.0})).message


# --------------------------------------------------------------------------------------------------------------- result


class LossPoint(NamedTuple):
    """A run at one moment."""

    step: int
    seconds: float
    written: int
    """Coordinates, other than zeros."""
    loss: float


@dataclass(frozen=True)
class MemSGDRun:
    """What a run did."""

    setting: MemSGDSetting
    samples: int
    d: int
    entries: float
    """Numbers other than zero in a row."""
    sparse: bool
    least: float
    """f*."""
    status: str
    """done or diverged"""
    wire_bits: float | None
    """Of one of thinwire's own messages, where bits are the subject."""
    curve: tuple[LossPoint, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_plain(cls, line: dict[str, Any]) -> MemSGDRun:
        """The inverse of `plain`."""
        setting, curve = line["setting"], tuple(LossPoint(*point) for point in line["curve"])
        older = {"delay": not setting["label"].endswith(", no delay")}  # whose label alone tells of it
        return cls(**line | {"setting": MemSGDSetting(**older | setting), "curve": curve})

    @property
    def last(self) -> LossPoint:
        return self.curve[-1]

    def above(self, loss: float) -> float:
        """(f − f*)/f*."""
        return loss / self.least - 1

    @property
    def end(self) -> float:
        """How far above f* the run ended; infinitely where it diverged."""
        return self.above(self.last.loss) if self.status == "done" else math.inf

    def at_epoch(self, epoch: float) -> LossPoint:
        """The first point at or after so many epochs, else the last."""
        return next((point for point in self.curve if point.step >= epoch * self.samples), self.last)

    def reaches(self, loss: float) -> LossPoint | None:
        """The first point at or below a loss."""
        return next((point for point in self.curve if point.loss <= loss), None)

    def seconds_to(self, loss: float) -> float:
        """Until then; infinity where the run never got there."""
        point = self.reaches(loss)
        return math.inf if point is None else point.seconds

    def bits_at(self, point: LossPoint) -> tuple[float, float, float]:
        """Sent so far, by the paper's count, honestly, and of thinwire's own messages."""
        rule, steps = self.setting.rule, point.step
        each = paper_bits(rule, self.d, self.entries if self.sparse else None)
        honest = honest_bits(rule, self.d, self.sparse, steps, point.written)
        return steps * each, honest, steps * (self.wire_bits or 0.0)


# -------------------------------------------------------------------------------------------------------------- running


def default_threads() -> list[int]:
    """The paper's numbers of cores, up to those of this machine."""
    from thinwire.linear.checks import cores  # needs numba

    return thread_counts(cores())


def scales_of(places: Mapping[str, str | None], most: int | None) -> list[Scale]:
    """How large each data set is, loaded from where it lies; `most` steps a run."""
    from thinwire.papers.memsgd.unit_rows import problem_of  # needs numba

    return [Scale.of(problem_of(name, data), most) for name, data in places.items()]


def run(setting: MemSGDSetting, data: str | None = None, watch: Callable[[int], None] | None = None) -> MemSGDRun:
    """One setting to its last epoch, or until it diverges; `watch` is told of every look. Ctrl-C ends it."""
    from thinwire.papers.memsgd.unit_rows import engine_of, problem_of  # needs numba

    problem = problem_of(setting.dataset, data)
    samples = problem.samples
    engine_of(setting, problem).run(WARM)
    engine, steps = engine_of(setting, problem), setting.epochs * len(samples)

    def see(now: Snapshot) -> bool:
        if watch is not None:
            watch(now.step)
        return not now.loss < LARGEST

    looks = min(LOOKS, max(1, POINTS[setting.figure] // setting.epochs))
    done = engine.run(steps, every=-(-len(samples) // looks), watch=see)
    if done.stopped == "interrupted":
        raise KeyboardInterrupt
    return MemSGDRun(
        setting, len(samples), samples.d, problem.entries, not samples.dense, problem.least,
        "diverged" if done.stopped == "watch" else "done",
        wire_bits(setting.rule, samples) if setting.figure == "bits" else None,
        tuple(_point(now) for now in done.snapshots if now.loss < LARGEST),
    )  # fmt: skip


def _point(now: Snapshot) -> LossPoint:
    return LossPoint(now.step, round(now.seconds, 6), now.written, float(f"{now.loss:.7g}"))

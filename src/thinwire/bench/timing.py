"""Timing side by side: contenders take turns, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

Clock = Callable[[Callable[[], object]], float]
"""Runs something and says how many milliseconds that took."""
ENOUGH_MS = 5000.0
"""A contender that was measured for so long has no more turns."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of several repeats."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(times: Sequence[float]) -> Timing:
        return Timing(statistics.median(times), min(times), max(times))

    def scaled(self, factor: float) -> Timing:
        """In another unit, or a part of it."""
        return Timing(factor * self.median, factor * self.least, factor * self.most)


def wall_clock(run: Callable[[], object]) -> float:
    """Milliseconds by the clock of the machine."""
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def gpu_clock(run: Callable[[], object]) -> float:
    """Milliseconds from one CUDA event to the other, begun on an idle GPU: what the host takes to launch counts."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def busy_ms(run: Callable[[], object]) -> float:
    """Milliseconds that kernels and copies were at work on the GPU, by torch's profiler: the host does not count.

    It runs once, on what it was given: a second run of VGC's step would find more to send.
    """
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that one look at it is all there is
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            torch.cuda.synchronize()
        return float(sum(event.self_device_time_total for event in profile.key_averages())) / 1e3


def side_by_side(
    contenders: Mapping[str, Callable[[], object]],
    setup: Callable[[], object],
    repeats: int,
    clock: Clock = wall_clock,
) -> dict[str, Timing]:
    """Each contender once unmeasured, then `repeats` rounds in which each has its turn, after a `setup` of its own.

    Who has been measured for five seconds sits out the rounds that are left.
    """
    return {name: Timing.of(times) for name, times in in_turns(contenders, setup, repeats, clock).items()}


def in_turns(
    contenders: Mapping[str, Callable[[], object]],
    setup: Callable[[], object],
    repeats: int,
    clock: Clock = wall_clock,
    *,
    warm_up: int = 1,
    enough: float | None = None,
) -> dict[str, list[float]]:
    """The same, with every time: after so many rounds that are not measured, until a contender has had `enough` ms."""
    limit = ENOUGH_MS if enough is None else enough
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warm_up + repeats):
        for name, run in contenders.items():
            if sum(times[name]) < limit:
                setup()
                taken = clock(run)
                times[name] += [taken] if turn >= warm_up else []
    return times

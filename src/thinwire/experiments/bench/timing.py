"""Timing side by side: contenders take turns, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Milliseconds of several repeats."""

    median: float
    least: float
    most: float


def side_by_side(
    contenders: Mapping[str, Callable[[], object]], setup: Callable[[], object], repeats: int
) -> dict[str, Timing]:
    """Each contender once unmeasured, then `repeats` rounds in which each has its turn, after a `setup` of its own."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, run in contenders.items():
            setup()
            start = time.perf_counter()
            run()
            if turn:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: Timing(statistics.median(t), min(t), max(t)) for name, t in times.items()}

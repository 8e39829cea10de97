"""What the lock-free engine refuses before its first step."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.checks import is_whole
from thinwire.errors import ConfigError, OversubscriptionWarning
from thinwire.linear.regularisers import Decoupled, Regulariser
from thinwire.linear.samples import Samples
from thinwire.linear.schedules import Schedule
from thinwire.linear.units import Units

Array = NDArray[Any]


def cores() -> int:
    """Those that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def checked_workers(threads: int, memories: int | None) -> tuple[int, int]:
    """Threads and memories."""
    if not is_whole(threads) or threads < 1:
        raise ConfigError(f"threads must be a whole number of at least 1, got {threads!r}")
    if threads > cores():
        warnings.warn(
            f"{threads} threads on {cores()} cores wait for each other: take at most {cores()}",
            OversubscriptionWarning,
            stacklevel=4,
        )
    if memories is not None and (not is_whole(memories) or memories < 1 or (threads > 1 and memories != threads)):
        raise ConfigError(
            f"each of {threads} threads has one memory, got memories={memories!r}: use them with threads=1"
        )
    return threads, memories or threads


def check_steps(schedule: Schedule, regulariser: Regulariser) -> None:
    """Refuse a first step that is no positive number, or that decoupled decay would turn the sign of x with."""
    first = float(schedule(np.zeros(1))[0])
    if not (np.isfinite(first) and first > 0):
        raise ConfigError(f"step sizes must be finite and positive, got η_0 = {first}")
    decay = first * regulariser.strength
    if isinstance(regulariser, Decoupled) and decay >= 1:
        raise ConfigError(
            f"a decoupled regulariser needs η λ < 1, got η_0 λ = {decay:g}: take a larger shift a or smaller steps, "
            f"or InMemory({regulariser.strength:g})"
        )


def checked_start(start: Any, samples: Samples) -> Array:
    x = np.zeros(samples.d, samples.dtype) if start is None else np.array(start, samples.dtype)
    if x.shape != (samples.d,) or not np.isfinite(x).all():
        raise ConfigError(f"start must be {samples.d} finite numbers, got an array of shape {x.shape}")
    return x


def check_intercept(share: float) -> None:
    """Refuse a negative share of the step size."""
    if not (np.isfinite(share) and share >= 0):
        raise ConfigError(f"intercept, a share of the step size, must be at least 0 (0: none), got {share!r}")


def check_units(units: Units | None, compares: bool, regulariser: Regulariser) -> None:
    """Refuse units where nothing is compared, or where a regulariser would have to be in them."""
    if units is not None and not (compares and isinstance(regulariser, Decoupled)):
        raise ConfigError(
            "units are for topk and threshold with a decoupled regulariser: leave them out, or take such a rule"
        )

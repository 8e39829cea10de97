"""What the lock-free engine refuses before its first step."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.engines.lockfree.regularisers import Decoupled, Regulariser
from thinwire.engines.lockfree.samples import Samples
from thinwire.engines.lockfree.schedules import Schedule
from thinwire.errors import ConfigError, OversubscriptionWarning

Array = NDArray[Any]


def checked_workers(threads: int, memories: int | None) -> tuple[int, int]:
    """Threads and memories."""
    if threads < 1:
        raise ConfigError(f"threads must be at least 1, got {threads}")
    cores = os.cpu_count() or 1
    if threads > cores:
        warnings.warn(
            f"{threads} threads on {cores} cores wait for each other: take at most {cores}",
            OversubscriptionWarning,
            stacklevel=4,
        )
    if memories is not None and (memories < 1 or (threads > 1 and memories != threads)):
        raise ConfigError(f"each of {threads} threads has one memory, got memories={memories}: use them with threads=1")
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

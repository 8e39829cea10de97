"""A stretch of steps planned ahead: samples, step sizes, scales and weights, which all depend on t alone."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from thinwire.errors import ConfigError
from thinwire.linear.order import Order
from thinwire.linear.schedules import Average, Schedule, Times
from thinwire.linear.steps.kernel import kernel

LONGEST = 1 << 16
"""Steps of a stretch at most: 2.6 MB of plan, and Ctrl-C or a snapshot's end waits for no more."""
SMALLEST_SCALE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-9}
"""Where s has shrunk to this a stretch ends, and v begins anew as x: the thresholds of scikit-learn."""


class Stretch(NamedTuple):
    """A stretch of steps, t = begin, …: everything that depends on t alone."""

    begin: int
    samples: Any
    steps: Any
    """η_t."""
    least: Any
    """η_t τ, the least magnitude that ABOVE writes, never zero; as integers."""
    scale: Any
    """s_t before each step, from 1 on, and after the last."""
    weight: Any
    """Σ_{u<t} w_u s_u within the stretch; empty where no mean is wanted."""
    plain_weight: Any
    """Σ_{u<t} w_u, for the intercept."""
    coefficients: Any
    """Out: η_t w_i ℓ′(z, y), what a row was multiplied with to become a step."""


def planned(
    begin: int, until: int, *, schedule: Schedule, decay: float, tau: float, average: Average, order: Order, seed: int,
    samples: int, dtype: np.dtype[Any],
) -> Stretch:  # fmt: skip
    """From step `begin` on, up to `until` at most; `decay` is λ of a regulariser beside the memory, else 0."""
    t = np.arange(begin, min(until, begin + LONGEST), dtype=np.float64)
    steps = _checked_sizes(schedule(t), len(t), begin)
    scale, least = np.empty(len(t) + 1), np.empty(len(t), dtype)
    count = _unfold_(scale, least, steps, decay, tau, SMALLEST_SCALE[dtype])
    if count < 0:
        _refuse_size(steps[-count - 1], decay, begin - count - 1)
    weights = average.weights(t[:count])
    return Stretch(
        begin=begin,
        samples=_checked_order(order(samples, seed, begin, begin + count), samples, count, begin),
        steps=steps[:count],
        least=least[:count].view(f"i{least.itemsize}"),
        scale=scale[: count + 1],
        weight=_before(weights * scale[:count]) if average.is_mean else np.empty(0),
        plain_weight=_before(weights) if average.is_mean else np.empty(0),
        coefficients=np.zeros(count),
    )


@kernel
def _unfold_(
    scale: Any, least: Any, steps: Any, strength: float, tau: float, smallest: float
) -> int:  # pragma: no cover
    """s_0 = 1, s_{t+1} = (1 − η_t λ) s_t, and η_t τ, or what follows zero where that vanishes: nothing that is zero is
    ever written. How many steps, up to the least s; where t is the first at which η_t will not do, −1 − t."""
    number = least.dtype.type
    tiny = np.nextafter(number(0), number(1))
    scale[0] = 1.0
    for t in range(steps.size):
        if scale[t] < smallest:
            return t
        decay = steps[t] * strength
        if not (0.0 < steps[t] < np.inf and decay < 1.0):
            return -1 - t
        scale[t + 1] = (1.0 - decay) * scale[t]
        least[t] = max(number(steps[t] * tau), tiny)
    return int(steps.size)


def _before(weights: Times) -> Times:
    """Sums of all weights before each step, and before the end."""
    sums = np.zeros(len(weights) + 1)
    np.cumsum(weights, out=sums[1:])
    return sums


def _checked_sizes(sizes: Any, count: int, begin: int) -> Times:
    """The step sizes from `begin` on, as a schedule gave them: as many as asked for."""
    steps = np.ascontiguousarray(sizes, np.float64)
    if steps.shape != (count,):
        raise ConfigError(
            f"a schedule gives each of {count} steps from {begin} on a size, got an array of shape {steps.shape}"
        )
    return steps


def _refuse_size(size: float, strength: float, step: int) -> NoReturn:
    """A step size with which nothing good can come of it."""
    if np.isfinite(size) and size * strength >= 1:
        raise ConfigError(f"a decoupled regulariser needs η λ < 1, got {size * strength:g} at step {step}")
    raise ConfigError(f"a schedule gives every step a finite, positive size, got {size} at step {step}")


def _checked_order(order: Any, samples: int, count: int, begin: int) -> NDArray[np.int64]:
    """The samples of the steps from `begin` on, as an order gave them."""
    chosen = np.asarray(order)
    if chosen.shape != (count,) or chosen.dtype.kind not in "iu":
        raise ConfigError(
            f"order gives {count} whole numbers for the steps from {begin} on, got {chosen.dtype} of {chosen.shape}"
        )
    if chosen.min() < 0 or chosen.max() >= samples:
        raise ConfigError(f"order chooses among {samples} samples, got {chosen.min()} to {chosen.max()}")
    return np.ascontiguousarray(chosen, np.int64)

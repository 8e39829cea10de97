"""A stretch of steps planned ahead: samples, step sizes, scales and weights, which all depend on t alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from thinwire.linear.checks import checked_order, checked_sizes, refuse_size
from thinwire.linear.kernel import kernel
from thinwire.linear.regularisers import Decoupled
from thinwire.linear.schedules import Times
from thinwire.linear.state import Plan

if TYPE_CHECKING:
    from thinwire.linear.engine import LockFree

LONGEST = 1 << 16
"""Steps of a stretch at most: 2.6 MB of plan, and Ctrl-C or a snapshot's end waits for no more."""
SMALLEST_SCALE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-9}
"""Where s has shrunk to this a stretch ends, and v begins anew as x: the thresholds of scikit-learn."""


def planned(engine: LockFree, begin: int, until: int) -> Plan:
    """From step `begin` on, up to `until` at most."""
    mean = engine.average.is_mean
    t = np.arange(begin, min(until, begin + LONGEST), dtype=np.float64)
    steps = checked_sizes(engine.schedule(t), len(t), begin)
    strength = engine.regulariser.strength if isinstance(engine.regulariser, Decoupled) else 0.0
    scale, least = np.empty(len(t) + 1), np.empty(len(t), engine.samples.dtype)
    count = _unfold_(scale, least, steps, strength, engine.code.tau, SMALLEST_SCALE[engine.samples.dtype])
    if count < 0:
        refuse_size(steps[-count - 1], strength, begin - count - 1)
    order = engine.order(len(engine.samples), engine.seed, begin, begin + count)
    weights = engine.average.weights(t[:count])
    return Plan(
        begin=begin,
        samples=checked_order(order, engine.samples, count, begin),
        steps=steps[:count],
        least=least[:count].view(f"i{least.itemsize}"),
        scale=scale[: count + 1],
        weight=_before(weights * scale[:count]) if mean else np.empty(0),
        plain_weight=_before(weights) if mean else np.empty(0),
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

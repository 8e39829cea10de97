"""A stretch of steps planned ahead: samples, step sizes, scales and weights, which all depend on t alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from thinwire.engines.lockfree.checks import checked_order, checked_sizes
from thinwire.engines.lockfree.regularisers import Decoupled
from thinwire.engines.lockfree.schedules import Times
from thinwire.engines.lockfree.state import Plan
from thinwire.errors import ConfigError

if TYPE_CHECKING:
    from thinwire.engines.lockfree.engine import LockFree

LONGEST = 1 << 16
"""Steps of a stretch at most: 2.6 MB of plan, and Ctrl-C or a snapshot's end waits for no more."""
SMALLEST_SCALE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-9}
"""Where s has shrunk to this a stretch ends, and v begins anew as x: the thresholds of scikit-learn."""


def planned(engine: LockFree, until: int) -> Plan:
    """From the engine's step on, up to `until` at most."""
    begin = engine.step
    t = np.arange(begin, min(until, begin + LONGEST), dtype=np.float64)
    steps = checked_sizes(engine.schedule(t), len(t), begin)
    scale = _scales(steps, engine)
    count = min(len(t), int(np.argmax(scale < SMALLEST_SCALE[engine.samples.dtype])) or len(t))
    mean = engine.average.is_mean
    order = engine.order(len(engine.samples), engine.seed, begin, begin + count)
    weights, least = engine.average.weights(t[:count]), _least(steps[:count], engine)
    return Plan(
        begin=begin,
        samples=checked_order(order, engine.samples, count, begin),
        steps=steps[:count],
        least=least.view(f"i{least.itemsize}"),
        scale=scale[: count + 1],
        weight=_before(weights * scale[:count]) if mean else np.empty(0),
        plain_weight=_before(weights) if mean else np.empty(0),
        coefficients=np.zeros(count),
    )


def _scales(steps: Times, engine: LockFree) -> Times:
    """s_0 = 1 and s_{t+1} = (1 − η_t λ) s_t."""
    scale = np.ones(len(steps) + 1)
    if isinstance(engine.regulariser, Decoupled) and engine.regulariser.strength > 0:
        decay = 1 - steps * engine.regulariser.strength
        if not (decay > 0).all():
            raise ConfigError(f"a decoupled regulariser needs η λ < 1, got {1 - decay.min():g} at step {engine.step}")
        np.cumprod(decay, out=scale[1:])
    return scale


def _least(steps: Times, engine: LockFree) -> Any:
    """η τ, and what follows zero where that vanishes: nothing that is zero is ever written."""
    dtype = engine.samples.dtype
    return np.maximum((steps * engine.code.tau).astype(dtype), np.nextafter(dtype.type(0), dtype.type(1)))


def _before(weights: Times) -> Times:
    """Sums of all weights before each step, and before the end."""
    sums = np.zeros(len(weights) + 1)
    np.cumsum(weights, out=sums[1:])
    return sums

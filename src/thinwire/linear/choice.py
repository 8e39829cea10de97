"""What a step takes out of the memory and adds to x: the largest entries, random ones, or all.

x_j ← x_j − g_j and m_j ← 0 for the chosen j; in terms of v = x/s that is v_j ← v_j − g_j/s (for units see `post_`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thinwire.linear import atomics
from thinwire.linear.kernel import inlined, kernel
from thinwire.linear.logs import add_own_
from thinwire.linear.maxima import SHIFT, find, settle_
from thinwire.linear.order import below
from thinwire.ops.cpu.draw import word

# numba's types would have their callers pass the compiler's own first argument
add_float_: Any = atomics.add_float_
COIN, FIRST_DRAW = np.uint64(0), np.uint64(1)


@kernel
def add_(shared: Any, j: int, change: Any) -> None:  # pragma: no cover
    """v_j += change."""
    if shared.atomic:
        add_float_(shared.v, j, shared.v.dtype.type(change))
    else:
        shared.v[j] += shared.v.dtype.type(change)


@kernel
def send_(shared: Any, credit: Any, j: int, g: Any, per_scale: float, weight: float) -> None:  # pragma: no cover
    """x_j −= g, credited with the weight of all iterates that had not seen it."""
    change = -g * per_scale
    add_(shared, j, change)
    if credit.size:
        credit[j] -= change * weight


@inlined
def post_(shared: Any, private: Any, j: int, g: Any, per_scale: Any, weight: float) -> None:  # pragma: no cover
    """x_j −= g: in v itself, or in the thread's copy of it and in its log.

    In units, g is p_j/u_j and v is u_j x_j/s."""
    if shared.squares.size:
        g = g * shared.squares[j >> SHIFT]
    if private.seen.size == 0:
        send_(shared, private.credit, j, g, per_scale, weight)
        return
    change = shared.v.dtype.type(-g * per_scale)
    add_own_(private, j, change)
    if private.credit.size:
        private.credit[j] -= change * weight


@inlined
def send_largest_(
    shared: Any, private: Any, own: int, k: int, per_scale: Any, weight: float
) -> Any:  # pragma: no cover
    """The k largest of a memory whose tree is in order; how many were not zero."""
    memory, bits, maxima = private.memory[own], private.bits[own], private.maxima[own]
    for sent in range(k):
        j = find(bits, maxima, private.offsets, private.mask)
        if j < 0:
            return sent
        post_(shared, private, j, memory[j], per_scale, weight)
        memory[j] = 0
        settle_(bits, maxima, private.offsets, private.mask, 0, j >> SHIFT)
    return k


@inlined
def send_drawn_(
    shared: Any, private: Any, own: int, rule: Any, key: Any, t: int, per_scale: float, weight: float
) -> Any:  # pragma: no cover
    """k entries drawn without replacement, k < 1: one with that probability; how many were not zero."""
    memory, d = private.memory[own], shared.v.size
    base = np.uint64(word(key, np.uint64(t)))
    if rule.probability < 1.0 and below(word(base, COIN), 1 << 53) >= rule.probability * 2.0**53:
        return 0
    sent, drawn, draw = 0, 0, FIRST_DRAW
    while drawn < rule.kept:
        j = below(word(base, draw), d)
        draw += FIRST_DRAW
        if private.marks[j] == t + 1:
            continue
        private.marks[j] = t + 1
        drawn += 1
        if memory[j] != 0:
            post_(shared, private, j, memory[j], per_scale, weight)
            memory[j] = 0
            sent += 1
    return sent


@kernel
def level(share: float, levels: int, bits: Any) -> Any:  # pragma: no cover
    """A whole number of levels, at random one of the two about share · levels, so that its mean is just that."""
    exact = share * levels
    low = np.floor(exact)
    return low + 1 if below(bits, 1 << 53) < (exact - low) * 2.0**53 else low

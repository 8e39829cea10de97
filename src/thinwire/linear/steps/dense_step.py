"""One step along c a + r x, where every coordinate takes part: dense rows, or a regulariser inside the memory."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from thinwire.linear.rules import ABOVE, ALL, LEVELS, TOP
from thinwire.linear.steps.choice import level, post_, send_, send_drawn_, send_largest_
from thinwire.linear.steps.kernel import inlined, kernel
from thinwire.linear.steps.maxima import refresh_
from thinwire.ops.cpu.intrinsics import LANES, at_least, lowest, product_sum
from thinwire.ops.cpu.select_random import word


@kernel
def dense_product(row: Any, x: Any) -> Any:  # pragma: no cover
    """⟨a, x⟩, 64 products at a time."""
    total = row.dtype.type(0)
    whole = row.size // LANES * LANES
    for j in range(0, whole, LANES):
        total += product_sum(row, j, x, j)
    for j in range(whole, row.size):
        total += row[j] * x[j]
    return total


@inlined
def dense_step_(
    row: Any, c: Any, r: Any, shared: Any, private: Any, own: int, rule: Any, key: Any, t: int,
    least: Any, per_scale: Any, weight: float,
) -> Any:  # pragma: no cover  # fmt: skip
    """m ← m + c a + r x; then what the rule chooses is sent. How many coordinates were written."""
    if rule.writes == ALL:
        send_all_(row, c, r, shared, private.credit, per_scale, weight)
        return int(row.size)
    if rule.writes == LEVELS:
        return send_all_levels_(row, c, r, shared, private, rule.kept, key, t, per_scale, weight)
    accumulate_all_(row, c, r, private.v, private.memory[own])
    if rule.writes == TOP:
        refresh_(private.bits[own], private.maxima[own], private.offsets, private.mask, row.size)
        sent = send_largest_(shared, private, own, rule.kept, per_scale, weight)
    elif rule.writes == ABOVE:
        sent = send_all_above_(shared, private, own, least, per_scale, weight)
    else:
        sent = send_drawn_(shared, private, own, rule, key, t, per_scale, weight)
    if not rule.remembers:
        private.memory[own, :] = 0
        private.maxima[own, :] = 0
    return sent


@kernel
def accumulate_all_(row: Any, c: Any, r: Any, x: Any, memory: Any) -> None:  # pragma: no cover
    """m ← m + c a + r x."""
    if r == 0:
        for j in range(row.size):
            memory[j] += c * row[j]
    else:
        for j in range(row.size):
            memory[j] += c * row[j] + r * x[j]


@kernel
def send_all_above_(
    shared: Any, private: Any, own: int, least: Any, per_scale: Any, weight: float
) -> Any:  # pragma: no cover
    """All entries of a memory with a magnitude of `least` bits or more, which is not zero; how many they were."""
    memory, bits, sent = private.memory[own], private.bits[own], 0
    for first in range(0, memory.size, LANES):
        reached = at_least(bits, first, private.mask, least)
        while reached:
            j = first + lowest(reached)
            reached &= reached - np.uint64(1)
            post_(shared, private, j, memory[j], per_scale, weight)
            memory[j] = 0
            sent += 1
    return sent


@kernel
def send_all_(
    row: Any, c: Any, r: Any, shared: Any, credit: Any, per_scale: Any, weight: float
) -> None:  # pragma: no cover
    """x ← x − (c a + r x)."""
    v = shared.v
    if shared.atomic or credit.size:
        for j in range(row.size):
            send_(shared, credit, j, c * row[j] + r * v[j], per_scale, weight)
    else:
        for j in range(row.size):
            v[j] += -(c * row[j] + r * v[j]) * per_scale


@kernel
def send_all_levels_(
    row: Any, c: Any, r: Any, shared: Any, private: Any, levels: int, key: Any, t: int, per_scale: Any, weight: float
) -> Any:  # pragma: no cover
    """QSGD of c a + r x. How many levels were not zero."""
    square, sent = 0.0, 0
    for j in range(row.size):
        square += np.float64(c * row[j] + r * shared.v[j]) ** 2
    norm = sqrt(square)
    if norm == 0:
        return 0
    base = np.uint64(word(key, np.uint64(t)))
    for j in range(row.size):
        g = np.float64(c * row[j] + r * shared.v[j])
        height = level(abs(g) / norm, levels, word(base, np.uint64(j)))
        if height > 0:
            sent += 1
            step = np.copysign(norm * height / levels, g)
            send_(shared, private.credit, j, row.dtype.type(step), per_scale, weight)
    return sent

"""One step along c · (a sparse row): it touches the row's entries and what is sent, and nothing of size d."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from thinwire.linear.rules import ABOVE, ALL, LEVELS, TOP
from thinwire.linear.steps.choice import level, send_, send_above_, send_drawn_, send_largest_
from thinwire.linear.steps.kernel import inlined, kernel
from thinwire.linear.steps.maxima import SHIFT, lift_
from thinwire.ops.cpu.select_random import word


@inlined
def sparse_product(columns: Any, values: Any, x: Any) -> Any:  # pragma: no cover
    """⟨a, x⟩, in four sums: an addition need not wait for the one before it."""
    zero = values.dtype.type(0)
    one, two, three, four = zero, zero, zero, zero
    fours = values.size // 4 * 4
    for p in range(0, fours, 4):
        one += values[p] * x[columns[p]]
        two += values[p + 1] * x[columns[p + 1]]
        three += values[p + 2] * x[columns[p + 2]]
        four += values[p + 3] * x[columns[p + 3]]
    for p in range(fours, values.size):
        one += values[p] * x[columns[p]]
    return (one + two) + (three + four)


@inlined
def sparse_step_(
    columns: Any, values: Any, c: Any, shared: Any, private: Any, own: int, rule: Any, key: Any, t: int,
    least: Any, per_scale: Any, weight: float,
) -> Any:  # pragma: no cover  # fmt: skip
    """m ← m + c a; then what the rule chooses is sent. How many coordinates were written."""
    if rule.writes == ALL:
        for p in range(values.size):
            send_(shared, private.credit, columns[p], c * values[p], per_scale, weight)
        return int(values.size)
    if rule.writes == LEVELS:
        return send_levels_(columns, values, c, shared, private, rule.kept, key, t, per_scale, weight)
    if rule.writes == TOP:
        accumulate_(columns, values, c, private, own)
        sent = send_largest_(shared, private, own, rule.kept, per_scale, weight)
    elif rule.writes == ABOVE:
        sent = send_above_(columns, values, c, shared, private, own, least, per_scale, weight)
    else:
        for p in range(values.size):
            private.memory[own, columns[p]] += c * values[p]
        sent = send_drawn_(shared, private, own, rule, key, t, per_scale, weight)
    if not rule.remembers:
        forget_(columns, private, own)
    return sent


@inlined
def accumulate_(columns: Any, values: Any, c: Any, private: Any, own: int) -> None:  # pragma: no cover
    """m ← m + c a, with the tree over m."""
    memory, bits, maxima = private.memory[own], private.bits[own], private.maxima[own]
    for p in range(values.size):
        j = columns[p]
        memory[j] += c * values[p]
        magnitude = bits[j] & private.mask
        if magnitude > maxima[j >> SHIFT]:
            lift_(maxima, private.offsets, j, magnitude)


@kernel
def spread_(row: Any, columns: Any, values: Any) -> None:  # pragma: no cover
    """Write a sparse row into a dense one of zeros."""
    for p in range(values.size):
        row[columns[p]] = values[p]


@kernel
def wipe_(row: Any, columns: Any) -> None:  # pragma: no cover
    """Zeros again."""
    for j in columns:
        row[j] = 0


@kernel
def forget_(columns: Any, private: Any, own: int) -> None:  # pragma: no cover
    """m ← 0, where nothing but a row's entries can be other than zero."""
    for j in columns:
        private.memory[own, j] = 0
        if private.maxima.size:
            node = j
            for each in range(private.offsets.size - 1):
                node >>= SHIFT
                private.maxima[own, private.offsets[each] + node] = 0


@kernel
def send_levels_(
    columns: Any, values: Any, c: Any, shared: Any, private: Any, levels: int, key: Any, t: int,
    per_scale: Any, weight: float,
) -> Any:  # pragma: no cover  # fmt: skip
    """QSGD: each entry of c a becomes a whole number of |c a|/levels. How many were not zero."""
    square = 0.0
    for a in values:
        square += np.float64(c * a) ** 2
    norm, sent = sqrt(square), 0
    if norm == 0:
        return 0
    base = np.uint64(word(key, np.uint64(t)))
    for p in range(values.size):
        g = np.float64(c * values[p])
        height = level(abs(g) / norm, levels, word(base, np.uint64(columns[p])))
        if height > 0:
            sent += 1
            step = np.copysign(norm * height / levels, g)
            send_(shared, private.credit, columns[p], values.dtype.type(step), per_scale, weight)
    return sent

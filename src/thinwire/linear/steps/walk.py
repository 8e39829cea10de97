"""The loop that every thread runs: take a chunk of steps from the shared counter, do them, until none is left."""

from __future__ import annotations

from typing import Any

from thinwire.linear.losses import slope
from thinwire.linear.steps.dense_step import dense_product, dense_step_
from thinwire.linear.steps.kernel import add_float_, ask, ask_for, fetch_add_, inlined, kernel
from thinwire.linear.steps.logs import catch_up_, enter_, leave_, publish_, write_down_
from thinwire.linear.steps.sparse_step import sparse_product, sparse_step_, spread_, wipe_
from thinwire.linear.steps.state import NEXT, STOP

CHUNK = 64
"""Steps taken at a time: a counter that others add to takes as long as a third of a step."""
NEWS = 32
"""Steps after which others' logs are read, once in eight microseconds or more. (With 16, two threads take up to a
twentieth longer; with more, x is older, and large steps bear no long delay.)"""
AHEAD = 2
"""Steps by which sparse rows are fetched in advance; twice as many for where they begin."""


@kernel
def take_(shared: Any, steps: int) -> tuple[int, int]:  # pragma: no cover
    """The next chunk of steps, empty where none is left or all are to stop."""
    if shared.counter[STOP]:
        return steps, steps
    begin = fetch_add_(shared.counter, NEXT, CHUNK)
    return min(begin, steps), min(begin + CHUNK, steps)


@inlined
def tell_(shared: Any, private: Any, t: int) -> None:  # pragma: no cover
    """After a step of a thread with a copy of x: what it added goes into its log, and now and then news is read."""
    write_down_(shared, private)
    if t % NEWS == NEWS - 1:
        publish_(shared, private)
        catch_up_(shared, private)


@inlined
def coefficient_(
    product: Any, i: int, t: int, targets: Any, weights: Any, shared: Any, private: Any, plan: Any, settings: Any
) -> Any:  # pragma: no cover
    """c = η w ℓ′(s ⟨a, v⟩ + b, y), by which the row enters the step; the intercept, never compressed, moves at once."""
    z = plan.scale[t] * product + shared.intercept[0]
    c = plan.steps[t] * (weights[i] * slope(settings.loss, z, targets[i]))
    plan.coefficients[t] = c
    if settings.intercept > 0:
        add_float_(shared.intercept, 0, -settings.intercept * c)
        if private.credit.size:
            private.credit[-1] += settings.intercept * c * plan.plain_weight[t + 1]
    return c


@inlined
def memory_of(private: Any, step: int) -> int:  # pragma: no cover
    """Which of a thread's memories a step uses: all take turns. (A division takes as long as six entries of a row.)"""
    memories = private.memory.shape[0]
    return step % memories if memories > 1 else 0


@inlined
def ask_for_row(rows: Any, targets: Any, weights: Any, samples: Any, t: int) -> None:  # pragma: no cover
    """Fetch the sparse row that comes AHEAD of step t, if there is one, and where the next begins."""
    if t + 2 * AHEAD < samples.size:
        ask(rows.pointers, samples[t + 2 * AHEAD])
    if t + AHEAD < samples.size:
        i = samples[t + AHEAD]
        first, last = rows.pointers[i], rows.pointers[i + 1]
        ask_for(rows.columns, first, last)
        ask_for(rows.values, first, last)
        ask(targets, i)
        ask(weights, i)


@kernel
def walk_sparse(
    rows: Any, targets: Any, weights: Any, shared: Any, private: Any, plan: Any, rule: Any, settings: Any
) -> Any:  # pragma: no cover
    """Steps along sparse rows; how many coordinates were written."""
    sent, number = 0, shared.v.dtype.type
    if private.seen.size:
        enter_(shared, private)
    begin, end = take_(shared, plan.samples.size)
    while begin < end:
        for t in range(begin, end):
            ask_for_row(rows, targets, weights, plan.samples, t)
            i = plan.samples[t]
            first, last = rows.pointers[i], rows.pointers[i + 1]
            columns, values = rows.columns[first:last], rows.values[first:last]
            product = sparse_product(columns, values, private.v)
            c = number(coefficient_(product, i, t, targets, weights, shared, private, plan, settings))
            own, step = memory_of(private, plan.begin + t), plan.begin + t
            per_scale, weight = number(1.0 / plan.scale[t + 1]), plan.weight[t + 1] if plan.weight.size else 0.0
            if settings.strength > 0:
                r = number(plan.steps[t] * settings.strength)
                spread_(private.row, columns, values)
                sent += dense_step_(
                    private.row, c, r, shared, private, own, rule, settings.key, step, plan.least[t], per_scale, weight
                )
                wipe_(private.row, columns)
            else:
                sent += sparse_step_(
                    columns, values, c, shared, private, own, rule, settings.key, step, plan.least[t], per_scale, weight
                )
            if private.seen.size:
                tell_(shared, private, t)
        begin, end = take_(shared, plan.samples.size)
    if private.seen.size:
        leave_(shared, private)
    return sent


@kernel
def walk_dense(
    rows: Any, targets: Any, weights: Any, shared: Any, private: Any, plan: Any, rule: Any, settings: Any
) -> Any:  # pragma: no cover
    """Steps along dense rows; how many coordinates were written."""
    sent, number = 0, shared.v.dtype.type
    if private.seen.size:
        enter_(shared, private)
    begin, end = take_(shared, plan.samples.size)
    while begin < end:
        for t in range(begin, end):
            if t + 1 < plan.samples.size:
                ask_for(rows[plan.samples[t + 1]], 0, rows.shape[1])
            i = plan.samples[t]
            product = dense_product(rows[i], private.v)
            c = number(coefficient_(product, i, t, targets, weights, shared, private, plan, settings))
            own, step = memory_of(private, plan.begin + t), plan.begin + t
            per_scale, weight = number(1.0 / plan.scale[t + 1]), plan.weight[t + 1] if plan.weight.size else 0.0
            r = number(plan.steps[t] * settings.strength)
            sent += dense_step_(
                rows[i], c, r, shared, private, own, rule, settings.key, step, plan.least[t], per_scale, weight
            )
            if private.seen.size:
                tell_(shared, private, t)
        begin, end = take_(shared, plan.samples.size)
    if private.seen.size:
        leave_(shared, private)
    return sent

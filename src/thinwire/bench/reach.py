"""How long it takes to reach the loss that scikit-learn's SGD ends at, or a little above it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from thinwire.bench.lockfree import SGD, SKLEARN, engine, narrow, sklearn_epochs
from thinwire.bench.timing import wall_clock
from thinwire.extras import require
from thinwire.linear import LockFree, Samples
from thinwire.linear.rules import ABOVE, TOP, Compiled
from thinwire.problems import Dataset
from thinwire.problems.libsvm import signs
from thinwire.spec import parse

FACTORS = (1.01, 1.001, 1.0)
"""Losses to reach, as multiples of the one scikit-learn ends at."""
LONGEST = 60
"""Epochs after which a method has failed."""
TOLERANCE = 1e-4
"""scikit-learn's `tol`, the one of the paper's baseline."""


Way = tuple[float, float, float]
"""Seconds, epochs and how many times fewer writes."""


@dataclass(frozen=True)
class ReachRow:
    """One method's way to one loss."""

    data: str
    samples: int
    d: int
    factor: float
    loss: float
    method: str
    threads: int
    seconds: float | None
    """The median of the repeats; None where not all of them came so far."""
    epochs: float | None
    fewer: float | None
    """How many times fewer coordinates were written than SGD writes in as many steps."""
    over_sklearn: float | None
    """scikit-learn's time over ours."""

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def bench_reach(
    dataset: Dataset, methods: Sequence[str], threads: Sequence[int], repeats: int, initial: float, units: str | None
) -> Iterator[ReachRow]:
    """scikit-learn's first whole epoch at or below each loss, and every method's, by turns."""
    data = Samples.of(dataset.rows.astype(np.float32), signs(dataset.labels, dataset.name))
    end, last = ending(data)
    ways = [(method, count) for method in (SGD, *methods) for count in threads]
    for factor in FACTORS:
        epochs = next(e for e in range(1, last + 1) if e == last or sklearn_loss(data, e) <= factor * end)
        row = ReachRow(dataset.name, len(data), data.d, factor, factor * end, SKLEARN, 1, *[None] * 4)
        theirs, *ours = _by_turns(data, sklearn_epochs(data, epochs), epochs, ways, repeats, initial, units, row.loss)
        base = _row(row, theirs, None)
        yield base
        for (method, count), found in zip(ways, ours, strict=True):
            yield _row(replace(row, method=method, threads=count), found, base.seconds)


def _by_turns(
    data: Samples, sklearn: Callable[[], Any], epochs: int, ways: Sequence[tuple[str, int]], repeats: int,
    initial: float, units: str | None, loss: float,
) -> list[list[Way]]:  # fmt: skip
    """What each took in every turn but the first, which compiles; scikit-learn's before the others."""
    turns = [
        [(wall_clock(sklearn) / 1e3, float(epochs), 1.0)]
        + [_reach(data, method, count, initial, seed, loss, units) for method, count in ways]
        for seed in range(repeats + 1)
    ]
    return [list(column) for column in zip(*turns[1:], strict=True)]


def _row(row: ReachRow, found: Sequence[Way], theirs: float | None) -> ReachRow:
    """Medians of what was found, beside scikit-learn's time."""
    seconds, epochs, fewer = (statistics.median(column) for column in zip(*found, strict=True))
    if not np.isfinite(seconds):
        return row
    if epochs == 0:  # the loss of zero coefficients is low enough
        return replace(row, seconds=seconds, epochs=epochs)
    return replace(row, seconds=seconds, epochs=epochs, fewer=fewer, over_sklearn=(theirs or seconds) / seconds)


def _reach(data: Samples, method: str, threads: int, initial: float, seed: int, loss: float, units: str | None) -> Way:
    """What it took, preparations and all; infinitely many seconds where the loss was not reached.

    As with scikit-learn, one run says how many epochs it takes, and another is timed, which does not stop to look.
    """
    n, entries = len(data), data.d if data.dense else data.rows.nnz / len(data)
    scout = _prepared(data, method, threads, initial, seed, units)
    scout.run(LONGEST * n, every=n, target=loss)
    start = time.perf_counter()
    it = _prepared(data, method, threads, initial, seed, units)
    it.run(scout.step)
    x, seconds = it.estimate, time.perf_counter() - start
    while data.objective(x, 1 / n) > loss and it.step < LONGEST * n:  # several threads go another way in every run
        start = time.perf_counter()
        it.run(n)
        x, seconds = it.estimate, seconds + time.perf_counter() - start
    reached = data.objective(x, 1 / n) <= loss
    return seconds if reached else np.inf, it.step / n, entries * it.step / max(1, it.written)


def _prepared(data: Samples, method: str, threads: int, initial: float, seed: int, units: str | None) -> LockFree:
    """An engine that has yet to take a step. Dense rows have no units, and rules that compare nothing."""
    compares = Compiled.of(parse(method), data.d).code.writes in (TOP, ABOVE)
    return engine(data.in_units(units if compares and not data.dense else None), method, threads, initial, seed)


def sklearn_loss(data: Samples, epochs: int) -> float:
    """f after so many epochs."""
    return data.objective(sklearn_epochs(data, epochs)().coef_[0], 1 / len(data))


def ending(data: Samples) -> tuple[float, int]:
    """f where scikit-learn stops by itself, and after how many epochs."""
    model = require("sklearn.linear_model", "tasks", "the benchmark beside scikit-learn").SGDClassifier
    fitted = model("log_loss", alpha=1 / len(data), fit_intercept=False, tol=TOLERANCE, random_state=0)
    fitted.fit(narrow(data.rows), data.targets)
    return data.objective(fitted.coef_[0], 1 / len(data)), int(fitted.n_iter_)

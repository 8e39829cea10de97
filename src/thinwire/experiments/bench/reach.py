"""How long it takes to reach the loss that scikit-learn's SGD ends at, or a little above it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from thinwire.engines.lockfree import Samples
from thinwire.experiments.bench.lockfree import SGD, SKLEARN, engine, narrow, sklearn_epochs
from thinwire.experiments.bench.timing import wall_clock
from thinwire.extras import require
from thinwire.problems import Dataset
from thinwire.problems.libsvm import signs

FACTORS = (1.01, 1.001, 1.0)
"""Losses to reach, as multiples of the one scikit-learn ends at."""
LONGEST = 60
"""Epochs after which a method has failed."""
TOLERANCE = 1e-4
"""scikit-learn's `tol`, the one of the paper's baseline."""


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
    dataset: Dataset, methods: Sequence[str], threads: Sequence[int], repeats: int, initial: float
) -> Iterator[ReachRow]:
    """scikit-learn's first whole epoch at or below each loss, then every method, both looked at once an epoch."""
    data = Samples.of(dataset.rows.astype(np.float32), signs(dataset.labels, dataset.name))
    end, last = ending(data)
    for factor in FACTORS:
        epochs = next(e for e in range(1, last + 1) if e == last or sklearn_loss(data, e) <= factor * end)
        seconds = statistics.median(wall_clock(sklearn_epochs(data, epochs)) / 1e3 for _ in range(repeats))
        theirs = ReachRow(
            dataset.name,
            len(data),
            data.d,
            factor,
            factor * end,
            SKLEARN,
            1,
            seconds,
            epochs,
            fewer=1.0,
            over_sklearn=1.0,
        )
        yield theirs
        for method in (SGD, *methods):
            for count in threads:
                found = [_reach(data, method, count, initial, seed, theirs.loss) for seed in range(repeats + 1)][1:]
                yield _row(replace(theirs, method=method, threads=count), found)


def _row(theirs: ReachRow, found: Sequence[tuple[float, float, float]]) -> ReachRow:
    """Medians of what was found, beside scikit-learn's time."""
    seconds, epochs, fewer = (statistics.median(column) for column in zip(*found, strict=True))
    if not np.isfinite(seconds):
        return replace(theirs, seconds=None, epochs=None, fewer=None, over_sklearn=None)
    assert theirs.seconds is not None
    if epochs == 0:  # the loss of zero coefficients is low enough
        return replace(theirs, seconds=seconds, epochs=epochs, fewer=None, over_sklearn=None)
    return replace(theirs, seconds=seconds, epochs=epochs, fewer=fewer, over_sklearn=theirs.seconds / seconds)


def _reach(
    data: Samples, method: str, threads: int, initial: float, seed: int, loss: float
) -> tuple[float, float, float]:
    """Seconds, epochs and how many times fewer writes; infinitely many seconds where the loss was not reached."""
    n = len(data)
    it = engine(data, method, threads, initial, seed)
    run = it.run(LONGEST * n, every=n, target=loss)
    entries = data.d if data.dense else data.rows.nnz / n
    reached = run.stopped == "target"
    return it.seconds if reached else np.inf, it.step / n, entries * it.step / max(1, it.written)


def sklearn_loss(data: Samples, epochs: int) -> float:
    """f after so many epochs."""
    return data.objective(sklearn_epochs(data, epochs)().coef_[0], 1 / len(data))


def ending(data: Samples) -> tuple[float, int]:
    """f where scikit-learn stops by itself, and after how many epochs."""
    model = require("sklearn.linear_model", "tasks", "the benchmark beside scikit-learn").SGDClassifier
    fitted = model("log_loss", alpha=1 / len(data), fit_intercept=False, tol=TOLERANCE, random_state=0)
    fitted.fit(narrow(data.rows), data.targets)
    return data.objective(fitted.coef_[0], 1 / len(data)), int(fitted.n_iter_)

"""The lock-free engine: its steps a second, and its time to a loss, beside lock-free SGD and scikit-learn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.table import Table

from thinwire.bench.grid import Measured, grid
from thinwire.bench.timing import Timing, side_by_side, wall_clock
from thinwire.errors import ConfigError
from thinwire.extras import require
from thinwire.linear import Bottou, Decoupled, LockFree, Samples
from thinwire.linear.rules import ABOVE, TOP, step_rule
from thinwire.problems import Dataset
from thinwire.problems.datasets import signs
from thinwire.spec import parse
from thinwire.training.formatting import NOTHING, show_count

SGD = "plain(identity())"
METHODS = (
    SGD, "memsgd(topk(count=1))", "memsgd(topk(count=10))", "memsgd(threshold(0.1))", "memsgd(randk(count=10))"
)  # fmt: skip
"""On the data that are made up, the threshold lets 6 to 9 coordinates through in a step."""
SKLEARN = "scikit-learn SGDClassifier"
APART = "memsgd(topk(count=1)), nothing shared"
"""As many engines as threads, each by itself: the speed-up that the machine allows at that time."""
EPOCHS = 10
"""Of each measured turn."""
FACTORS = (1.01, 1.001, 1.0)
"""Losses to reach, as multiples of the one scikit-learn ends at."""
LONGEST = 60
"""Epochs after which a method has failed."""
TOLERANCE = 1e-4
"""scikit-learn's `tol`, the one of the paper's baseline."""
Way = tuple[float, float, float]
"""Seconds, epochs and how many times fewer writes."""
SPARSE_D, ENTRIES, DENSE_D = 47_236, 70, 2_000
SHAPES = ("uniform", "skewed", "dense")
"""Columns equally popular; the j-th most popular one with a chance of 1/(j + 10), as words are; every column."""
SPEED_HEAD = ("data", "method", "threads", "thousand steps/s", "slowest – fastest", "over 1 thread", "written a step")
REACH_HEAD = ("loss", "times", "method", "threads", "ms", "epochs", "sklearn's time / ours", "fewer writes")


# ----------------------------------------------------------------- made-up data: rows of the shapes of RCV1 and epsilon


def check(shapes: Sequence[str], samples: int, threads: Sequence[int], repeats: int, units: str) -> list[str]:
    """The names of the shapes, once all that is asked for can be measured."""
    names = [name.strip() for name in shapes]
    if repeats < 1 or samples < 1 or min(threads) < 1 or not set(names) <= set(SHAPES):
        raise ConfigError(
            f"repeats, samples and threads must be at least 1 and shapes among {', '.join(SHAPES)}, "
            f"got {repeats}, {samples}, {min(threads)} and {','.join(shapes)}"
        )
    if units not in ("popularity", "equal"):
        raise ConfigError(f"--units is popularity or equal, got {units}")
    return names


def about(samples: int) -> str:
    """The data that are made up, in words."""
    return f"{samples:,} rows, float32; sparse: d = {SPARSE_D:,}, {ENTRIES} entries a row"


def made_up(shape: str, samples: int) -> Samples:
    """Rows of norm one in float32, with labels of a random model."""
    rng = np.random.default_rng(0)
    rows = _dense(rng, samples) if shape == "dense" else _sparse(rng, samples, skewed=shape == "skewed")
    score = rows @ rng.normal(size=rows.shape[1]).astype(np.float32)
    return Samples.of(rows, np.where(score > 0, 1.0, -1.0))


def _dense(rng: np.random.Generator, samples: int) -> Any:
    rows = rng.standard_normal((samples, DENSE_D), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _sparse(rng: np.random.Generator, samples: int, *, skewed: bool) -> Any:
    matrix = require("scipy.sparse", "tasks", "sparse rows").csr_matrix
    columns = np.sort(np.array([_columns(rng, skewed) for _ in range(samples)]), axis=1)
    values = np.abs(rng.standard_normal((samples, ENTRIES), dtype=np.float32))
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    pointers = np.arange(0, samples * ENTRIES + 1, ENTRIES)
    return matrix((values.ravel(), columns.ravel(), pointers), shape=(samples, SPARSE_D))


def _columns(rng: np.random.Generator, skewed: bool) -> Any:
    """70 different columns."""
    if not skewed:
        return rng.choice(SPARSE_D, ENTRIES, replace=False, shuffle=False)
    drawn = np.empty(0, np.int64)
    while len(drawn) < ENTRIES:  # Zipf's law by inversion: P(rank < j) = log((j + 10)/10) / log((d + 10)/10)
        ranks = 10 * ((SPARSE_D + 10) / 10) ** rng.random(2 * ENTRIES) - 10
        drawn = np.unique(np.concatenate([drawn, ranks.astype(np.int64)]))
    return rng.permutation(drawn)[:ENTRIES] * 40_503 % SPARSE_D  # popular columns do not lie side by side


# ------------------------------------------------------------------------------------------------------- steps a second


@dataclass(frozen=True)
class SpeedRow(Measured):
    """One method on some threads, on one set of data."""

    data: str
    samples: int
    d: int
    entries: float
    """Numbers other than zero in a row."""
    method: str
    threads: int
    steps: int
    """Of a turn."""
    time: Timing
    """Milliseconds of a turn."""
    written: float | None
    """Coordinates written a step; None where that is not counted."""
    one_thread_ms: float

    @property
    def per_second(self) -> float:
        return 1e3 * self.steps / self.time.median

    @property
    def spread(self) -> tuple[float, float]:
        """Steps a second in the slowest turn and in the fastest."""
        return 1e3 * self.steps / self.time.most, 1e3 * self.steps / self.time.least

    @property
    def speedup(self) -> float:
        """Over one thread of the same method."""
        return self.one_thread_ms / self.time.median

    def plain(self) -> dict[str, Any]:
        return super().plain() | {"per_second": self.per_second, "speedup": self.speedup}


def bench_lockfree(shapes: Sequence[str], samples: int, threads: Sequence[int], repeats: int) -> Iterator[SpeedRow]:
    """Every method on one thread and on every number given, and scikit-learn on one, by turns on the same data."""
    for shape in shapes:
        yield from _rows(shape, made_up(shape, samples), sorted({1, *threads}), repeats)


def _rows(shape: str, data: Samples, threads: Sequence[int], repeats: int) -> Iterator[SpeedRow]:
    steps = EPOCHS * len(data)
    entries = data.d if data.dense else data.rows.nnz / len(data)
    engines = {(method, count): [engine(data, method, count)] for method in METHODS for count in threads}
    engines |= {(APART, count): [engine(data, METHODS[1], 1) for _ in range(count)] for count in threads}
    runs = {f"{method} {count}": _together(each, steps // len(each)) for (method, count), each in engines.items()}
    times = side_by_side(runs | {SKLEARN: sklearn_epochs(data, EPOCHS)}, lambda: None, repeats)
    for (method, count), each in engines.items():
        one = times[f"{method} 1"].median
        yield SpeedRow(shape, len(data), data.d, entries, method, count, steps, times[f"{method} {count}"],
                       each[0].written / each[0].step, one)  # fmt: skip
    theirs = times[SKLEARN]
    yield SpeedRow(shape, len(data), data.d, entries, SKLEARN, 1, steps, theirs, None, theirs.median)


def _together(engines: Sequence[LockFree], steps: int) -> Callable[[], object]:
    """So many steps of each engine, all at the same time."""

    def run() -> object:
        with ThreadPoolExecutor(len(engines)) as pool:
            return list(pool.map(lambda each: each.run(steps), engines))

    return run


def engine(data: Samples, method: str, threads: int, initial: float = 1.0, seed: int = 0) -> LockFree:
    """λ = 1/n beside the memory, steps of Bottou's. SGD writes as Hogwild does, without atomics."""
    strength = 1 / len(data)
    return LockFree(data, method, Bottou(initial, strength), regulariser=Decoupled(strength), threads=threads,
                    seed=seed, atomic=method != SGD)  # fmt: skip


def sklearn_epochs(data: Samples, epochs: int) -> Callable[[], Any]:
    """So many epochs of scikit-learn's SGD for the same problem."""
    model = require("sklearn.linear_model", "tasks", "the benchmark beside scikit-learn").SGDClassifier
    rows = narrow(data.rows)

    def run() -> Any:
        fresh = model("log_loss", alpha=1 / len(data), fit_intercept=False, max_iter=epochs, tol=None, random_state=0)
        return fresh.fit(rows, data.targets)

    return run


def narrow(rows: Any) -> Any:
    """CSR rows with 32-bit indices, which are all that scikit-learn's SGD takes; others as they are."""
    if not hasattr(rows, "indptr"):
        return rows
    return type(rows)((rows.data, rows.indices.astype("int32"), rows.indptr.astype("int32")), shape=rows.shape)


# ------------------------------------------------------------------------------------------------------- time to a loss


@dataclass(frozen=True)
class ReachRow(Measured):
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
    compares = step_rule(parse(method), data.d).writes in (TOP, ABOVE)
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


# ----------------------------------------------------------------------------------------------------------- the tables


def speed_table(rows: Sequence[SpeedRow]) -> Table:
    """One row a method, a number of threads and a set of data."""
    return grid(SPEED_HEAD, map(_speed_cells, rows), left=2)


def reach_table(rows: Sequence[ReachRow]) -> Table:
    """One row a loss, a method and a number of threads."""
    return grid(REACH_HEAD, map(_reach_cells, rows))


def _speed_cells(row: SpeedRow) -> list[str]:
    slowest, fastest = row.spread
    return [
        row.data,
        row.method,
        str(row.threads),
        f"{row.per_second / 1e3:,.0f}",
        f"{slowest / 1e3:,.0f} – {fastest / 1e3:,.0f}",
        f"{row.speedup:.2f}",
        NOTHING if row.written is None else f"{row.written:.1f}",
    ]


def _reach_cells(row: ReachRow) -> list[str]:
    return [
        f"{row.loss:.6f}",
        f"{row.factor:g}",
        row.method,
        str(row.threads),
        "never" if row.seconds is None else f"{1e3 * row.seconds:.1f}",
        NOTHING if row.epochs is None else f"{row.epochs:.2f}",
        NOTHING if row.over_sklearn is None else f"{row.over_sklearn:.2f}",
        NOTHING if row.fewer is None else show_count(row.fewer),
    ]

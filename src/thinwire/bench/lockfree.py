"""How many steps a second the lock-free engine takes, beside lock-free SGD and scikit-learn on the same data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from thinwire.bench.linear_data import made_up
from thinwire.bench.timing import Timing, side_by_side
from thinwire.extras import require
from thinwire.linear import Bottou, Decoupled, LockFree, Samples

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


@dataclass(frozen=True)
class SpeedRow:
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
        return asdict(self) | {"per_second": self.per_second, "speedup": self.speedup}


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
    time = times[SKLEARN]
    yield SpeedRow(shape, len(data), data.d, entries, SKLEARN, 1, steps, time, None, time.median)


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

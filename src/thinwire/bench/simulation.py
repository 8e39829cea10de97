"""Simulated workers: the time of a round beside a plain numpy loop, as workers grow, and method by method."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from thinwire import EF21, TopK, simulate
from thinwire.bench.grid import Measured, grid
from thinwire.bench.timing import wall_clock
from thinwire.engines.simulate import Instant
from thinwire.extras import require
from thinwire.problems import Dataset, FiniteSum, file_order, logistic_regression
from thinwire.report.page import Axis, Chart, Section, lines, write_page
from thinwire.spec import parse
from thinwire.theory import ef21_nonconvex_step, markov
from thinwire.training.formatting import NOTHING, show_bytes, show_seconds

Floats = NDArray[np.float64]
Shards = list[tuple[Any, Floats]]
STRENGTH = 0.1
FACTOR = 64
"""Steps of 64 times theory's, the tuned ones of EF21 on w8a (the paper's figure 1)."""
SHORTEST = 20
"""Rounds at least."""
TURNS = 10
CROWD_METHODS = (
    "ef21(topk(count=1))",
    "ef21(randk(count=1))",
    "plain(randk(count=1))",
    "memsgd(randk(count=1))",
    "ef21pp(topk(count=1), 0.01)",
    "ef21(contractive(qsgd(15)))",
)
CROWD_TURNS, CROWD_STEP = 4, 0.05
HEAD = (
    "data", "samples", "d", "workers", "rounds", "ours", "ms a round", "numpy", "numpy / ours", "apart", "worker holds"
)  # fmt: skip


# ----------------------- EF21 as its authors' scripts write it: dense matrices, one worker after the other, numpy alone


def dense_shards(problem: FiniteSum) -> Shards:
    """Each worker's rows as a dense float64 matrix, and its labels."""
    ends = zip(problem.offsets[:-1], problem.offsets[1:], strict=True)
    return [(_dense(problem.rows[first:last]), problem.targets[first:last]) for first, last in ends]


def _dense(rows: Any) -> Any:
    return rows if isinstance(rows, np.ndarray) else rows.toarray()


def gradient(A: Any, y: Floats, x: Floats, strength: float) -> Floats:
    """Of mean log(1 + exp(-y ⟨a, x⟩)) + λ Σ x²/(1 + x²)."""
    slopes = -y / (1 + np.exp(y * (A @ x)))
    found: Floats = A.T @ slopes / len(y) + 2 * strength * x / (1 + x**2) ** 2
    return found


def top_k(v: Floats, k: int) -> Floats:
    """The k entries of largest magnitude, by argpartition."""
    kept = np.zeros_like(v)
    chosen = np.argpartition(np.abs(v), -k)[-k:]
    kept[chosen] = v[chosen]
    return kept


def ef21(shards: Shards, x: Floats, strength: float, k: int, step: float) -> Iterator[tuple[Floats, float]]:
    """Each point and ‖∇f‖² there, without end: algorithm 2 with g_i = ∇f_i(x⁰) at the start."""
    gradients = np.stack([gradient(A, y, x, strength) for A, y in shards])
    locals_ = gradients.copy()
    while True:
        yield x, float(np.square(gradients.mean(0)).sum())
        x = x - step * locals_.mean(0)
        gradients = np.stack([gradient(A, y, x, strength) for A, y in shards])
        locals_ += np.stack([top_k(each - local, k) for each, local in zip(gradients, locals_, strict=True)])


# ------------------------------------------------------------------------------------------------------- ours beside it


@dataclass(frozen=True)
class SimulationRow(Measured):
    """EF21 with top-1 on one data set and a number of workers."""

    dataset: str
    samples: int
    d: int
    entries: int
    workers: int
    rounds: int
    ours_s: float
    numpy_s: float | None
    """None where only ours was run."""
    apart: float | None
    """The largest difference of the last points, over the largest coordinate."""
    worker_bytes: float
    """What the simulation holds for each worker: state and gradient, and its share of the data."""

    @property
    def ours_ms(self) -> float:
        """A round."""
        return 1e3 * self.ours_s / self.rounds

    @property
    def speedup(self) -> float | None:
        return None if self.numpy_s is None else self.numpy_s / self.ours_s

    def plain(self) -> dict[str, Any]:
        return super().plain() | {"ours_ms": self.ours_ms, "speedup": self.speedup}


def bench_simulation(
    datasets: Sequence[Dataset], workers: int, growth: Sequence[int], rounds: int, threads: int = 1
) -> Iterator[SimulationRow]:
    """Each data set beside numpy with so many workers, then ours alone with each number of workers in `growth`."""
    for dataset in datasets:
        with _threads(threads):
            yield _row(dataset, min(workers, len(dataset)), rounds, against=True)
            for n in growth:
                if n <= len(dataset) and n != workers:
                    yield _row(dataset, n, max(SHORTEST, rounds // 10), against=False)


def _threads(count: int) -> Any:
    """So many threads for torch from now on, and for numpy within the block."""
    torch.set_num_threads(count)
    return require("threadpoolctl", "tasks", "numpy's threads").threadpool_limits(count)


def _row(dataset: Dataset, workers: int, rounds: int, *, against: bool) -> SimulationRow:
    problem = logistic_regression(dataset, file_order(len(dataset), workers), STRENGTH)
    step = _step(problem, dataset)
    _Race(problem, step, 3, None).run()  # compiles the kernels
    other = ef21(dense_shards(problem), problem.x0, STRENGTH, 1, step) if against else None
    race = _Race(problem, step, rounds, other)
    x = race.run()
    apart = None if race.x is None else float(np.abs(x - race.x).max() / np.abs(race.x).max())
    held = 8 * problem.d * 2 + problem.nbytes / workers
    entries = int(problem.rows.size if isinstance(problem.rows, np.ndarray) else problem.rows.nnz)
    return SimulationRow(
        dataset.name, len(dataset), problem.d, entries, workers, rounds, race.ours_s,
        race.numpy_s if against else None, apart, held,
    )  # fmt: skip


def _step(problem: FiniteSum, dataset: Dataset) -> float:
    """FACTOR times theory's step for 20 workers, whatever their number: it is the time that is compared."""
    twenty = logistic_regression(dataset, file_order(len(dataset), min(20, len(dataset))), STRENGTH).smoothness()
    return FACTOR * ef21_nonconvex_step(twenty.pooled, twenty.quadratic_mean, markov(1 / problem.d))


class _Race:
    """Both sides by turns of a tenth of the rounds, so that whatever else the machine does hits both alike."""

    def __init__(self, problem: FiniteSum, step: float, rounds: int, other: Iterator[tuple[Any, float]] | None) -> None:
        self._problem, self._step, self._rounds, self._other = problem, step, rounds, other
        self._turn = max(1, rounds // TURNS)
        self.ours_s = self.numpy_s = 0.0
        self.norms: list[float] = []
        self.x: Any = None
        """Where numpy has come to."""

    def run(self) -> Any:
        """All rounds; where ours has come to."""
        self._since = time.perf_counter()
        run = simulate(
            self._problem, EF21(TopK(count=1)), steps=self._rounds, step_size=self._step, watch=self._watch,
            beyond_theory=True,
        )  # fmt: skip
        self.ours_s += time.perf_counter() - self._since
        if self._other is not None:
            self._advance(self._rounds - self._rounds // self._turn * self._turn + 1)
        return run.x["x"].numpy()

    def _watch(self, now: Instant) -> bool:
        mean = now.gradients["x"].numpy().mean(0)
        self.norms.append(float(mean @ mean))
        if self._other is not None and (now.step + 1) % self._turn == 0:
            self.ours_s += time.perf_counter() - self._since
            self._advance(self._turn)
            self._since = time.perf_counter()
        return False

    def _advance(self, rounds: int) -> None:
        assert self._other is not None
        start = time.perf_counter()
        for _ in range(rounds):
            self.x, _norm = next(self._other)
        self.numpy_s += time.perf_counter() - start


def simulation_table(rows: Sequence[SimulationRow]) -> Table:
    """One row a data set and number of workers."""
    return grid(HEAD, map(_cells, rows))


def _cells(row: SimulationRow) -> list[str]:
    return [
        row.dataset,
        f"{row.samples:,}",
        str(row.d),
        f"{row.workers:,}",
        f"{row.rounds:,}",
        show_seconds(row.ours_s),
        f"{row.ours_ms:.2f}",
        NOTHING if row.numpy_s is None else show_seconds(row.numpy_s),
        NOTHING if row.speedup is None else f"{row.speedup:.1f}",
        NOTHING if row.apart is None else f"{row.apart:.0e}",
        show_bytes(row.worker_bytes),
    ]


def growth_page(rows: Sequence[SimulationRow], path: Path) -> None:
    """The table, and time and memory against the number of workers."""
    names = list(dict.fromkeys(row.dataset for row in rows))
    of = {name: [row for row in rows if row.dataset == name] for name in names}
    time = [(name, [row.workers for row in of[name]], [row.ours_ms for row in of[name]]) for name in names]
    held = [
        (name, [row.workers for row in of[name]], [row.workers * row.worker_bytes for row in of[name]])
        for name in names
    ]
    workers = Axis("workers", log=True, unit="", noun="workers")
    milliseconds, memory = Axis("milliseconds", log=True), Axis("", log=True, unit="B")
    charts = [
        Chart("Time of a round", "EF21, top-1, exact gradients", workers, milliseconds, lines(time)),
        Chart("Memory", "data, state and gradients of all workers", workers, memory, lines(held)),
    ]
    facts = ["EF21", "top-1", "float64", "logistic regression"]
    write_page([Section("Simulation", facts, [], [HEAD, *map(_cells, rows)], charts)], path)


# ----------------------------------------------------------------------------------------------------- method by method


@dataclass(frozen=True)
class CrowdRow(Measured):
    """Milliseconds of a round with so many workers: the floor, all gradients at one point, and each method."""

    dataset: str
    workers: int
    gradients_ms: float
    methods_ms: dict[str, float]


def bench_crowd(dataset: Dataset, workers: Sequence[int], methods: Sequence[str], rounds: int) -> Iterator[CrowdRow]:
    """One thread. A method's time is the median of its rounds, in the best of four turns that all methods take."""
    with _threads(1):
        for n in workers:
            problem = logistic_regression(dataset, file_order(len(dataset), n))
            turns = [
                [_gradients_ms(problem, rounds), *(_round_ms(problem, each, rounds) for each in methods)]
                for _ in range(CROWD_TURNS)
            ]
            floor, *best = (min(column) for column in zip(*turns, strict=True))
            yield CrowdRow(dataset.name, n, floor, dict(zip(methods, best, strict=True)))


def _gradients_ms(problem: FiniteSum, rounds: int) -> float:
    """All gradients, taken once a round."""
    x = problem.start()
    taken = [wall_clock(lambda: problem.all_gradients(x, 0)) for _ in range(rounds + 1)]
    return statistics.median(taken[1:])


def _round_ms(problem: FiniteSum, method: str, rounds: int) -> float:
    """The median of the rounds after the first two, which start and compile."""
    marks: list[float] = []

    def watch(now: Instant) -> bool:
        marks.append(time.perf_counter())
        return False

    simulate(problem, parse(method), steps=rounds + 3, step_size=CROWD_STEP, watch=watch, beyond_theory=True)
    return 1e3 * statistics.median(end - start for start, end in pairwise(marks[2:]))


def crowd_table(rows: Sequence[CrowdRow]) -> Table:
    """One row a method, one column a number of workers; the floor first."""
    floor = ["all gradients", *(f"{row.gradients_ms:.2f}" for row in rows)]
    methods = ([name, *(f"{row.methods_ms[name]:.2f}" for row in rows)] for name in rows[0].methods_ms)
    head = ("ms a round", *(f"{row.workers:,} workers" for row in rows))
    return grid(head, [floor, *methods], title=rows[0].dataset)

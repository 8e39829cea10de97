"""How fast n workers are simulated: beside a plain numpy loop, and as n grows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from thinwire import EF21, TopK, simulate
from thinwire.bench.plain_numpy import dense_shards, ef21
from thinwire.engines.simulate import Instant
from thinwire.extras import require
from thinwire.problems import Dataset, FiniteSum, file_order, logistic_regression
from thinwire.theory import ef21_nonconvex_step, markov

STRENGTH = 0.1
FACTOR = 64
"""Steps of 64 times theory's, the tuned ones of EF21 on w8a (the paper's figure 1)."""
SHORTEST = 20
"""Rounds at least."""
TURNS = 10


@dataclass(frozen=True)
class SimulationRow:
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
        return asdict(self) | {"ours_ms": self.ours_ms, "speedup": self.speedup}


def bench_simulation(
    datasets: Sequence[Dataset], workers: int, growth: Sequence[int], rounds: int, threads: int = 1
) -> Iterator[SimulationRow]:
    """Each data set beside numpy with so many workers, then ours alone with each number of workers in `growth`."""
    limits = require("threadpoolctl", "tasks", "numpy's threads").threadpool_limits
    for dataset in datasets:
        with limits(threads):
            yield _row(dataset, min(workers, len(dataset)), rounds, against=True)
            for n in growth:
                if n <= len(dataset) and n != workers:
                    yield _row(dataset, n, max(SHORTEST, rounds // 10), against=False)


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

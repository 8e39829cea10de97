"""How a simulated round grows with the number of workers, method by method.

    python benchmarks/bench_crowd.py [--dataset w8a] [--data FOLDER] [--workers 20,1000,10000] [--rounds 60]

Logistic regression, one thread. A method's time is the median of its rounds, the best of some turns; methods take turns
within each number of workers. The first column is the floor: all workers' gradients at one point, dense. Without the
data set, scikit-learn's breast cancer data serve 20 and 500 workers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

import torch
from rich.console import Console
from rich.table import Table

from thinwire import simulate
from thinwire.engines.simulate import Instant
from thinwire.errors import DataError
from thinwire.extras import require
from thinwire.problems import Dataset, FiniteSum, file_order, load_dataset, logistic_regression
from thinwire.spec import parse

METHODS = (
    "ef21(topk(count=1))",
    "ef21(randk(count=1))",
    "plain(randk(count=1))",
    "memsgd(randk(count=1))",
    "ef21pp(topk(count=1), 0.01)",
    "ef21(contractive(qsgd(15)))",
)
TURNS, STEP = 4, 0.05


def round_ms(problem: FiniteSum, method: str, rounds: int) -> float:
    """The median of the rounds after the first two, which start and compile."""
    marks: list[float] = []

    def watch(now: Instant) -> bool:
        marks.append(time.perf_counter())
        return False

    simulate(problem, parse(method), steps=rounds + 3, step_size=STEP, watch=watch, beyond_theory=True)
    return 1e3 * statistics.median(end - start for start, end in pairwise(marks[2:]))


def floor_ms(problem: FiniteSum, rounds: int) -> float:
    """All gradients, taken once a round."""
    x, taken = problem.start(), []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        problem.all_gradients(x, 0)
        taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken[1:])


def rows(dataset: Dataset, workers: list[int], rounds: int) -> Iterator[list[str]]:
    for n in workers:
        problem = logistic_regression(dataset, file_order(len(dataset), n))
        turns = [
            [floor_ms(problem, rounds), *(round_ms(problem, each, rounds) for each in METHODS)] for _ in range(TURNS)
        ]
        yield [f"{n:,}", *(f"{min(column):.2f}" for column in zip(*turns, strict=True))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="w8a")
    parser.add_argument("--data")
    parser.add_argument("--workers", default="20,1000,10000")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    workers = [int(n) for n in options.workers.split(",")]
    try:
        dataset = load_dataset(options.dataset, options.data)
    except DataError:
        dataset, workers = load_dataset(), [20, 500]
    torch.set_num_threads(1)
    table = Table("workers", "all gradients", *METHODS, title=f"{dataset.name}: ms a round")
    with require("threadpoolctl", "tasks", "numpy's threads").threadpool_limits(1):
        for row in rows(dataset, workers, options.rounds):
            table.add_row(*row)
    Console(width=200).print(table)


if __name__ == "__main__":
    main()

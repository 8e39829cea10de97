"""Splits: which rows of a data set belong to which worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.errors import ConfigError

Indices = NDArray[np.int64]
SPLITS = ("file", "iid", "skewed")


@dataclass(frozen=True, eq=False)
class Shards:
    """Worker i holds the rows order[offsets[i]:offsets[i+1]]; no worker is without rows, no row has two workers."""

    order: Indices
    offsets: Indices

    def __post_init__(self) -> None:
        check_offsets(self.offsets, len(self.order))
        if len(np.unique(self.order)) != len(self.order):
            raise ConfigError("a row belongs to two workers; every row may be given out once")

    def __len__(self) -> int:
        """The number of workers."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Indices:
        """Rows of each worker."""
        return np.diff(self.offsets)


def check_offsets(offsets: Indices, rows: int) -> None:
    """Refuse offsets that do not cover all rows, or leave a worker without any."""
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != rows:
        raise ConfigError(f"offsets must run from 0 to {rows}, got {offsets}")
    if (empty := np.flatnonzero(np.diff(offsets) < 1)).size:
        raise ConfigError(
            f"worker {empty[0]} (of {len(offsets) - 1}; {empty.size} in all) has no rows, so its mean loss is not "
            "defined: take fewer workers, or another split"
        )


def file_order(rows: int, workers: int) -> Shards:
    """The EF21 paper's split: contiguous blocks of ⌊N/n⌋ rows in the order of the file, the remainder to the last.

    >>> file_order(11055, 20).sizes[[0, -1]].tolist()
    [552, 567]
    """
    _check(rows, workers)
    offsets = np.arange(workers + 1) * (rows // workers)
    offsets[-1] = rows
    return Shards(np.arange(rows), offsets)


def iid(rows: int, workers: int, seed: int = 0) -> Shards:
    """Rows shuffled, then cut into blocks whose sizes differ by one at most."""
    return Shards(np.random.default_rng(seed).permutation(rows), _even(rows, workers))


def label_skewed(labels: Any, workers: int, concentration: float = 0.5, seed: int = 0) -> Shards:
    """Each worker's labels follow proportions of its own, drawn from Dirichlet(concentration · N_c/N over classes c).

    Sizes differ by one at most, so no worker goes empty; a class that has run out is replaced by what is left (Hsu, Qi
    and Brown 2019). Small concentrations give workers of a single class, large ones an iid split.
    """
    if not 0 < concentration < np.inf:
        raise ConfigError(f"a label-skewed split needs a finite concentration above 0, got {concentration}")
    offsets = _even(len(labels), workers)
    random = np.random.default_rng(seed)
    classes = np.unique(labels)
    pools = [random.permutation(np.flatnonzero(labels == label)) for label in classes]
    left = np.array([len(pool) for pool in pools])
    wanted = random.dirichlet(np.maximum(concentration * left / left.sum(), np.finfo(np.float64).tiny), workers)
    parts = []
    for proportions, size in zip(wanted, np.diff(offsets), strict=True):
        taken = _take(random, proportions, left, int(size))
        starts = [len(pool) - rest for pool, rest in zip(pools, left, strict=True)]
        parts += [pool[at : at + count] for pool, at, count in zip(pools, starts, taken, strict=True)]
        left = left - taken
    return Shards(np.concatenate(parts), offsets)


def _take(random: np.random.Generator, proportions: Any, left: Indices, size: int) -> Indices:
    """How many rows of each class a worker gets: a multinomial draw, and leftovers in place of what has run out."""
    taken = np.minimum(random.multinomial(size, proportions), left)
    rest: Indices = random.multivariate_hypergeometric(left - taken, size - int(taken.sum()))
    return taken + rest


def split_rows(split: str, labels: Any, workers: int, concentration: float = 0.5, seed: int = 0) -> Shards:
    """The split of that name: file, iid or skewed."""
    if split == "file":
        return file_order(len(labels), workers)
    if split == "iid":
        return iid(len(labels), workers, seed)
    if split == "skewed":
        return label_skewed(labels, workers, concentration, seed)
    raise ConfigError(f"unknown split {split!r}; the splits are {', '.join(SPLITS)}")


def _even(rows: int, workers: int) -> Indices:
    _check(rows, workers)
    return np.arange(workers + 1) * rows // workers


def _check(rows: int, workers: int) -> None:
    if workers < 1:
        raise ConfigError(f"a split needs at least 1 worker, got {workers}")
    if workers > rows:
        raise ConfigError(f"{workers} workers share {rows} rows: some would have none; take at most {rows} workers")

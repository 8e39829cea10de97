"""The order of samples: which of them a worker sees at a step, from explicit seeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Indices = NDArray[np.int64]


@lru_cache(maxsize=8)
def _permutation(count: int, seed: int, epoch: int) -> Indices:
    return np.random.default_rng((seed, epoch)).permutation(count)


def epoch_slice(count: int, seed: int, step: int, worker: int, workers: int, size: int) -> Indices:
    """The samples of one worker at one step, when all workers together walk through shuffled epochs.

    Position p of the endless walk is entry p mod count of epoch p div count; step t takes the positions
    t·n·size … (t+1)·n·size, and worker i the i-th `size` of them. No sample is seen twice in an epoch.

    >>> epoch_slice(4, 0, 0, 0, 2, 2).tolist() + epoch_slice(4, 0, 0, 1, 2, 2).tolist()
    [2, 0, 1, 3]
    """
    first = (step * workers + worker) * size
    positions = np.arange(first, first + size)
    epochs, places = np.divmod(positions, count)
    return np.concatenate([_permutation(count, seed, int(e))[places[epochs == e]] for e in np.unique(epochs)])


def split(count: int, held_out: float) -> tuple[Indices, Indices]:
    """A fixed split into training and test samples: the same for every run, so that seeds vary training alone."""
    shuffled = np.random.default_rng(0).permutation(count)
    cut = count - max(1, round(held_out * count))
    return shuffled[:cut], shuffled[cut:]


def seeded(seed: int, build: Callable[[], nn.Module]) -> nn.Module:
    """What `build` makes with torch's generator at `seed`; the generator is put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()

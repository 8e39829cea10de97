"""What the laws are tested on: layouts of odd pieces and streams of awkward gradients."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from thinwire import Layout

LAYOUTS = [
    Layout.of([("a", 0, (1,))]),
    Layout.of([("a", 0, (7, 3))]),
    Layout.of([("a", 0, (5, 4)), ("b", 1, (3,)), ("c", 2, (0,)), ("d", 3, (1,)), ("e", 4, (2, 3, 3))]),
]

KINDS = ("normal", "heavy", "ties", "zeros", "sparse", "tiny", "huge")


def vector(kind: str, numel: int, seed: int) -> np.ndarray:
    """A vector of one kind, as float64."""
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=numel)
    match kind:
        case "heavy":
            return np.sign(normal) * np.abs(normal) ** 5
        case "ties":
            return rng.choice([-1.0, 1.0, 0.5], size=numel)
        case "zeros":
            return np.zeros(numel)
        case "sparse":
            return np.where(rng.random(numel) < 0.1, normal, 0.0)
        case "tiny":
            return normal * 1e-12
        case "huge":
            return normal * 1e12
    return normal


def vectors(layout: Layout, dtype: torch.dtype) -> st.SearchStrategy[Tensor]:
    """Vectors of every kind."""
    made = st.builds(vector, st.sampled_from(KINDS), st.just(layout.numel), st.integers(0, 2**32 - 1))
    return made.map(lambda array: torch.tensor(array, dtype=dtype))


def streams(layout: Layout, dtype: torch.dtype, *, workers: int = 1) -> st.SearchStrategy[list[list[Tensor]]]:
    """1 to 6 steps of one gradient for each worker."""
    one_step = st.lists(vectors(layout, dtype), min_size=workers, max_size=workers)
    return st.lists(one_step, min_size=1, max_size=6)


def eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps

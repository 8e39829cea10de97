"""Products with and sums of CSR rows, and folded sums: every back-end gives the bits of plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor

from thinwire import ops
from thinwire.ops import reference

BACKENDS = ["reference", "numba"]


def matrix(rows: int, columns: int, uniform: float | None, seed: int = 0) -> sparse.csr_matrix:
    made = sparse.random(rows, columns, density=0.2, format="csr", rng=np.random.default_rng(seed))
    if uniform is not None:
        made.data[:] = uniform
    return made


def parts(made: sparse.csr_matrix, uniform: float | None) -> tuple[Tensor, Tensor, Tensor]:
    values = made.data if uniform is None else np.array([uniform])
    return torch.from_numpy(made.indptr), torch.from_numpy(made.indices), torch.from_numpy(values)


def loops(made: sparse.csr_matrix, weights: np.ndarray, offsets: list[int]) -> np.ndarray:
    """The weighted rows of each group, added up one entry after the other."""
    out = np.zeros((len(offsets) - 1, made.shape[1]))
    for group in range(len(offsets) - 1):
        for row in range(offsets[group], offsets[group + 1]):
            for entry in range(made.indptr[row], made.indptr[row + 1]):
                out[group, made.indices[entry]] += weights[row] * made.data[entry]
    return out


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("uniform", [None, 1.0, 0.18257])
@pytest.mark.parametrize("shape", [(40, 9), (1, 1), (7, 30)])
def test_row_products(backend: str, uniform: float | None, shape: tuple[int, int]) -> None:
    made = matrix(*shape, uniform)
    x = np.random.default_rng(1).normal(size=shape[1])
    with ops.backend(backend):
        found = ops.row_products(*parts(made, uniform), torch.from_numpy(x))
    assert found.tolist() == (made @ x).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("uniform", [None, 1.0, 0.18257])
@pytest.mark.parametrize("columns", [torch.uint16, torch.int32])
def test_row_sums(backend: str, uniform: float | None, columns: torch.dtype) -> None:
    made, offsets = matrix(40, 9, uniform), [0, 1, 1, 25, 40]
    weights = np.random.default_rng(1).normal(size=40)
    pointers, places, values = parts(made, uniform)
    expected = loops(made, weights, offsets)
    for first, last in ((0, 4), (1, 3), (3, 4)):
        own = torch.tensor(offsets)[first : last + 1]
        with ops.backend(backend):
            found = ops.row_sums(pointers, places.to(columns), values, torch.from_numpy(weights), own, 9)
        assert found.tolist() == expected[first:last].tolist()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("uniform", [None, 1.0, 0.18257])
@pytest.mark.parametrize("shape", [(40, 9), (60_000, 100)], ids=str)
def test_row_sums_at_some_places(backend: str, uniform: float | None, shape: tuple[int, int], threads: int) -> None:
    """Of groups with all places, some and none; the larger matrix has work for two threads."""
    made, random = matrix(*shape, uniform), np.random.default_rng(1)
    weights = torch.from_numpy(random.normal(size=shape[0]))
    offsets = torch.tensor([0, 1, 1, 10, 15, shape[0] // 2, shape[0]])
    wanted = random.random((6, shape[1])) < 0.3
    wanted[1], wanted[3], wanted[4] = True, True, False
    places = torch.from_numpy(np.flatnonzero(wanted))
    csr = parts(made, uniform)
    torch.set_num_threads(threads)
    try:
        with ops.backend(backend):
            found = ops.row_sums_at(*csr, weights, offsets, shape[1], places)
    finally:
        torch.set_num_threads(1)
    expected = reference.row_sums(*csr, weights, offsets, shape[1]).view(-1)[places]
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_add_folded(backend: str, dtype: torch.dtype) -> None:
    """Rows of seven numbers, some of them without any position."""
    positions = torch.tensor([1, 3, 7, 10, 10 + 14, 12 + 14, 41])
    values = torch.randn(7, generator=torch.Generator().manual_seed(0), dtype=dtype)
    out = torch.linspace(0, 1, 7, dtype=dtype)
    expected = out.clone()
    for place, value in zip((positions % 7).tolist(), values, strict=True):
        expected[place] += value * torch.tensor(0.3, dtype=dtype)
    with ops.backend(backend):
        assert torch.equal(ops.add_folded_(out, positions, values, 0.3), expected)
        empty = torch.empty(0, dtype=torch.int64)
        assert torch.equal(ops.add_folded_(out, empty, empty.to(dtype), 0.3), expected)

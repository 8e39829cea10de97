"""Every back-end's sum of squared per-sample products against its definition."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.backends import BACKENDS

from thinwire import ops
from thinwire.ops import reference

SHAPES = [(1, 1, 1, 1, 1), (4, 1, 16, 70, 40), (3, 2, 9, 20, 130), (64, 1, 64, 128, 65), (5, 3, 100, 64, 27)]
"""Samples, groups, positions, rows and columns: fewer and more than a tile or a block, and none of them a multiple."""


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_the_squares_of_products(
    shape: tuple[int, int, int, int, int], dtype: torch.dtype, name: str | None, device: str
) -> None:
    """The bound: each product sums L terms, and the squares B of them, in whatever order."""
    samples, groups, positions, rows, columns = shape
    generator = torch.Generator().manual_seed(sum(shape))
    left = torch.randn(samples, groups, positions, rows, generator=generator, dtype=dtype)
    right = torch.randn(samples, groups, columns, positions, generator=generator, dtype=dtype).transpose(2, 3)
    with ops.backend(name or "triton"):
        found = ops.outer_squares(left.to(device), right.to(device)).cpu()
    expected = reference.outer_squares(left.double(), right.double())
    assert found.shape == (groups, rows, columns)
    assert found.dtype == dtype
    bound = 4 * torch.finfo(dtype).eps * (positions * samples) ** 0.5
    assert float((found - expected).norm()) <= bound * float(expected.norm())

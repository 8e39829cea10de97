"""Factored second moments and preconditioned updates on every back-end: equal to the reference, sums within a bound."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.backends import BACKENDS
from torch import Tensor

from thinwire import Layout, ops
from thinwire.ops import reference

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "vectors": [(7,), (0,), (1,), ()],
    "matrices": [(3, 5), (1, 9), (9, 1), (0, 4), (4, 0)],
    "images": [(4, 3, 3, 3), (2,), (65, 129)],
    "large": [(300, 501), (77,), (129, 1000)],
}
every_one = pytest.mark.parametrize(("name", "device"), [case for case in BACKENDS if case.id != "reference"])
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
every_shape = pytest.mark.parametrize("shape", SHAPES)


def layout_of(shape: str) -> Layout:
    return Layout.of([(str(i), i, each) for i, each in enumerate(SHAPES[shape])])


def drawn(numel: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def length(layout: Layout) -> int:
    return sum(piece.factors for piece in layout.pieces)


@every_shape
@every_dtype
@every_one
def test_means_are_within_the_stated_bound(name: str, device: str, dtype: torch.dtype, shape: str) -> None:
    layout = layout_of(shape)
    x = drawn(layout.numel, dtype)
    expected = reference.square_means(x, layout)
    with ops.backend(name):
        found = ops.square_means(x.to(device), layout).cpu()
    assert found.dtype == dtype
    bound = (torch.finfo(dtype).eps + layout.numel * torch.finfo(torch.float64).eps) * expected.double()
    assert ((found.double() - expected.double()).abs() <= bound).all()


@pytest.mark.parametrize("squares", ["normal", "zeros", "some zeros", "huge"])
@every_shape
@every_dtype
@every_one
def test_updates_are_the_references(name: str, device: str, dtype: torch.dtype, shape: str, squares: str) -> None:
    layout = layout_of(shape)
    momentum, shared = drawn(layout.numel, dtype), drawn(length(layout), dtype, 1).square()
    if squares == "zeros":
        shared.zero_()
    elif squares == "some zeros":
        shared[::2] = 0
    elif squares == "huge":
        shared.mul_(1e30)
    corrections = torch.linspace(0.5, 1, len(layout.pieces), dtype=dtype)
    given = (momentum, shared, corrections)
    expected = reference.preconditioned(*given, layout, 8, 1e-8)
    with ops.backend(name):
        found = ops.preconditioned(*(each.to(device) for each in given), layout, 8, 1e-8).cpu()
    rows = max((each[0] for each in SHAPES[shape] if len(each) > 1), default=1)
    means = 2 * torch.finfo(dtype).eps + rows * torch.finfo(torch.float64).eps
    assert torch.equal(found == 0, expected == 0)
    assert ((found.double() - expected.double()).abs() <= means * expected.double().abs()).all()


@every_shape
@every_dtype
@every_one
def test_pieces_are_scaled_as_by_the_reference(name: str, device: str, dtype: torch.dtype, shape: str) -> None:
    layout = layout_of(shape)
    filled = sum(piece.numel > 0 for piece in layout.pieces)
    factors = torch.linspace(0.25, 1, filled, dtype=dtype)
    x = drawn(layout.numel, dtype)
    expected = reference.scale_pieces_(x.clone(), factors, layout)
    with ops.backend(name):
        found = ops.scale_pieces_(x.to(device), factors.to(device), layout).cpu()
    assert torch.equal(found, expected)

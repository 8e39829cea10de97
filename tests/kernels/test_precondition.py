"""Factored second moments and preconditioned updates on every back-end: equal to the reference, sums within a bound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.kernels.backends import BACKENDS
from torch import Tensor

from thinwire import Layout, ops
from thinwire.ops import reference
from thinwire.ops.blocks import WHOLE

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "vectors": [(7,), (0,), (1,), ()],
    "matrices": [(3, 5), (1, 9), (9, 1), (0, 4), (4, 0)],
    "images": [(4, 3, 3, 3), (2,), (65, 129)],
    "large": [(300, 501), (77,), (129, 1000)],
    "none": [],
    "nothing": [(0,), (0, 4), (4, 0, 3)],
    "tiles": [(64, 128), (8192,), (63, 127), (128, 256), (5, 6, 7), (8193,)],  # a GPU's, full, and one more or less
    "tall": [(9000, 3), (20_001,), (4097, 1), (1, 5000)],  # more rows than a GPU sums at once, in all its stages
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
        found, again = (ops.square_means(x.to(device), layout).cpu() for _ in range(2))
    assert found.dtype == dtype
    bound = (torch.finfo(dtype).eps + layout.numel * torch.finfo(torch.float64).eps) * expected.double()
    assert ((found.double() - expected.double()).abs() <= bound).all()
    assert torch.equal(found, again)


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
        found, again = (
            ops.preconditioned(*(each.to(device) for each in given), layout, 8, 1e-8).cpu() for _ in range(2)
        )
    assert torch.equal(found, again)
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


@every_shape
@every_dtype
@every_one
def test_factors_of_one_leave_pieces_as_they_are(name: str, device: str, dtype: torch.dtype, shape: str) -> None:
    layout = layout_of(shape)
    filled = sum(piece.numel > 0 for piece in layout.pieces)
    factors = torch.ones(filled, dtype=dtype)
    factors[1::2] = torch.nan
    x = drawn(layout.numel, dtype)
    expected = reference.scale_pieces_(x.clone(), factors, layout)
    with ops.backend(name):
        found = ops.scale_pieces_(x.to(device), factors.to(device), layout).cpu()
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found[~found.isnan()], expected[~expected.isnan()])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if SHAPES[shape]])
def test_a_gpu_takes_a_few_launches_and_does_not_wait(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a CUDA graph nothing may wait, and no table may be brought to the GPU; replayed, it gives the same numbers."""
    from thinwire.ops.cuda.launch import Launcher

    layout, device = layout_of(shape), torch.device("cuda")
    x = drawn(layout.numel, torch.float32).to(device)
    corrections = torch.linspace(0.5, 1, len(layout.pieces), device=device)

    def step() -> tuple[Tensor, Tensor]:
        means = ops.square_means(x, layout)
        u = ops.preconditioned(x, means, corrections, layout, 8, 1e-8)
        norms = ops.block_norms(u, layout, WHOLE, 2)
        return means, ops.scale_pieces_(u, norms.reciprocal().clamp_(max=1.0), layout)

    expected, graph, launched, launch = step(), torch.cuda.CUDAGraph(), [], Launcher.__call__

    def counted(self: Launcher, name: str, *rest: Any, **options: Any) -> None:
        launched.append(name)
        launch(self, name, *rest, **options)

    monkeypatch.setattr(Launcher, "__call__", counted)
    with torch.cuda.graph(graph):
        found = step()
    assert 1 <= len(launched) <= 7, "two for each of three, and one to scale, whatever the layout holds"
    graph.replay()
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)

"""Every back-end of the top-k operations against their definition: the same positions, the same bits."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.backends import (
    BACKENDS,
    KINDS,
    NONFINITE,
    check,
    circumstances,
    layout_of,
    on_threads,
    pair,
    ratios_of,
)

from thinwire import Layout, ops
from thinwire.compressors.density import kept
from thinwire.errors import BackendError
from thinwire.ops import reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("ratio", [0.001, 0.1, 1.0])
@pytest.mark.parametrize(("name", "device", "shape", "threads"), circumstances())
def test_every_back_end_is_the_reference(
    name: str, device: str, shape: str, threads: int, ratio: float, dtype: torch.dtype
) -> None:
    layout = layout_of(shape)
    counts = [kept(piece.numel, ratio, None) for piece in layout.pieces]
    with on_threads(threads):
        for kind in KINDS + NONFINITE:
            x, y = pair(kind, layout.numel, dtype)
            check("topk", x, (), (layout, counts), name, device)
            check("memory_topk_", x, (y,), (layout, counts, ratios_of(layout)), name, device)
            check("difference_topk_", x, (y,), (layout, counts), name, device)


@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_strided_vectors_are_the_same(name: str, device: str) -> None:
    layout, counts = Layout.of([("x", 0, (1000,))]), [31]
    x, y = (v[::2].to(device) for v in pair("normal", 2000, torch.float32))
    mine = torch.zeros(2000, device=device)[::2].copy_(x)
    expected = reference.memory_topk_(its := x.clone(), y, layout, counts, None)
    with ops.backend(name):
        found = ops.memory_topk_(mine, y, layout, counts, None)
    assert all(torch.equal(a, b) for a, b in zip((*found, mine), (*expected, its), strict=True))


def test_an_unknown_back_end_is_refused() -> None:
    with (
        pytest.raises(BackendError, match="unknown back-end 'fortran'; known: reference, numba, triton"),
        ops.backend("fortran"),
    ):
        pass


def test_the_environment_chooses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THINWIRE_BACKEND", "reference")
    assert ops.backends.implementation(reference.topk, "cpu") is reference.topk

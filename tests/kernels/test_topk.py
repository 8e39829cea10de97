"""Every back-end of the top-k operations against their definition: the same positions, the same bits."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor

from thinwire import Layout, ops
from thinwire.compressors.density import kept
from thinwire.errors import BackendError
from thinwire.ops import reference

BACKENDS = [
    pytest.param("reference", "cpu", id="reference"),
    pytest.param(
        "numba", "cpu", id="numba", marks=pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba")
    ),
    pytest.param(None, "cuda", id="cuda", marks=pytest.mark.gpu),
]
LAYOUTS = {
    "one": [1],
    "none": [0],
    "odd": [63, 0, 64, 1, 65, 127],
    "many": [7] * 40 + [1000],
    "large": [150_001, 3, 77_777],  # more than one thread's smallest share, and larger than a sample
}
KINDS = (
    "normal",
    "ties",
    "zeros",
    "sparse",
    "heavy",
    "sorted",
    "falling",
    "one huge",
    "equal",
    "denormal",
    "negative zero",
)


def pair(kind: str, numel: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two vectors whose sum and difference are of an awkward kind."""
    generator = torch.Generator().manual_seed(numel)
    x, y = (torch.randn(numel, generator=generator, dtype=dtype) for _ in range(2))
    match kind:
        case "ties":
            return x.round(), y.round()
        case "zeros":
            return x * 0, y * 0
        case "sparse":
            few = torch.rand(numel, generator=generator) < 0.003
            return x * few, y * few
        case "heavy":
            return x**9, y
        case "sorted" | "falling":
            return x.sort(descending=kind == "falling").values, y * 0
        case "one huge":
            x = x * 1e-3
            x[numel // 2 :][:1] = 1e30
            return x, y * 1e-3
        case "equal":
            return torch.full_like(x, 1.5), torch.full_like(y, 0.25)
        case "denormal":
            return x * torch.finfo(dtype).tiny / 8, y * torch.finfo(dtype).tiny / 8
        case "negative zero":
            return -x.abs().clamp(max=0.1) * 0, -y.abs() * 0
    return x, y


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("ratio", [0.001, 0.1, 1.0])
@pytest.mark.parametrize("shape", LAYOUTS)
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_every_back_end_is_the_reference(
    name: str | None, device: str, shape: str, ratio: float, dtype: torch.dtype, threads: int
) -> None:
    layout = Layout.of([(str(i), i, (n,)) for i, n in enumerate(LAYOUTS[shape])])
    counts = [kept(piece.numel, ratio, None) for piece in layout.pieces]
    ratios = [1.0, 0.5, 2.0, 1.0 / 3][: len(counts)] + [1.0] * (len(counts) - 4)
    torch.set_num_threads(threads)
    try:
        for kind in KINDS:
            x, y = pair(kind, layout.numel, dtype)
            for op, arguments in (("topk", ()), ("memory_topk_", (ratios,)), ("difference_topk_", ())):
                check(op, x, y, layout, counts, arguments, name, device)
    finally:
        torch.set_num_threads(1)


def check(
    op: str,
    x: Tensor,
    y: Tensor,
    layout: Layout,
    counts: list[int],
    more: tuple[object, ...],
    name: str | None,
    device: str,
) -> None:
    """One operation by the back-end and by the reference: positions, values, and what is left in place."""
    mine, its = x.clone().to(device), x.clone()
    others = () if op == "topk" else (y,)
    if name is None:
        found = getattr(ops, op)(mine, *(o.to(device) for o in others), layout, counts, *more)
    else:
        with ops.backend(name):
            found = getattr(ops, op)(mine, *others, layout, counts, *more)
    expected = getattr(reference, op)(its, *others, layout, counts, *more)
    for a, b in zip((*found, mine), (*expected, its), strict=True):
        assert torch.equal(a.cpu(), b), op
        assert torch.equal(a.cpu().signbit(), b.signbit()), op


def test_an_unknown_back_end_is_refused() -> None:
    with (
        pytest.raises(BackendError, match="unknown back-end 'fortran'; known: reference, numba, triton"),
        ops.backend("fortran"),
    ):
        pass


def test_the_environment_chooses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THINWIRE_BACKEND", "reference")
    assert ops.backends.implementation("topk", "cpu") is reference.topk

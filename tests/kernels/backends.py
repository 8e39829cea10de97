"""The back-ends that every operation is compared over, and the awkward vectors they are given."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor

from thinwire import Layout, ops
from thinwire.ops import reference

BACKENDS = [
    pytest.param("reference", "cpu", id="reference"),
    pytest.param(
        "numba", "cpu", id="numba", marks=pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba")
    ),
    pytest.param("triton", "cuda", id="cuda", marks=pytest.mark.gpu),
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
NONFINITE = ("nan", "all nan", "inf", "all inf", "nan and inf")
"""Selections are defined on these too: NaN is the largest magnitude, and all NaN are equal. Kernels compare the
bits of |x|: in float32 a CPU's arithmetic makes one NaN (7fc00000), a GPU's another (7fffffff), never both in a step.
"""


def circumstances(shapes: Iterable[str] = LAYOUTS) -> list[ParameterSet]:
    """Every back-end, shape and number of threads, as `name`, `device`, `shape`, `threads`.

    Two threads share the work on a large shape alone: on the others both numbers run the same code. The reference is
    compared with itself to see that it is called: on one shape. What that leaves out is for the exhaustive suite.
    """
    return [
        pytest.param(
            *backend.values,
            shape,
            threads,
            id=f"{backend.id}-{shape}-{threads}",
            marks=[*backend.marks, *([] if _tells(backend.id, shape, threads) else [pytest.mark.exhaustive])],
        )
        for backend in BACKENDS
        for shape in shapes
        for threads in (1, 2)
    ]


def _tells(backend: str | None, shape: str, threads: int) -> bool:
    return (shape == "large" or threads == 1) and (backend != "reference" or shape == "odd")


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """Inside, torch and the kernels use so many threads."""
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(1)


def layout_of(shape: str) -> Layout:
    return Layout.of([(str(i), i, (n,)) for i, n in enumerate(LAYOUTS[shape])])


def ratios_of(layout: Layout) -> list[float]:
    """A ratio for each piece, not all of them one."""
    return ([1.0, 0.5, 2.0, 1.0 / 3] + [1.0] * len(layout.pieces))[: len(layout.pieces)]


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
        case "nan" | "inf":
            return _strewn(x, float(kind), generator), y
        case "all nan" | "all inf":
            return x * 0 + float(kind.removeprefix("all ")), y
        case "nan and inf":  # their sum and difference have NaN of their own, infinity less infinity
            return _strewn(_strewn(x, torch.nan, generator), torch.inf, generator), _strewn(y, torch.inf, generator)
    return x, y


def _strewn(x: Tensor, number: float, generator: torch.Generator) -> Tensor:
    """One entry in 17, and the last, replaced by +-number: more than the smallest share that is kept, and less."""
    chosen = torch.rand(x.numel(), generator=generator) < 1 / 17
    chosen[-1:] = True
    return torch.where(chosen, number * x.sign(), x)


def check(op: str, x: Tensor, others: tuple[Tensor, ...], more: tuple[object, ...], name: str, device: str) -> None:
    """One operation by the back-end and by the reference: positions, values, and what is left in place."""
    mine, its = x.clone().to(device), x.clone()
    given = tuple(other.to(device) for other in others)
    with ops.backend(name):
        found = getattr(ops, op)(mine, *given, *more)
    expected = getattr(reference, op)(its, *others, *more)
    for a, b in zip((*found, mine), (*expected, its), strict=True):
        assert_same(a.cpu(), b)


def assert_same(a: Tensor, b: Tensor) -> None:
    """Equal to the bit, except for the bits of NaN."""
    assert torch.equal(a.isnan(), b.isnan())
    assert torch.equal(a[~a.isnan()], b[~b.isnan()])
    assert torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())

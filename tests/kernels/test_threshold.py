"""Every back-end of the threshold operations against their definition: the same positions, the same bits."""

from __future__ import annotations

from collections.abc import Iterable

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

from thinwire import Layout

TAUS = (1e-50, 1e-39, 1e-3, 0.7, 1.75, 2.0, 1e9)
"""All but nothing (zero in float32), a denormal of float32, nearly everything, a number that float32 rounds down, the
very number of "equal" (sum), of "ties", and nearly nothing."""


DTYPES = (torch.float32, torch.float64)
each_family = pytest.mark.parametrize("signs", [False, True], ids=["threshold", "strom"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def some_taus(kind: str, dtype: torch.dtype, threads: int) -> tuple[float, float]:
    """Two of the seven, other ones for another dtype or number of threads, so that a kind meets all of them."""
    first = (KINDS + NONFINITE).index(kind) + 2 * DTYPES.index(dtype) + 4 * (threads - 1)
    return TAUS[first % len(TAUS)], TAUS[(first + 1) % len(TAUS)]


def compare(signs: bool, kind: str, taus: Iterable[float], layout: Layout, dtype: torch.dtype, *where: str) -> None:
    x, y = pair(kind, layout.numel, dtype)
    for tau in taus:
        check("threshold", x, (), (tau, signs), *where)
        check("memory_threshold_", x, (y,), (layout, tau, ratios_of(layout), signs), *where)
        check("memory_threshold_", x, (y,), (layout, tau, None, signs), *where)
        check("difference_threshold_", x, (y,), (tau, signs), *where)


@each_dtype
@each_family
@pytest.mark.parametrize(("name", "device", "shape", "threads"), circumstances())
def test_every_back_end_is_the_reference(
    name: str, device: str, shape: str, threads: int, signs: bool, dtype: torch.dtype
) -> None:
    with on_threads(threads):
        for kind in KINDS + NONFINITE:
            taus = TAUS if shape != "large" else some_taus(kind, dtype, threads)
            compare(signs, kind, taus, layout_of(shape), dtype, name, device)


def test_every_kind_meets_every_tau_on_many_numbers() -> None:
    for kind in KINDS + NONFINITE:
        assert {tau for dtype in DTYPES for threads in (1, 2) for tau in some_taus(kind, dtype, threads)} == set(TAUS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threads", [1, 2])
@each_dtype
@each_family
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_every_tau_on_many_numbers(name: str, device: str, signs: bool, dtype: torch.dtype, threads: int) -> None:
    with on_threads(threads):
        for kind in KINDS + NONFINITE:
            compare(signs, kind, TAUS, layout_of("large"), dtype, name, device)


@each_family
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_a_threshold_beyond_float32_finds_nothing(name: str, device: str, signs: bool) -> None:
    x = torch.tensor([3e38, -3e38])
    check("threshold", x, (), (1e39, signs), name, device)


@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_finds_that_come_all_at_the_end(name: str, device: str) -> None:
    """Nothing lets the first buffer expect what comes after it."""
    x = torch.zeros(200_001)
    x[100_000:] = 3.0
    check("threshold", x, (), (1.0,), name, device)
    check("difference_threshold_", x, (torch.zeros_like(x),), (1.0, True), name, device)

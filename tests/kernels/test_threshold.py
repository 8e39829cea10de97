"""Every back-end of the threshold operations against their definition: the same positions, the same bits."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.backends import BACKENDS, KINDS, LAYOUTS, NONFINITE, check, layout_of, pair, ratios_of

TAUS = (1e-50, 1e-39, 1e-3, 0.7, 1.75, 2.0, 1e9)
"""All but nothing (zero in float32), a denormal of float32, nearly everything, a number that float32 rounds down, the
very number of "equal" (sum), of "ties", and nearly nothing."""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("family", ["threshold", "strom"])
@pytest.mark.parametrize("shape", LAYOUTS)
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_every_back_end_is_the_reference(
    name: str, device: str, shape: str, family: str, dtype: torch.dtype, threads: int
) -> None:
    layout = layout_of(shape)
    torch.set_num_threads(threads)
    try:
        for kind in KINDS + NONFINITE:
            x, y = pair(kind, layout.numel, dtype)
            for tau in TAUS:
                check(family, x, (), (tau,), name, device)
                check(f"memory_{family}_", x, (y,), (layout, tau, ratios_of(layout)), name, device)
                check(f"memory_{family}_", x, (y,), (layout, tau, None), name, device)
                check(f"difference_{family}_", x, (y,), (tau,), name, device)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("family", ["threshold", "strom"])
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_a_threshold_beyond_float32_finds_nothing(name: str, device: str, family: str) -> None:
    x = torch.tensor([3e38, -3e38])
    check(family, x, (), (1e39,), name, device)


@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_finds_that_come_all_at_the_end(name: str, device: str) -> None:
    """Nothing lets the first buffer expect what comes after it."""
    x = torch.zeros(200_001)
    x[100_000:] = 3.0
    check("threshold", x, (), (1.0,), name, device)
    check("difference_strom_", x, (torch.zeros_like(x),), (1.0,), name, device)

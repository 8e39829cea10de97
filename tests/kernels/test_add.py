"""Several sparse vectors added to one output: every back-end gives the bits of adding them one after the other."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.backends import BACKENDS, on_threads

from thinwire import ops
from thinwire.ops import reference


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("numel", [1, 1000, 300_007])
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_every_back_end_adds_in_order(name: str, device: str, numel: int, dtype: torch.dtype, threads: int) -> None:
    generator = torch.Generator().manual_seed(numel)
    out = torch.randn(numel, generator=generator, dtype=dtype)
    counts = [min(numel, count) for count in (numel // 10, 0, 1, numel, numel // 3)]
    places = [torch.randperm(numel, generator=generator)[:count].sort().values for count in counts]
    entries = [torch.randn(count, generator=generator, dtype=dtype) for count in counts]
    expected = reference.add_each_at_(out.clone(), places, entries, 1.0)
    mean = reference.mean_at_(out.clone(), places, entries, 3)
    vectors = [p.to(device) for p in places], [e.to(device) for e in entries]
    with on_threads(threads), ops.backend(name):
        found = ops.add_each_at_(out.clone().to(device), *vectors, 1.0)
        found_mean = ops.mean_at_(out.clone().to(device), *vectors, 3)
        none = ops.mean_at_(out.clone().to(device), [], [], 1)
    assert torch.equal(found.cpu(), expected)
    assert torch.equal(found_mean.cpu(), mean)
    assert torch.equal(none.cpu(), torch.zeros_like(out))

"""Every back-end of a memory's bytes against their definition: the same bytes, the same numbers."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.backends import BACKENDS, on_threads
from tests.kernels.test_quantise import KINDS, LAYOUTS, layout_of, vector

from thinwire import Key, Layout, ops
from thinwire.ops import reference

KEY = Key(seed=5, step=1, worker=2)


def keys_of(layout: Layout) -> list[int]:
    return KEY.numbers(piece.index for piece in layout.pieces)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", LAYOUTS)
@pytest.mark.parametrize(("name", "device"), BACKENDS[1:])
def test_bytes_and_numbers_are_those_of_the_definition(name: str, device: str, shape: str, dtype: torch.dtype) -> None:
    layout = layout_of(shape)
    for kind in KINDS if shape != "large" else KINDS[:2]:
        x = vector(kind, layout.numel, dtype)
        codes, scales = reference.byte_codes(x, layout, 256, keys_of(layout))
        with ops.backend(name), on_threads(2):
            found = ops.byte_codes(x.to(device), layout, 256, keys_of(layout))
            values = ops.byte_values(*found, layout, 256)
        assert torch.equal(found[0].cpu(), codes)
        assert torch.equal(found[1].cpu(), scales)
        assert torch.equal(values.cpu(), reference.byte_values(codes, scales, layout, 256))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_were_coded_are_coded_without_loss(kind: str, dtype: torch.dtype) -> None:
    layout = layout_of("empty ends")
    values = ops.byte_values(
        *ops.byte_codes(vector(kind, layout.numel, dtype), layout, 256, keys_of(layout)), layout, 256
    )
    again = ops.byte_values(*ops.byte_codes(values, layout, 256, None), layout, 256)
    assert torch.equal(again, values)


def test_the_expectation_is_the_number() -> None:
    """4,000 draws: within five standard deviations of a coin between two neighbours."""
    layout, draws = Layout.of([("x", 0, (9,))]), 4000
    x = torch.linspace(-1.0, 0.7, 9, dtype=torch.float64)
    total = torch.zeros_like(x)
    for step in range(draws):
        key = Key(3, step).numbers([0])
        total += ops.byte_values(*ops.byte_codes(x, layout, 256, key), layout, 256)
    assert float((total / draws - x).abs().max()) <= 5 * 0.5 / 127 / draws**0.5


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_a_block_that_is_not_finite_has_no_scale(odd: float) -> None:
    layout, x = Layout.of([("x", 0, (600,))]), torch.ones(600)
    x[300] = odd
    for codes in (ops.byte_codes, reference.byte_codes):
        assert codes(x, layout, 256, [1])[1].isnan().tolist() == [False, True, False]

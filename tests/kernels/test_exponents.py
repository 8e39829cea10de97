"""Every back-end of the 4-bit powers of two against their definition: the same bits, the same verdicts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.backends import BACKENDS, KINDS, circumstances, layout_of, on_threads, pair
from torch import Tensor

from thinwire import Layout, ops
from thinwire.ops import reference
from thinwire.ops.blocks import NO_VALUE


def same(mine: tuple[Tensor, ...], its: tuple[Tensor, ...]) -> None:
    for a, b in zip(mine, its, strict=True):
        assert torch.equal(a.cpu(), b)
        assert torch.equal(a.cpu().signbit(), b.signbit())


def check(values: Tensor, positions: Tensor, layout: Layout, name: str, device: str) -> None:
    """Rounded, encoded and decoded by the back-end and by the reference, zeros left out and written."""
    for deepest in (7, 6):
        powers = reference.nearest_powers(values, positions, layout, deepest)
        sent = (powers != 0) | (deepest < 7)
        kept, where = powers[sent], positions[sent]
        exponent, packed = reference.exponent_codes(kept, where, layout, deepest)
        numbers = reference.exponent_values(exponent, packed, where, layout, values.dtype, deepest)
        same(numbers, (kept, torch.tensor(True), torch.tensor(True)))
        with ops.backend(name):
            same((ops.nearest_powers(values.to(device), positions.to(device), layout, deepest),), (powers,))
            same(ops.exponent_codes(kept.to(device), where.to(device), layout, deepest), (exponent, packed))
            given = exponent.to(device), packed.to(device), where.to(device)
            same(ops.exponent_values(*given, layout, values.dtype, deepest), numbers)
        check_without_zeros(positions, powers, name, device)


def check_without_zeros(positions: Tensor, powers: Tensor, name: str, device: str) -> None:
    with ops.backend(name):
        found = ops.without_zeros(positions.to(device), powers.to(device))
    same(found, (positions[powers != 0], powers[powers != 0]))


def some_of(layout: Layout, share: float) -> Tensor:
    generator = torch.Generator().manual_seed(layout.numel)
    return (torch.rand(layout.numel, generator=generator) < share).nonzero().squeeze(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "device", "shape", "threads"), circumstances())
def test_every_back_end_is_the_reference(name: str, device: str, shape: str, threads: int, dtype: torch.dtype) -> None:
    layout = layout_of(shape)
    with on_threads(threads):
        for kind in KINDS:
            x, _ = pair(kind, layout.numel, dtype)
            for positions in (some_of(layout, 0.3), some_of(layout, 1.0), some_of(layout, 0.0)):
                check(x[positions], positions, layout, name, device)


@pytest.mark.parametrize(("name", "device"), BACKENDS)
@settings(max_examples=50)
@given(data=st.data())
def test_whatever_a_message_holds_gets_the_same_verdict(name: str, device: str, data: st.DataObject) -> None:
    """Exponents and codes that no sender writes."""
    sizes = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=6))
    layout = Layout.of([(str(i), i, (n,)) for i, n in enumerate(sizes)])
    positions = some_of(layout, data.draw(st.floats(0, 1)))
    likely = st.one_of(
        st.sampled_from([NO_VALUE, -150, -149, -142, -141, 0, 127, 128]), st.integers(-(2**15), 2**15 - 1)
    )
    exponent = torch.tensor(data.draw(st.lists(likely, min_size=len(sizes), max_size=len(sizes))), dtype=torch.int16)
    codes = torch.tensor(
        list(data.draw(st.binary(min_size=20 * len(sizes), max_size=20 * len(sizes)))), dtype=torch.uint8
    )
    if data.draw(st.booleans()):
        codes[:] = codes & 8 | data.draw(st.integers(0, 7)) | 128
    if data.draw(st.booleans()):
        codes[:] = torch.where(codes % 3 == 0, codes, 0x77)  # most of them zeros, where 7 is zero
    for deepest in (7, 6):
        expected = reference.exponent_values(exponent, codes, positions, layout, torch.float32, deepest)
        given = exponent.to(device), codes.to(device), positions.to(device)
        with ops.backend(name):
            found = ops.exponent_values(*given, layout, torch.float32, deepest)
        same(found, expected)


@pytest.mark.parametrize("name", ["reference", "numba"])
@pytest.mark.parametrize("numel", [60, 400_000])
@pytest.mark.parametrize("threads", [1, 2])
def test_codes_in_rows_are_decoded_as_each_by_itself(name: str, numel: int, threads: int) -> None:
    """Of ranks that chose other numbers of each piece, one of them with exponents that are not those of its numbers."""
    layout = Layout.of([("a", 0, (numel // 3,)), ("b", 1, (0,)), ("c", 2, (numel - numel // 3,))])
    chosen = [torch.arange(start, numel, 4) for start in range(4)]
    powers = [reference.nearest_powers(torch.randn(numel // 4), each, layout, 6) for each in chosen]
    codes = [reference.exponent_codes(*each, layout, 6) for each in zip(powers, chosen, strict=True)]
    exponent, packed = (torch.stack(each) for each in zip(*codes, strict=True))
    packed[2] |= 0x11  # none of them is the largest
    positions = torch.stack(chosen)
    with on_threads(threads), ops.backend(name):
        found = ops.exponent_values(exponent, packed, positions, layout, torch.float32, 6)
        each = [
            ops.exponent_values(*row, layout, torch.float32, 6) for row in zip(exponent, packed, positions, strict=True)
        ]
    for together, alone in zip(found, zip(*each, strict=True), strict=True):
        assert torch.equal(together, torch.stack(alone))
    assert found[2].tolist() == [True, True, False, True]

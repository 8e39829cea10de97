"""Every back-end of the operations on signs, levels and powers of two against their definition: the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.kernels.backends import BACKENDS
from torch import Tensor

from thinwire import Key, Layout, ops
from thinwire.errors import WireError
from thinwire.ops import reference
from thinwire.payload import Levels, Reader, pack_payload, unpack_payload

LAYOUTS = {
    "no pieces": [],
    "none": [0],
    "one": [1],
    "byte": [8, 0, 56],
    "odd": [63, 0, 64, 1, 65, 127],
    "many": [7] * 40 + [1000],
    "empty ends": [0, 0, 515, 0, 2049, 0],
    "large": [150_001, 3, 77_777],  # more than one thread's smallest share
}
SMALL = [name for name in LAYOUTS if name != "large"]
BLOCKS = (1, 7, 64, 512, 5000, 2**32 - 1)
LEVELS = (1, 2, 3, 15, 100, 127, 255, 1000, 32767, 65535)
KINDS = ("normal", "ties", "zeros", "sparse", "heavy", "huge", "denormal", "negative zero", "powers")
each_back_end = pytest.mark.parametrize(("name", "device"), BACKENDS)
each_fast_one = pytest.mark.parametrize(("name", "device"), BACKENDS[1:])
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def vector(kind: str, numel: int, dtype: torch.dtype) -> Tensor:
    """A vector of an awkward kind."""
    generator = torch.Generator().manual_seed(numel)
    x = torch.randn(numel, generator=generator, dtype=dtype)
    match kind:
        case "ties":
            return x.round()
        case "zeros":
            return x * 0
        case "sparse":
            return x * (torch.rand(numel, generator=generator) < 0.01)
        case "heavy":
            return x**9
        case "huge":
            return x * (2.0**100 if dtype == torch.float32 else 2.0**500)
        case "denormal":
            return x * torch.finfo(dtype).tiny / 8
        case "negative zero":
            return -x.abs() * 0
        case "powers":
            return torch.copysign(torch.exp2(x.mul(60).round().clamp(-145, 100)), x)
    return x


def layout_of(shape: str) -> Layout:
    return Layout.of([(str(i), i, (n,)) for i, n in enumerate(LAYOUTS[shape])])


def keys_of(layout: Layout) -> list[int]:
    return Key(seed=5, step=1, worker=2).numbers(piece.index for piece in layout.pieces)


@contextmanager
def served(name: str, threads: int = 1) -> Iterator[None]:
    """Inside, the back-end serves, on so many threads."""
    torch.set_num_threads(threads)
    try:
        with ops.backend(name):
            yield
    finally:
        torch.set_num_threads(1)


def check(op: str, name: str, device: str, *arguments: Any) -> None:
    """One operation by the back-end and by the reference: equal bit for bit, and so is what it changed in place."""
    mine = [a.clone().to(device) if isinstance(a, Tensor) else a for a in arguments]
    its = [a.clone() if isinstance(a, Tensor) else a for a in arguments]
    found, expected = getattr(ops, op)(*mine), getattr(reference, op)(*its)
    pairs = zip(_tensors(found) + _tensors(mine), _tensors(expected) + _tensors(its), strict=True)
    for a, b in pairs:
        assert a.dtype == b.dtype
        assert torch.equal(a.cpu(), b), op
        assert torch.equal(a.cpu().signbit(), b.signbit()), op


def _tensors(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else [a for a in found if isinstance(a, Tensor)]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("shape", LAYOUTS)
@each_dtype
@each_fast_one
def test_norms_are_within_the_stated_bound(name: str, device: str, dtype: torch.dtype, shape: str, order: int) -> None:
    layout = layout_of(shape)
    eps, wide = torch.finfo(dtype).eps, torch.finfo(torch.float64).eps
    for kind in KINDS if shape != "large" else KINDS[:2]:
        x = vector(kind, layout.numel, dtype)
        for block in BLOCKS if shape != "large" else BLOCKS[3:]:
            expected = reference.block_norms(x, layout, block, order)
            lengths = ops.block_lengths(layout, block, torch.device("cpu"))
            with served(name):
                found = ops.block_norms(x.to(device), layout, block, order)
            with served(name, threads=2):
                again = ops.block_norms(x.to(device), layout, block, order)
            assert found.dtype == dtype
            assert torch.equal(found, again), "the number of threads makes a difference"
            tiny = torch.finfo(dtype).smallest_normal * eps  # below the normal numbers, the spacing itself
            bound = (eps + lengths * wide) * expected.double() + tiny
            assert ((found.cpu().double() - expected.double()).abs() <= bound).all()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", LAYOUTS)
@each_dtype
@each_fast_one
def test_signs_are_the_references(name: str, device: str, dtype: torch.dtype, shape: str, threads: int) -> None:
    layout = layout_of(shape)
    with served(name, threads):
        for kind in KINDS if shape != "large" else KINDS[:2]:
            x = vector(kind, layout.numel, dtype)
            check("negative_bits", name, device, x)
            for block in BLOCKS if shape != "large" else BLOCKS[3:]:
                scales, bits = reference.block_norms(x, layout, block, 1), reference.negative_bits(x)
                check("add_signs_", name, device, x.flip(0), bits, scales, layout, block, -0.3)


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("shape", SMALL)
@each_dtype
@each_fast_one
def test_levels_are_the_references(name: str, device: str, dtype: torch.dtype, shape: str, levels: int) -> None:
    layout = layout_of(shape)
    with served(name):
        for kind in KINDS:
            check_levels(vector(kind, layout.numel, dtype), layout, 100, levels, name, device)
        for block in BLOCKS:
            check_levels(vector("normal", layout.numel, dtype), layout, block, levels, name, device)


@pytest.mark.parametrize("levels", [15, 1000])
@each_dtype
@each_fast_one
def test_levels_of_many_numbers_are_the_references(name: str, device: str, dtype: torch.dtype, levels: int) -> None:
    layout = layout_of("large")
    with served(name, threads=2):
        for block in (512, 2**32 - 1):
            check_levels(vector("normal", layout.numel, dtype), layout, block, levels, name, device)


def check_levels(x: Tensor, layout: Layout, block: int, levels: int, name: str, device: str) -> None:
    norms = reference.block_norms(x, layout, block, 2)
    check("level_codes", name, device, x, norms, layout, block, levels, keys_of(layout))
    packed = reference.level_codes(x, norms, layout, block, levels, keys_of(layout))
    check("add_levels_", name, device, x.flip(0), packed, norms, layout, block, levels, -0.3)
    check("levels_within", name, device, packed, x.numel(), levels)
    check("levels_above_zero", name, device, packed, x.numel(), levels)


@pytest.mark.parametrize("levels", [1, 2, 5, 100, 300, 40_000])
@each_back_end
def test_one_level_too_high_is_found_wherever_it_stands(name: str, device: str, levels: int) -> None:
    numel, bits = 1100, levels.bit_length()
    for place in (0, 1, 511, 512, 1099):
        codes = torch.full((numel,), levels)
        codes[place] |= 1 << bits  # a negative one of the highest level
        with served(name):
            sound = reference.pack_codes(codes, bits + 1).to(device)
            assert bool(ops.levels_within(sound, numel, levels))
            if levels & (levels + 1):
                codes[place] += 1
                damaged = reference.pack_codes(codes, bits + 1).to(device)
                assert not bool(ops.levels_within(damaged, numel, levels))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", LAYOUTS)
@each_dtype
@each_fast_one
def test_powers_are_the_references(name: str, device: str, dtype: torch.dtype, shape: str, threads: int) -> None:
    layout = layout_of(shape)
    with served(name, threads):
        for kind in KINDS:
            x = vector(kind, layout.numel, dtype)
            check("power_codes", name, device, x, layout, keys_of(layout))
            codes, negative = reference.power_codes(x, layout, keys_of(layout))
            for alpha in (1.0, -1.0, 0.3):
                check("add_powers_", name, device, x.flip(0), codes, negative, alpha)


@each_back_end
def test_any_exponent_byte_decodes_to_a_finite_power(name: str, device: str) -> None:
    with served(name):
        out = ops.add_powers_(
            torch.zeros(256, device=device),
            torch.arange(256, dtype=torch.uint8, device=device),
            torch.zeros(32, dtype=torch.uint8, device=device),
            1.0,
        )
    assert out.cpu().tolist() == [0.0, *(2.0 ** (min(code, 254) - 127) for code in range(1, 256))]


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 31, 33])
@each_fast_one
def test_fields_are_the_references(name: str, device: str, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    with served(name, threads=2):
        for count in (0, 1, 2, 7, 8, 9, 63, 64, 65, 511, 512, 513, 3000, 200_000):
            codes = torch.randint(0, 1 << width, (count,), generator=generator)
            check("pack_codes", name, device, codes, width)
            check("unpack_codes", name, device, reference.pack_codes(codes, width), width, count)


@each_fast_one
def test_bits_are_the_references(name: str, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    with served(name, threads=2):
        for count in (0, 1, 7, 8, 9, 63, 64, 65, 1000, 200_003):
            bits = torch.rand(count, generator=generator) < 0.4
            check("pack_bits", name, device, bits)
            check("unpack_bits", name, device, reference.pack_bits(bits), count)
            longer = torch.cat([reference.pack_bits(bits), torch.full((9,), 255, dtype=torch.uint8)])
            check("unpack_bits", name, device, longer, count)


@each_back_end
def test_a_message_with_a_level_above_its_own_is_refused(name: str, device: str) -> None:
    layout = Layout.of([("x", 0, (3,))])
    codes = reference.pack_codes(torch.tensor([1, 6, 2]), 4).to(device)
    payload = Levels(codes, torch.ones(1, device=device), layout, levels=5, block=8)
    with served(name), pytest.raises(WireError, match="exceeds the 5 levels it announces"):
        unpack_payload(Reader(pack_payload(payload)), layout, Key(), torch.float32)


@each_dtype
@each_back_end
def test_a_zero_beside_a_tiny_norm_has_level_zero(name: str, device: str, dtype: torch.dtype) -> None:
    """levels / norm overflows; zero times infinity must not become a level."""
    layout = Layout.of([("x", 0, (3,))])
    x = torch.tensor([0.0, 1e-39, -0.0], dtype=dtype)
    norms = torch.full((1,), torch.finfo(dtype).tiny / 8, dtype=dtype)
    with served(name):
        packed = ops.level_codes(x.to(device), norms.to(device), layout, 8, 15, keys_of(layout))
    assert reference.unpack_codes(packed.cpu(), 5, 3).tolist() == [0, 15, 0]

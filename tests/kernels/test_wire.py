"""Every back-end of the wire's operations against their definition: the same bytes, and the same verdict on damage."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.backends import BACKENDS
from torch import Tensor

from thinwire import ops
from thinwire.ops import reference
from thinwire.payload.positions import bitmap_length, low_width

SIZES = [(1, 1), (100, 3), (5000, 50), (4000, 200), (40_000, 400), (1 << 20, 3), (1 << 33, 2), (1 << 40, 2)]
ROWS = 3


def positions_of(numel: int, count: int, generator: torch.Generator) -> Tensor:
    drawn = torch.randint(numel, (2 * count + 4,), generator=generator).unique()[:count]
    return drawn if drawn.numel() == count else torch.arange(count)


def damaged(code: Tensor, row: int, generator: torch.Generator) -> Tensor:
    """The code with a bit of one row turned over."""
    code = code.clone()
    if code.numel():
        byte, bit = (int(torch.randint(n, (1,), generator=generator)) for n in (code.shape[1], 8))
        code[row, byte] ^= 1 << bit
    return code


@pytest.mark.parametrize(("numel", "count"), SIZES)
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_every_back_end_packs_and_judges_alike(name: str, device: str, numel: int, count: int) -> None:
    """What is sound is read the same; what is not is refused by all, and still lies within bounds."""
    generator = torch.Generator().manual_seed(numel + count)
    width, length = low_width(numel, count), bitmap_length(numel, count)
    rows = [positions_of(numel, count, generator) for _ in range(ROWS)]
    low, bitmap = (
        torch.stack(part) for part in zip(*(reference.pack_positions(p, width, length) for p in rows), strict=True)
    )
    codes = [(low, bitmap)]
    codes += [(damaged(low, t % ROWS, generator), bitmap) for t in range(10)]
    codes += [(low, damaged(bitmap, t % ROWS, generator)) for t in range(10)]
    with ops.backend(name):
        packed = ops.pack_positions(rows[0].to(device), width, length)
        found = [
            [
                ops.unpack_positions(a.to(device), b.to(device), width, length, count, numel)
                for a, b in zip(*code, strict=True)
            ]
            for code in codes
        ]
    assert all(torch.equal(a.cpu(), b[0]) for a, b in zip(packed, (low, bitmap), strict=True))
    assert all(part.numel() % 4 == 0 for part in packed)
    for code, read in zip(codes, found, strict=True):
        for row, (positions, marks, sound) in enumerate(read):
            expected, its_marks, its_sound = reference.unpack_positions(
                code[0][row], code[1][row], width, length, count, numel
            )
            assert int(marks) == its_marks
            assert (bool(sound) and int(marks) == count) == (its_sound and its_marks == count)
            assert bool(((positions >= 0) & (positions < numel)).all())
            if its_sound:
                assert torch.equal(positions.cpu(), expected)


@pytest.mark.parametrize("nbytes", [0, 1, 3, 4, 5, 1000, 70_001])
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_every_back_end_has_the_same_checksum(name: str, device: str, nbytes: int) -> None:
    messages = torch.randint(256, (2, nbytes), generator=torch.Generator().manual_seed(nbytes), dtype=torch.uint8)
    with ops.backend(name):
        found = ops.checksum(messages.to(device))
    assert torch.equal(found.cpu(), reference.checksum(messages))

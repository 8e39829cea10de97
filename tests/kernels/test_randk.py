"""Every back-end of the random draw against its definition: the same indices."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.backends import BACKENDS

from thinwire import ops
from thinwire.layout import Layout
from thinwire.ops import Key, piece_indices, reference


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("numel", [0, 1, 2, 63, 64, 65, 1000, 65_537, 300_001])
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_every_back_end_is_the_reference(name: str, device: str, numel: int, threads: int) -> None:
    where = torch.device(device)
    torch.set_num_threads(threads)
    try:
        for k in {0, 1, 2, numel // 1000, numel // 100, numel // 2, numel - 1, numel, numel + 1} - {-1}:
            for number in (0, 1, -1, (1 << 63), (1 << 64) - 1, Key(3, step=k).number):
                with ops.backend(name):
                    found = ops.randk_indices(number, numel, k, where)
                assert torch.equal(found, reference.randk_indices(_word(number), numel, k, where))
    finally:
        torch.set_num_threads(1)


SIZES = (0, 1, 300, 64, 0, 63, 65, 4096, 2, 4097, 70_000, 0)
"""Pieces around the bounds of the kernels, empty ones among them and last."""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("k", [0, 1, 2, 24, 25, 62, 64, 4095, 100_000])
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_many_pieces_at_once_are_drawn_as_one_by_one(name: str, device: str, k: int, threads: int) -> None:
    where = torch.device(device)
    layout = Layout.of([(str(index), index, (numel,)) for index, numel in enumerate(SIZES)])
    keys = Key(5, step=k).words(piece_indices(layout))
    counts = [k if index % 5 else min(k, 1) for index in range(len(SIZES))]
    torch.set_num_threads(threads)
    try:
        with ops.backend(name):
            found = ops.randk_positions(layout, counts, keys, where)
    finally:
        torch.set_num_threads(1)
    parts = [
        reference.randk_indices(key, piece.numel, count, where) + piece.offset
        for key, piece, count in zip(keys.tolist(), layout.pieces, counts, strict=True)
    ]
    assert torch.equal(found, torch.cat(parts))


@pytest.mark.parametrize("threads", [1, 2])
def test_ten_thousand_pieces_are_drawn_as_one_by_one(threads: int) -> None:
    """Enough numbers for two threads, each with whole pieces."""
    layout = Layout.of([(str(index), index, (30,)) for index in range(10_000)])
    keys = Key(2).words(piece_indices(layout))
    torch.set_num_threads(threads)
    try:
        found = ops.randk_positions(layout, [2] * 10_000, keys, torch.device("cpu"))
    finally:
        torch.set_num_threads(1)
    assert torch.equal(found, reference.randk_positions(layout, [2] * 10_000, keys, torch.device("cpu")))


def _word(number: int) -> int:
    return number & ((1 << 64) - 1)


def test_an_unlucky_draw_is_settled_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a margin proves too small, whether too few or too many words came, the indices are the same."""
    draw = pytest.importorskip("thinwire.ops.cpu.select_random")
    expected = reference.randk_indices(7, 10_000, 500, torch.device("cpu"))
    for deviations in (-3, 0, 100):
        monkeypatch.setattr(draw, "DEVIATIONS", deviations)
        assert torch.equal(draw.drawn(7, 10_000, 500), expected)

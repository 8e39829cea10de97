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
    layout = odd_layout()
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


def odd_layout() -> Layout:
    return Layout.of([(str(index), index, (numel,)) for index, numel in enumerate(SIZES)])


COUNTS = ((3,) * 12, (0, 1, 299, 64, 5, 0, 65, 40, 1, 4096, 700, 1), (0,) * 12, SIZES)
"""None of some pieces, all of others, all but one, and more than an empty piece has."""


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("there", [False, True], ids=["keys on the host", "keys on the device"])
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_none_some_and_all_of_a_piece_are_drawn(name: str, device: str, there: bool, counts: tuple[int, ...]) -> None:
    layout, where = odd_layout(), torch.device(device)
    for step in range(3):
        keys = Key(1, step=step).words(piece_indices(layout))
        with ops.backend(name):
            found = ops.randk_positions(layout, counts, keys.to(where) if there else keys, where)
        assert torch.equal(found.cpu(), reference.randk_positions(layout, counts, keys, torch.device("cpu")))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("counts", COUNTS)
def test_the_host_is_not_waited_for(counts: tuple[int, ...]) -> None:
    """From the second time on: the tables of layout and counts are brought to the device once."""
    layout, device = odd_layout(), torch.device("cuda")
    keys = Key(1).words(piece_indices(layout)).to(device)
    first = ops.randk_positions(layout, counts, keys, device)
    try:
        torch.cuda.set_sync_debug_mode("error")
        again = ops.randk_positions(layout, counts, keys, device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(first, again)


@pytest.mark.gpu
@pytest.mark.parametrize("counts", COUNTS[:2])
def test_a_recorded_draw_follows_its_keys(counts: tuple[int, ...]) -> None:
    """A CUDA graph, played again with other keys in the same place."""
    layout, device = odd_layout(), torch.device("cuda")
    keys = Key(1).words(piece_indices(layout)).to(device)
    ops.randk_positions(layout, counts, keys, device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = ops.randk_positions(layout, counts, keys, device)
    for step in range(1, 4):
        others = Key(1, step=step).words(piece_indices(layout))
        keys.copy_(others)
        graph.replay()
        assert torch.equal(found.cpu(), reference.randk_positions(layout, counts, others, torch.device("cpu")))


@pytest.mark.gpu
@pytest.mark.parametrize("pieces", [1, 255, 256, 40_000])
def test_many_pieces_on_a_gpu(pieces: int) -> None:
    """As many as a byte tells apart, and more; the pieces of a tile, and one of many tiles."""
    layout = Layout.of([(str(index), index, (300_000 // pieces,)) for index in range(pieces)])
    keys, counts = Key(2).words(piece_indices(layout)), [max(1, 3000 // pieces)] * pieces
    found = ops.randk_positions(layout, counts, keys, torch.device("cuda"))
    assert torch.equal(found.cpu(), reference.randk_positions(layout, counts, keys, torch.device("cpu")))


@pytest.mark.gpu
@pytest.mark.parametrize("limit", [-(1 << 63), (1 << 63) - 1], ids=["no candidates", "all are candidates"])
def test_an_unlucky_draw_on_a_gpu_stays_within_the_vector(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = pytest.importorskip("thinwire.ops.cuda.select_random")
    monkeypatch.setattr(draw, "_limit", lambda expected, numel: limit)
    layout, device = Layout.of([("a", 0, (90_000,)), ("b", 1, (9_000,))]), torch.device("cuda")
    draw.drawing.cache_clear()
    try:
        found = draw.randk_positions(layout, (900, 90), Key(1).words(piece_indices(layout)), device)
    finally:
        draw.drawing.cache_clear()
    assert found.numel() == 990
    assert 0 <= int(found.min()) <= int(found.max()) < layout.numel


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

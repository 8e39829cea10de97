"""Which parameter owns which part of a flat buffer."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire import Layout

shapes = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), max_size=6)


def made(some: list[tuple[int, ...]]) -> Layout:
    return Layout.of([(f"p{i}", i, shape) for i, shape in enumerate(some)])


@given(shapes)
def test_pieces_cover_the_buffer_without_gap_or_overlap(some: list[tuple[int, ...]]) -> None:
    layout = made(some)
    flat = torch.arange(layout.numel)
    assert [i for _, view in layout.views(flat) for i in view.tolist()] == list(range(layout.numel))
    assert [view.numel() for _, view in layout.views(flat)] == [torch.Size(shape).numel() for shape in some]


@given(shapes)
def test_whole_is_one_piece_of_the_same_length(some: list[tuple[int, ...]]) -> None:
    whole = made(some).whole()
    assert len(whole.pieces) == 1
    assert whole.numel == made(some).numel


@given(shapes, st.data())
def test_select_keeps_order_names_and_indices(some: list[tuple[int, ...]], data: st.DataObject) -> None:
    layout = made(some)
    chosen = data.draw(st.lists(st.booleans(), min_size=len(some), max_size=len(some)))
    part = layout.select(chosen)
    assert [p.name for p in part.pieces] == [p.name for p, keep in zip(layout.pieces, chosen, strict=True) if keep]
    assert [p.index for p in part.pieces] == [i for i, keep in enumerate(chosen) if keep]
    assert part.numel == sum(p.numel for p, keep in zip(layout.pieces, chosen, strict=True) if keep)


def test_digest_tells_names_shapes_places_and_order_apart() -> None:
    pieces = [("a", 0, (2, 3)), ("b", 1, (4,))]
    others = [
        [("a", 0, (3, 2)), ("b", 1, (4,))],
        [("a", 0, (6,)), ("b", 1, (4,))],
        [("c", 0, (2, 3)), ("b", 1, (4,))],
        [("a", 1, (2, 3)), ("b", 0, (4,))],
        pieces[::-1],
        pieces[:1],
        [],
    ]
    digests = {Layout.of(p).digest for p in [pieces, *others]}
    assert len(digests) == 1 + len(others)
    assert Layout.of(pieces).digest == Layout.of(list(pieces)).digest < 1 << 32


def test_equal_layouts_are_one_key_and_frozen() -> None:
    one, two = (Layout.of([("a", 0, (2,))]) for _ in range(2))
    assert {one: 1}[two] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.pieces = ()  # type: ignore[misc]


def test_views_share_memory_and_follow_rows() -> None:
    layout = Layout.of([("a", 0, (2,)), ("b", 1, (1,))])
    flat, rows = torch.zeros(3), torch.zeros(2, 3)
    for _, view in layout.views(flat):
        view.fill_(1)
    for piece, view in layout.views(rows):
        view.fill_(piece.index)
    assert flat.tolist() == [1, 1, 1]
    assert rows.tolist() == [[0, 0, 1]] * 2

"""Shares of a model: every number has one owner, whatever bucket it stands in, and messages split and join again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire import ChunkTopK, Identity, Key, Layout, RandK, TopK
from thinwire.compressors.on_shares import OnShares
from thinwire.feedback.second_hop import Forwarding
from thinwire.hub import Answers
from thinwire.owners import Owners
from thinwire.payload import Empty, Payload

SHAPES = st.lists(st.sampled_from([(), (1,), (5,), (3, 7), (40,), (2, 3, 4)]), min_size=1, max_size=6)


@given(SHAPES, st.integers(1, 9), st.integers(1, 12))
def test_every_number_has_one_owner_whatever_the_layout(shapes: list[tuple[int, ...]], ranks: int, least: int) -> None:
    owners, named = Owners(ranks, least), [(f"p{i}", i, shape) for i, shape in enumerate(shapes)]
    cut = owners.cut(Layout.of(named))
    marks = torch.zeros(sum(part.numel for part in cut.parts))
    for rank, own in enumerate(cut.take(torch.arange(marks.numel()))):
        assert own.numel() == cut.parts[rank].numel
        marks[own] += 1
    assert bool((marks == 1).all())
    assert len({piece.index for piece in cut.whole.pieces}) == len(cut.whole.pieces)
    turned = owners.cut(Layout.of(named[::-1]))
    for rank in range(ranks):
        assert {p.name: p.numel for p in cut.parts[rank].pieces} == {p.name: p.numel for p in turned.parts[rank].pieces}
        for name, index, shape in named:
            own = owners.share(shape, index, rank)
            held = {piece.name: piece.numel for piece in cut.parts[rank].pieces}
            assert (None if own is None else own.stop - own.start) == held.get(name)


def test_shares_are_nearly_equal_and_no_smaller_than_they_may_be() -> None:
    owners = Owners(7, least=10)
    for numel in range(10, 400):
        lengths = owners.lengths(numel)
        assert max(lengths) - min(lengths) <= 1
        assert min(lengths) >= 10
    assert owners.lengths(3) == {3}


def test_small_parameters_are_spread_over_all_owners() -> None:
    owners = Owners(4)
    counts = [sum(owners.share((10,), index, rank) is not None for index in range(100)) for rank in range(4)]
    assert sum(counts) == 100
    assert max(counts) - min(counts) <= 4


@pytest.mark.parametrize(
    "compressor",
    [
        TopK(0.2),
        TopK(0.3, values="exponent4"),
        ChunkTopK(0.3, chunk=5),
        RandK(0.3),
        RandK(0.3, shared=True),
        Identity(),
    ],
    ids=str,
)
def test_what_owners_are_told_is_what_was_said(compressor: TopK) -> None:
    layout = Layout.of([("x", 0, (60,)), ("y", 1, (3,)), ("z", 2, (31,))])
    owners, key = Owners(3, least=4), Key(0, 1, 2)
    cut, x = owners.cut(layout), torch.randn(94, generator=torch.Generator().manual_seed(0))
    said = OnShares(compressor, owners)(x, layout, key)
    parts = said.split(cut)
    joined = Answers(parts, cut, Forwarding(compressor)).add_to(torch.zeros(94))
    assert torch.equal(joined, said.decode(layout, x.dtype))
    for own, part, alone in zip(cut.take(x), cut.parts, parts, strict=True):
        assert torch.equal(alone.decode(part, x.dtype), compressor(own, part, key).decode(part, x.dtype))


def test_nothing_is_split_into_nothing_and_other_formats_not_at_all() -> None:
    cut = Owners(3, least=2).cut(Layout.of([("x", 0, (9,))]))
    empty: list[Payload] = Empty().split(cut)
    assert [one.elements for one in empty] == [0, 0, 0]
    joined = Answers(empty, cut, Forwarding(TopK(0.1)))
    assert joined.add_to(torch.zeros(9)).count_nonzero() == 0
    assert len(joined) == 1
    with pytest.raises(TypeError, match="only together"):
        joined[0]

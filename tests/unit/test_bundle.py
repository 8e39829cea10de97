"""Short messages that travel as one arrive apart, whatever their sizes; what cannot be told apart is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from thinwire.errors import WireError
from thinwire.exchange import Loopback
from thinwire.exchange.bundle import gather_together

RANKS = 3


def message(rank: int, place: int, words: int) -> Tensor:
    return torch.full((4 * words,), 10 * rank + place, dtype=torch.uint8)


def gathered(every: Sequence[Sequence[Tensor]], *, fixed: bool) -> list[list[list[Tensor]]]:
    """What each rank hears of each of its messages."""
    ends = Loopback(len(every)).ends
    arriving = [
        gather_together(end, own, fixed=fixed, longest=1000, what="messages")
        for end, own in zip(ends, every, strict=True)
    ]
    return [[list(part.wait()) for part in parts] for parts in arriving]


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_each_message_arrives_as_it_was_sent(count: int, fixed: bool) -> None:
    every = [[message(rank, i, 1 + i + (0 if fixed else rank)) for i in range(count)] for rank in range(RANKS)]
    for heard in gathered(every, fixed=fixed):
        for place, messages in enumerate(heard):
            assert all(torch.equal(found, every[rank][place]) for rank, found in enumerate(messages))


def test_nothing_is_gathered_where_there_is_no_message() -> None:
    assert gather_together(Loopback(2).ends[0], [], fixed=True, longest=0, what="nothing") == []


def test_a_bundle_is_booked_once() -> None:
    ends = Loopback(RANKS).ends
    parts = [
        gather_together(end, [message(0, 0, 2), message(0, 1, 3)], fixed=True, longest=99, what="") for end in ends
    ]
    first, second = parts[0]
    assert (first.traffic.sent, second.traffic.sent) == (20 * (RANKS - 1), 0)


@pytest.mark.parametrize("lengths", [[8, 4], [4, 4], [1 << 30, 8], [6, 6]])
def test_lengths_that_do_not_add_up_are_refused(lengths: list[int]) -> None:
    forged = torch.cat([torch.tensor(lengths, dtype=torch.int32).view(torch.uint8), message(1, 0, 2), message(1, 1, 2)])
    ends = Loopback(2).ends
    parts = gather_together(ends[0], [message(0, 0, 2), message(0, 1, 2)], fixed=False, longest=999, what="")
    ends[1].gather(forged, fixed=False, longest=999, what="")
    with pytest.raises(WireError, match="rank 1 announces messages of"):
        parts[0].wait()

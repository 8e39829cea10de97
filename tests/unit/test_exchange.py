"""The in-process exchange counts as the real one would."""

from __future__ import annotations

import pytest
import torch

from thinwire.exchange import Loopback, allgather_bytes, allreduce_bytes


def messages(*sizes: int) -> list[torch.Tensor]:
    return [torch.full((size,), i, dtype=torch.uint8) for i, size in enumerate(sizes)]


def test_everyone_gets_every_message_in_rank_order_unpadded() -> None:
    sent = messages(3, 0, 5)
    arrived, _ = Loopback(3).gather(sent, fixed=False)
    assert [m.tolist() for m in arrived] == [m.tolist() for m in sent]


def test_unequal_messages_travel_padded_behind_their_sizes() -> None:
    _, traffic = Loopback(3).gather(messages(3, 10, 5), fixed=False)
    assert (traffic.message, traffic.sent, traffic.received) == (6, 2 * (10 + 8), 2 * (10 + 8))  # 6 is their mean


def test_messages_of_a_known_size_travel_as_they_are() -> None:
    _, traffic = Loopback(4).gather(messages(7, 7, 7, 7), fixed=True)
    assert (traffic.message, traffic.sent, traffic.received) == (7, 21, 21)


def test_one_worker_sends_nothing() -> None:
    _, traffic = Loopback(1).gather(messages(9), fixed=False)
    assert (traffic.message, traffic.sent, traffic.received) == (9, 0, 0)


@pytest.mark.parametrize(("workers", "gather", "reduce"), [(1, 0, 0), (2, 100, 100), (4, 300, 150), (10, 900, 180)])
def test_bytes_of_the_collectives(workers: int, gather: int, reduce: int) -> None:
    """(n - 1) B for an all-gather, 2 (n - 1) / n D for a ring all-reduce."""
    assert allgather_bytes(100, workers) == gather
    assert allreduce_bytes(100, workers) == reduce

"""The in-process exchange counts as the real one would."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from thinwire.exchange import Exchange, Incoming, Loopback, allgather_bytes, allreduce_bytes


def messages(*sizes: int) -> list[torch.Tensor]:
    return [torch.full((size,), i, dtype=torch.uint8) for i, size in enumerate(sizes)]


def gathered(sent: list[torch.Tensor], *, fixed: bool) -> Incoming:
    """What comes to the last of the workers, each of whom sends one message."""
    ends: list[Exchange] = [*Loopback(len(sent)).ends]
    return [end.gather(own, fixed=fixed, longest=100, what="x") for end, own in zip(ends, sent, strict=True)][-1]


def test_everyone_gets_every_message_in_rank_order_unpadded() -> None:
    sent = messages(3, 0, 5)
    assert [m.tolist() for m in gathered(sent, fixed=False).wait()] == [m.tolist() for m in sent]


def test_unequal_messages_travel_padded_behind_their_sizes() -> None:
    traffic = gathered(messages(3, 10, 5), fixed=False).traffic
    assert (traffic.message, traffic.sent, traffic.received) == (6, 2 * (10 + 8), 2 * (10 + 8))  # 6 is their mean


def test_messages_of_a_known_size_travel_as_they_are() -> None:
    traffic = gathered(messages(7, 7, 7, 7), fixed=True).traffic
    assert (traffic.message, traffic.sent, traffic.received) == (7, 21, 21)


def test_one_worker_sends_nothing() -> None:
    traffic = gathered(messages(9), fixed=False).traffic
    assert (traffic.message, traffic.sent, traffic.received) == (9, 0, 0)


def test_a_round_that_broke_off_leaves_nothing_to_the_next() -> None:
    """One of two sent before the step was given up: its message is not taken for that of the next step."""
    one, two = Loopback(2).ends
    one.gather(messages(1)[0], fixed=False, longest=9, what="x")
    for end in (one, two):
        end.begin("the next step")
    arriving = [end.gather(own, fixed=False, longest=9, what="x") for end, own in ((two, THEIRS), (one, MINE))]
    assert [m.tolist() for m in arriving[0].wait()] == [MINE.tolist(), THEIRS.tolist()]


MINE, THEIRS = torch.tensor([1, 2], dtype=torch.uint8), torch.tensor([3], dtype=torch.uint8)


def test_workers_in_threads_of_their_own_wait_for_each_other() -> None:
    ends = Loopback(3).ends
    with ThreadPoolExecutor(3) as threads:
        rows = list(threads.map(lambda end: [end.everyone([10 * end.rank + k, -1], "x") for k in range(5)], ends))
    assert rows == [[[[k, -1], [10 + k, -1], [20 + k, -1]] for k in range(5)]] * 3


@pytest.mark.parametrize(("workers", "gather", "reduce"), [(1, 0, 0), (2, 100, 100), (4, 300, 150), (10, 900, 180)])
def test_bytes_of_the_collectives(workers: int, gather: int, reduce: int) -> None:
    """(n - 1) B for an all-gather, 2 (n - 1) / n D for a ring all-reduce."""
    assert allgather_bytes(100, workers) == gather
    assert allreduce_bytes(100, workers) == reduce

"""An emulated link: bytes queue in order, both ways at once, by a clock that the tests hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.futures import Future

from thinwire.errors import ConfigError
from thinwire.exchange import Emulated, Exchange, Link, Loopback, emulated
from thinwire.exchange.emulated import EmulatedSums
from thinwire.exchange.protocol import Incoming, Scatters, Traffic
from thinwire.training.torch_hooks import Carried, Started

MBYTE = 8e6
"""Bits a second of a link that carries a million bytes in one."""


@dataclass
class Clock:
    """Time that passes by sleeping alone."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def link(self, up: float | None = MBYTE, down: float | None = None, latency: float = 0.0) -> Link:
        return Link(up, down, latency=latency, clock=lambda: self.now, sleep=self.sleep)


# -------------------------------------------------------------------------------------------------------------- link


def test_bytes_queue_each_way_and_a_pause_is_not_saved_up() -> None:
    clock = Clock()
    link = clock.link()
    assert link.carry(1e6, 5e5) == 1.0
    assert link.carry(1e6, 5e5) == 2.0, "behind the first"
    clock.now = 5.0
    assert link.carry(1e6, 0) == 6.0, "an idle link carries nothing in advance"


def test_ways_are_apart_and_the_later_one_counts() -> None:
    link = Clock().link(up=MBYTE, down=4 * MBYTE)
    assert link.carry(1e6, 8e6) == 2.0
    assert link.carry(2e6, 0) == 3.0, "up was free at 1"


def test_latency_is_paid_by_each_but_not_in_the_queue() -> None:
    link = Clock().link(latency=0.25)
    assert [link.carry(1e6, 1e6) for _ in range(3)] == [1.25, 2.25, 3.25]


def test_what_is_not_shaped_takes_no_time() -> None:
    clock = Clock(now=3.0)
    link = clock.link(up=None, latency=0.25)
    assert link.carry(1e12, 1e12) == 3.0
    link.shape(MBYTE, None)
    assert link.carry(1e6, 1e12) == 4.25
    assert str(link) == "emulated link, 8 Mbit/s up, unshaped down"
    assert str(clock.link()) == "emulated link, 8 Mbit/s"


def test_one_waits_until_it_is_due_even_if_sleep_ends_early() -> None:
    clock = Clock()
    link = Link(MBYTE, clock=lambda: clock.now, sleep=lambda seconds: clock.sleep(min(seconds, 0.75)))
    link.wait(2.0)
    link.wait(1.0)
    assert clock.slept == [0.75, 0.75, 0.5]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_without_sense_is_refused_with_one_that_has(rate: float) -> None:
    with pytest.raises(
        ConfigError, match=r"the rate up must be finite and above 0 bits a second, got .*1e8 is 100mbit"
    ):
        Link(rate)
    with pytest.raises(ConfigError, match="the rate down must be"):
        Link(1e6, rate)
    with pytest.raises(ConfigError, match="latency of a link must be seconds of at least 0"):
        Link(1e6, latency=-1.0)


# ---------------------------------------------------------------------------------------------------------- exchange


def message(size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def pair(link: Link) -> tuple[Exchange, Exchange]:
    """An end of a loopback behind a link, and the other end as it is."""
    one, two = Loopback(2).ends
    return emulated(one, link), two


def test_a_gather_returns_at_once_and_its_messages_come_when_they_were_carried() -> None:
    clock = Clock()
    mine, theirs = pair(clock.link())
    for exchange in (theirs, mine):
        exchange.begin("step 0")
    arriving: list[Incoming] = []
    for size in (250_000, 500_000):
        theirs.gather(message(size), fixed=True, longest=0, what="x")
        arriving.append(mine.gather(message(size), fixed=True, longest=0, what="x"))
    assert clock.slept == []
    assert arriving[0].traffic == Traffic(250_000, 250_000, 250_000)
    clock.now = 0.1  # the backward pass goes on meanwhile
    assert [m.numel() for m in arriving[0].wait()] == [250_000] * 2
    assert clock.now == 0.25
    clock.now = 2.0
    arriving[1].wait()
    assert clock.now == 2.0, "what came long ago is there"


def test_lengths_wait_in_the_queue_before_their_message() -> None:
    clock = Clock()
    mine, theirs = pair(clock.link())
    for size, fixed in ((1_000_000, True), (499_992, False)):
        theirs.gather(message(size), fixed=fixed, longest=10**6, what="x")
        last = mine.gather(message(size), fixed=fixed, longest=10**6, what="x")
    assert clock.now == pytest.approx(1 + 8e-6), "8 bytes behind a million"
    last.wait()
    assert clock.now == pytest.approx(1.5)


def test_few_numbers_wait_in_the_queue_too() -> None:
    clock = Clock()
    slow = Emulated(Alone(), clock.link())
    assert slow.everyone([7, 8], "x") == [[7, 8]]
    assert clock.now == pytest.approx(3 * 2 * 8 / 1e6), "16 bytes to each of three"
    assert (slow.rank, slow.size) == (2, 4)


class Alone:
    """Rank 2 of 4, whom nobody answers."""

    rank, size = 2, 4

    def begin(self, moment: str) -> None: ...

    def gather(self, message: Tensor, *, fixed: bool, longest: int, what: str) -> Any:
        raise NotImplementedError

    def everyone(self, numbers: Any, what: str) -> list[list[int]]:
        return [list(numbers)]


class Adding(Alone):
    def scatter(self, rows: Tensor, what: str) -> Any:
        class Arriving:
            traffic = Traffic(1, 3_000_000, 3_000_000)

            def wait(self) -> Tensor:
                return rows

        return Arriving()


def test_messages_are_added_up_where_the_inner_exchange_can() -> None:
    clock = Clock()
    slow = emulated(Adding(), clock.link())
    assert isinstance(slow, Scatters)
    assert isinstance(slow, EmulatedSums)
    rows = torch.ones(4, 2)
    assert slow.scatter(rows, "x").wait() is rows
    assert clock.now == 3.0
    assert not isinstance(emulated(Alone(), clock.link()), Scatters)
    alone = Alone()
    assert emulated(alone, None) is alone


# ------------------------------------------------------------------------------------------------------- torch's hooks


@dataclass
class Bucket:
    place: int
    last: bool

    def index(self) -> int:
        return self.place

    def is_last(self) -> bool:
        return self.last


def test_buckets_queue_beside_the_backward_pass_and_the_last_hook_waits_for_all() -> None:
    clock = Clock()
    averaged = [torch.tensor([1.0]), torch.tensor([2.0])]
    state = Carried(clock.link(), lambda bucket: Started(lambda: averaged[bucket.index()], 1_000_000))
    step: Any = [Bucket(0, False), Bucket(1, True)]
    first: Future[Tensor] = state.exchange(step[0])
    clock.now = 0.5
    assert not first.done()
    second = state.exchange(step[1])
    assert clock.now == 2.0, "half of the first bucket was hidden"
    assert [first.value(), second.value()] == averaged


def test_rounds_that_compute_between_take_their_time_after_it() -> None:
    clock = Clock()

    def rounds() -> Tensor:
        clock.now += 3.0
        return torch.zeros(1)

    only: Any = Bucket(0, True)
    Carried(clock.link(), lambda bucket: Started(rounds, 1_000_000), one_by_one=True).exchange(only)
    assert clock.now == 4.0


def test_a_step_that_broke_off_leaves_nothing_to_the_next() -> None:
    asked: list[int] = []

    def start(bucket: Any) -> Started:
        place = len(asked)
        asked.append(place)
        return Started(lambda: torch.tensor(float(place)), 0)

    state = Carried(Clock().link(), start)
    step: Any = [Bucket(0, False), Bucket(0, False), Bucket(1, True)]
    broken, *taken = [state.exchange(bucket) for bucket in step]
    assert not broken.done()
    assert [float(future.value()) for future in taken] == [1.0, 2.0]

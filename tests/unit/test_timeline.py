"""The timeline of a step: what is hidden, what queues, what agrees with formulas that can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.errors import ConfigError
from thinwire.timeline import (
    GATHER,
    SHARES,
    SUM,
    TELL,
    Collective,
    Compute,
    Shipment,
    Wire,
    step_time,
)

MEGABYTE = Wire(2, up=8e6)
COMPUTE = Compute(forward=1.0, backward=2.0, optimizer=0.5)


def test_a_ring_sums_in_fewer_bytes_than_it_gathers() -> None:
    wire = Wire(8, up=8e6)
    assert wire.sent(SUM, 1e6) == wire.sent(SHARES, 1e6) == 1.75e6
    assert wire.sent(GATHER, 1e6) == wire.sent(TELL, 1e6) == 7e6
    assert wire.seconds(SUM, 1e6) == 1.75


def test_the_slower_way_is_the_rate_and_headers_take_their_share() -> None:
    wire = Wire(2, up=8e6, down=4e6, sum=Collective(share=0.5))
    assert wire.seconds(SUM, 1e6) == 4.0
    assert wire.shaped(None).seconds(SUM, 1e6) == 0.0


def test_what_arrives_before_the_backward_pass_is_over_costs_nothing() -> None:
    step = step_time([Shipment(0.5, SUM, 1e6)], MEGABYTE, COMPUTE)
    assert step.total == COMPUTE.total
    assert step.exposed == 0


def test_the_last_buckets_tail_is_not_hidden() -> None:
    step = step_time([Shipment(0.5, SUM, 1e6), Shipment(2.0, SUM, 3e6)], MEGABYTE, COMPUTE)
    assert step.exposed == 3.0
    assert step.total == COMPUTE.total + 3.0


def test_the_link_carries_first_what_came_first() -> None:
    step = step_time([Shipment(0.5, SUM, 4e6), Shipment(2.0, SUM, 1e6)], MEGABYTE, COMPUTE)
    assert step.exposed == 0.5 + 4 + 1 - 2.0


def test_encoding_delays_all_that_comes_after_it() -> None:
    buckets = [Shipment(0.5, GATHER, 1e6, encode=0.25, decode=0.125), Shipment(2.0, GATHER, 1e6, encode=0.25)]
    step = step_time(buckets, MEGABYTE, COMPUTE)
    assert step.encode == 0.5
    assert step.decode == 0.125
    assert step.total == COMPUTE.total + 0.5 + 1.0  # decoding the first is hidden behind the second's bytes
    assert step.exposed == 1.0 - 0.125


def test_collectives_steal_from_a_crowded_backward_pass_but_not_behind_the_last_bucket() -> None:
    wire = replace(MEGABYTE, sum=Collective(host=0.1, host_byte=1e-7))
    buckets = [Shipment(0.5, SUM, 1e6), Shipment(2.0, SUM, 1e6)]
    assert step_time(buckets, wire, COMPUTE).stolen == 0
    assert step_time(buckets, wire, COMPUTE, crowding=2.0).stolen == pytest.approx(2 * (0.1 + 0.1))


def test_latencies_overlap_in_as_many_lanes_as_there_are() -> None:
    buckets = [Shipment(2.0, SUM, 0.0) for _ in range(4)]
    slow = {lanes: replace(MEGABYTE, lanes=lanes, sum=Collective(alpha=0.25)) for lanes in (1, 2)}
    assert step_time(buckets, slow[1], COMPUTE).exposed == 4 * 0.25
    assert step_time(buckets, slow[2], COMPUTE).exposed == 2 * 0.25


def test_the_second_half_of_what_is_added_up_waits_for_the_end_of_the_backward_pass() -> None:
    whole = Shipment(0.0, SHARES, 1e6)
    assert step_time([whole], MEGABYTE, COMPUTE).exposed == 0.5
    assert step_time([replace(whole, kind=SUM)], MEGABYTE, COMPUTE).exposed == 0
    late = [replace(whole, ready=2.0)] * 2
    assert step_time(late, MEGABYTE, COMPUTE).exposed == 2.0  # two first halves, then two second ones


def test_ranks_agree_by_a_small_round() -> None:
    wire = replace(MEGABYTE, tell=Collective(alpha=0.5))
    step = step_time([], wire, COMPUTE, verdicts=1, between=0.25)
    assert step.verdict == 0.5 + 16e-6 + 0.25
    assert step.sent == 16


def test_more_workers_take_as_many_times_the_messages() -> None:
    wire = Wire(4, up=8e6, gather=Collective(alpha=0.3), sum=Collective(alpha=0.6)).at(16)
    assert wire.workers == 16
    assert wire.gather.alpha == pytest.approx(1.5)
    assert wire.sum.alpha == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Wire(1), "at least 2 workers, got 1"),
        (lambda: Wire(2, up=0.0), "the rate up must be finite and above 0"),
        (lambda: Wire(2, down=math.nan), "the rate down must be finite"),
        (lambda: Wire(2, lanes=0), "got 0 lanes"),
        (lambda: Compute(-1.0, 0.0), "at least 0, got -1.0"),
        (lambda: Shipment(0.0, SUM, math.inf), "got inf"),
    ],
)
def test_what_has_no_sense_is_refused(make: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()  # type: ignore[operator]


KINDS = st.sampled_from([SUM, GATHER, TELL, SHARES])
SHORT = st.floats(0, 1)
SHIPMENTS = st.lists(st.builds(Shipment, SHORT, KINDS, st.floats(0, 1e6), SHORT, SHORT), max_size=6)


@given(SHIPMENTS, st.floats(1e5, 1e9), st.integers(2, 64), st.floats(0, 0.1))
def test_no_step_is_shorter_than_its_computing_or_its_bytes(
    shipments: list[Shipment], rate: float, workers: int, alpha: float
) -> None:
    same = Collective(alpha=alpha, host=0.01)
    wire = Wire(workers, up=rate, sum=same, gather=same, tell=same)
    ordered = sorted(shipments, key=lambda each: each.ready)
    step = step_time(ordered, wire, COMPUTE, crowding=1.0, verdicts=1)
    rounding = 1e-9 * step.total
    assert step.exposed >= -rounding
    assert step.total >= COMPUTE.total + step.encode - rounding
    assert step.total >= 8 * (step.sent - wire.sent(TELL, 16)) / rate - rounding
    faster = step_time(ordered, wire.shaped(2 * rate), COMPUTE, crowding=1.0, verdicts=1)
    assert faster.total <= step.total + rounding

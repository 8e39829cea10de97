"""Adding messages up on their way gives the bits of their sum, and only where that is what the rule makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.methods import COMPRESSORS, METHODS

import thinwire
from thinwire import Channel, Key, Layout
from thinwire.engines.crowd import Crowd
from thinwire.feedback import Feedback, Round, Signal
from thinwire.feedback.base import mean_into
from thinwire.outgoing import Given
from thinwire.payload import Dense
from thinwire.payload.letter import FINITE, Expected
from thinwire.payload.sums import Summand, Total, add_up, read_total, write_shares, write_total
from thinwire.store import ParameterInfo, Store

FINE = torch.tensor(FINITE)


def expected(numel: int, dtype: torch.dtype) -> Expected:
    return Expected(7, "a test", 1, ((Layout.of([("x", 0, (numel,))]), dtype),), Key())


@given(st.integers(1, 40), st.integers(1, 6), st.sampled_from([torch.float32, torch.float64]), st.integers(0, 99))
def test_the_total_has_the_bits_of_the_sum_in_rank_order(numel: int, ranks: int, dtype: torch.dtype, seed: int) -> None:
    draws, common = torch.Generator().manual_seed(seed), expected(numel, dtype)
    payloads = [Dense(torch.randn(numel, dtype=dtype, generator=draws) * 10.0**rank) for rank in range(ranks)]
    own = [Summand(payload, payload.values, FINE) for payload in payloads]
    sent = [write_shares(mine, common, rank, ranks) for rank, mine in enumerate(own)]
    assert {rows.shape for rows in sent} == {(ranks, own[0].share_size(ranks))}
    totals = []
    for rank in range(ranks):
        flags, total = add_up(torch.stack([rows[rank] for rows in sent]), own[rank], common)
        assert flags == [FINITE] * ranks
        totals.append(write_total(total, own[rank], common, rank))
    found = read_total(totals, own[0], common)
    assert len(found) == ranks
    out = torch.empty(numel, dtype=dtype)
    assert torch.equal(mean_into(out.clone(), found), mean_into(out, payloads))


def test_a_raised_flag_comes_to_all_and_nothing_is_added() -> None:
    common, raised = expected(5, torch.float32), torch.tensor(0)
    own = [Summand(Dense(torch.ones(5)), torch.ones(5), flag) for flag in (FINE, raised, FINE)]
    sent = [write_shares(mine, common, rank, 3) for rank, mine in enumerate(own)]
    flags, total = add_up(torch.stack([rows[2] for rows in sent]), own[2], common)
    assert flags == [FINITE, 0, FINITE]
    assert total.tolist() == [0.0, 0.0]


def test_one_rank_s_message_is_not_to_be_had_of_a_total() -> None:
    with pytest.raises(TypeError, match="only the sum"):
        Total(Dense(torch.ones(1)), 3)[0]


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_a_summand_is_all_that_a_message_says(compressor: thinwire.Compressor) -> None:
    """Doubled numbers decode to a doubled vector, at coordinates that every worker has alike."""
    layout = Layout.of([("x", 0, (60,)), ("y", 1, (3,))])
    x = torch.randn(63, generator=torch.Generator().manual_seed(0))
    payloads = [compressor(x * (1 + rank), layout, Key(0, 1, rank)) for rank in range(3)]
    for payload in payloads:
        if payload.summand is not None:
            twice = payload.with_summand(2 * payload.summand).decode(layout, x.dtype)
            assert torch.equal(twice, 2 * payload.decode(layout, x.dtype))
            assert torch.equal(payload.decode(layout, x.dtype) != 0, payloads[0].decode(layout, x.dtype) != 0)


def test_a_message_without_a_summand_takes_no_other_numbers() -> None:
    layout = Layout.of([("x", 0, (60,))])
    with pytest.raises(TypeError, match="Sparse has no summand"):
        thinwire.TopK(0.1)(torch.randn(60), layout, Key()).with_summand(torch.zeros(6))


def test_dense_and_shared_masks_are_added_up_and_nothing_else() -> None:
    layout, x = Layout.of([("x", 0, (60,))]), torch.randn(60)
    summable = {str(c) for c in COMPRESSORS if c(x, layout, Key()).summand is not None}
    assert summable == {str(c) for c in COMPRESSORS if str(c).startswith("identity") or "shared=True)" in str(c)}


@pytest.mark.parametrize("rule", [rule for rule in METHODS if rule.averages], ids=str)
def test_a_rule_that_averages_makes_no_more_of_messages_than_their_mean(rule: Feedback) -> None:
    info = {"x": ParameterInfo.of(0, torch.zeros(20))}
    layout = Layout.of([("x", 0, (20,))])
    signal = Signal(torch.randn(20), workers=2)
    store = Store({"x": [slot for slot in rule.slots if slot.per_worker]}, info, 2)
    payloads = [rule.send(signal, layout, store.bind(layout), Key(0, 0, rank)) for rank in range(2)]
    server = Store({"x": [slot for slot in rule.slots if not slot.per_worker]}, info, 2)
    got = rule.receive(Round(payloads, Key().shared(), True), layout, server.bind(layout), torch.randn(20))
    assert torch.equal(got, mean_into(torch.empty(20), payloads))


@pytest.mark.parametrize("rule", METHODS, ids=str)
def test_a_channel_adds_up_the_messages_of_rules_that_average_and_of_no_others(rule: Feedback) -> None:
    channel = Channel(rule, {"x": torch.zeros(30)}, rank=0, size=3)
    vector = torch.linspace(-1, 1, 30)
    given = Given(vector, step_sizes={"x": 0.1}, moment=vector.square(), previous=vector)
    sketched = channel.sketch(channel.layout(["x"]), given)
    if sketched is not None:
        given = replace(given, agreed=sketched.agreed(sketched.numbers))
    found = channel.send(channel.layout(["x"]), given).summand
    assert found is None or rule.averages
    same = sketched is not None or str(getattr(rule, "compressor", "")) in ("identity()", "randk(0.3, shared=True)")
    assert found is not None or not rule.averages or not same


@pytest.mark.parametrize("rule", ["plain(identity())", "memsgd(randk(0.9, shared=True))"])
def test_a_crowd_counts_the_bytes_of_a_simulation(rule: str) -> None:
    gradients = [torch.randn(20_001, generator=torch.Generator().manual_seed(rank)) for rank in range(4)]
    crowd = Crowd({"x": torch.zeros(20_001)}, thinwire.parse(rule), 4)
    crowd.exchange({"x": torch.stack(gradients)}, 0.1)
    simulation = thinwire.Simulation({"x": torch.zeros(20_001)}, rule, 4)
    simulation.exchange([{"x": gradient} for gradient in gradients], step_sizes={"x": 0.1})
    sent = [each.ledger.summary()["sent_bytes"] for each in (crowd, simulation)]
    assert sent[0] == sent[1] < 1.7 * 4 * 20_001

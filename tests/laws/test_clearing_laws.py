"""Where what a rule chooses shows that all was finite, nobody looks before: the same comes of it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws.gradients import LAYOUTS, vectors
from tests.methods import METHODS
from torch import Tensor

from thinwire import EF21, EF21SGDM, Channel, Feedback, Layout, MemAdam, Simulation, TopK
from thinwire.errors import NonFiniteGradient
from thinwire.outgoing import Given
from thinwire.payload.letter import FINITE

SHOWING = [rule for rule in METHODS if rule.shows_all]
SPOILT = [math.nan, math.inf, -math.inf, 3e38, -3e38, 1e30, 2e19, 1e19]
"""Of the finite ones the squares overflow, and sums of them may; of the last one neither does."""


def channel(rule: Feedback, layout: Layout, *, looks: bool) -> Channel:
    parameters = {piece.name: torch.zeros(piece.shape) for piece in layout.pieces}
    made = Channel(rule, parameters, rank=0, size=1, seed=3)
    if looks:
        made._shows_all = lambda *_: False  # type: ignore[method-assign]
    return made


def step(own: Channel, layout: Layout, gradient: Tensor, step_size: float) -> tuple[Tensor, Tensor, str]:
    """The message, the result and what was refused."""
    sizes = {piece.name: step_size for piece in layout.pieces}
    sent = own.send(layout, Given(gradient, step_sizes=sizes))
    out = own.receive(sent, [sent.message], gradient.clone())
    error = own.finish()
    assert error is None or isinstance(error, NonFiniteGradient)
    return sent.message, out, str(error)


def state(own: Channel) -> list[Tensor]:
    return [
        store.view(name, slot.name).clone()
        for store in own.stores
        for name in own.parameters
        for slot in store.slots_of(name)
    ]


@pytest.mark.parametrize("rule", SHOWING, ids=str)
@settings(max_examples=6)
@given(
    data=st.data(),
    layout=st.sampled_from(LAYOUTS),
    steps=st.lists(
        st.tuples(st.none() | st.sampled_from(SPOILT), st.sampled_from([0.1, 0.1, 0.05])), min_size=3, max_size=6
    ),
)
def test_who_looks_and_who_is_shown_say_and_remember_the_same(
    rule: Feedback, data: st.DataObject, layout: Layout, steps: list[tuple[float | None, float]]
) -> None:
    shown, looking = (channel(rule, layout, looks=looks) for looks in (False, True))
    for spoilt, step_size in steps:
        gradient = data.draw(vectors(layout, torch.float32))
        if spoilt is not None:
            gradient[data.draw(st.integers(0, layout.numel - 1))] = spoilt
        one, other = (step(own, layout, gradient, step_size) for own in (shown, looking))
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1].nan_to_num(7.0), other[1].nan_to_num(7.0))
        assert one[2] == other[2]
        for mine, its in zip(state(shown), state(looking), strict=True):
            assert torch.equal(mine, its)
            assert bool(mine.isfinite().all())


def test_rules_over_the_largest_numbers_are_shown() -> None:
    """The law above is about something, and its spoilt gradients are refused by both."""
    names = {rule.name for rule in SHOWING}
    assert names == {"plain", "memsgd", "dgc", "memadam", "ef21", "ef21sgdm"}
    layout = LAYOUTS[-1]
    for rule in SHOWING:
        own = channel(rule, layout, looks=False)
        for value, fine in ((1.0, True), (2.0, True), (math.nan, False), (1.0, True)):
            gradient = torch.ones(layout.numel)
            gradient[3] = value
            sent = own.send(layout, Given(gradient, step_sizes={piece.name: 0.1 for piece in layout.pieces}))
            assert (int(sent.message[12:16].view(torch.int32)) == FINITE) == fine
            own.receive(sent, [sent.message], gradient.clone())
            assert (own.finish() is None) == fine


@pytest.mark.parametrize("rule", SHOWING, ids=str)
def test_nobody_looks_at_a_gradient_that_shows_itself(rule: Feedback, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = LAYOUTS[1]
    own = channel(rule, layout, looks=False)
    step(own, layout, torch.ones(layout.numel), 0.1)
    looked: list[object] = []
    monkeypatch.setattr("thinwire.channel.flagged", lambda *given: looked.append(given))
    step(own, layout, torch.ones(layout.numel), 0.1)
    assert not looked


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_memadam_looks_where_no_second_moment_is_known(value: float) -> None:
    """A row that was zero in all steps before has no D, so nothing of it comes into the memory."""
    layout = LAYOUTS[1]
    shown, looking = (channel(MemAdam(TopK(0.3)), layout, looks=looks) for looks in (False, True))
    zero_row = torch.ones(layout.numel)
    zero_row[:3] = 0.0
    spoilt = zero_row.clone()
    spoilt[1] = value
    for gradient in (zero_row, zero_row, spoilt, zero_row):
        one, other = (step(own, layout, gradient, 0.1) for own in (shown, looking))
        assert one[2] == other[2]
        assert (one[2] != "None") == (gradient is spoilt and not math.isfinite(value))
        for mine, its in zip(state(shown), state(looking), strict=True):
            assert torch.equal(mine, its)


HELD_IN_COMMON = {
    type(rule): rule
    for rule in METHODS
    if "(topk(" in str(rule) and rule.name != "ef21w"  # which is made for three workers here
    if any(not (slot.per_worker or slot.factored or slot.single) for slot in rule.slots)
}


@pytest.mark.parametrize("rule", HELD_IN_COMMON.values(), ids=str)
def test_what_all_hold_in_common_is_looked_at_unless_it_was_handed_over(rule: Feedback) -> None:
    layout = LAYOUTS[1]
    own = channel(rule, layout, looks=False)
    zeros, key = torch.zeros(layout.numel), {piece.name: 0.1 for piece in layout.pieces}
    for gradient in (torch.ones(layout.numel), torch.ones(layout.numel)):
        sent = own.send(layout, Given(gradient, step_sizes=key, moment=zeros + 1, previous=zeros))
        own.receive(sent, [sent.message], gradient.clone())
        common = {id(flat) for _, flat in own.server.vectors(layout)}
        looked_at = {id(flat) for _, flat in own._underway._memories()}
        assert rule.hands_over_common == common.isdisjoint(looked_at)
        assert own.finish() is None


@pytest.mark.parametrize("kind", [EF21, EF21SGDM])
@pytest.mark.parametrize("values", ["power4", "exponent4"])
def test_a_follower_that_is_rounded_beyond_all_numbers_is_seen(kind: type[EF21 | EF21SGDM], values: str) -> None:
    """1.38e38 is sent as 2^127, and 2e38 + 2^127 is infinite; the mean of two workers is not."""
    simulation = Simulation({"x": torch.zeros(4)}, kind(TopK(count=2, values=values)), workers=2)
    zeros = {"x": torch.zeros(4)}
    simulation.exchange([{"x": torch.tensor([2e38, 0, 0, 0])}, zeros])
    if kind is EF21SGDM:  # which follows its momentum
        simulation.channels[0].worker.write("x", "momentum", torch.tensor([3.38e38, 3e38, 0, 0]))
    with pytest.raises(NonFiniteGradient, match="overflows"):
        simulation.exchange([{"x": torch.tensor([3.38e38, 3e38, 0, 0])}, zeros])
    assert all(bool(own.worker.view("x", "local").isfinite().all()) for own in simulation.channels)

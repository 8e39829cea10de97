"""The two halves of each rule, called by hand; and what rules refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from thinwire import (
    DGC,
    EF21,
    EF21SGDM,
    QSGD,
    VGC,
    Contractive,
    EControl,
    EF21Plus,
    Feedback,
    Hybrid,
    Identity,
    Key,
    Layout,
    MemAdam,
    MemSGD,
    Plain,
    Route,
    Simulation,
    TopK,
)
from thinwire.errors import AttachError, ConfigError
from thinwire.feedback import Need, Round, Signal, rule_of
from thinwire.payload import Dense, Empty, Flagged

ONE = Layout.of([("x", 0, (4,))])
G = torch.tensor([4.0, 1.0, -3.0, 0.5])
TOP1 = TopK(count=1)
RULES = [Plain, MemSGD, DGC, EF21, EF21Plus, EF21SGDM, EControl]


def state_of(rule: Feedback, workers: int = 1) -> dict[str, Tensor]:
    return {s.name: torch.zeros((workers, 4) if s.copies else 4) for s in rule.slots}


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("wrong", [0.1, "topk", None, EF21(TOP1)], ids=repr)
def test_a_rule_takes_a_compressor_only(kind: type[Feedback], wrong: object) -> None:
    with pytest.raises(ConfigError, match=f"{kind.name} takes a compressor such as topk"):
        kind(wrong)


@pytest.mark.parametrize("kind", [EF21, EF21Plus, EF21SGDM, EControl], ids=lambda kind: kind.name)
def test_an_unknown_start_is_refused_with_the_known_ones(kind: Callable[..., Feedback]) -> None:
    with pytest.raises(ConfigError, match=f"{kind.name} start must be one of gradient, compressed, zero, got 'ones'"):
        kind(TOP1, start="ones")


@pytest.mark.parametrize("kind", [EF21SGDM, EControl], ids=lambda kind: kind.name)
@pytest.mark.parametrize("eta", [0, -0.1, 1.5, math.nan])
def test_eta_lies_in_zero_one(kind: Callable[..., Feedback], eta: float) -> None:
    with pytest.raises(ConfigError, match=rf"{kind.name} eta must lie in \(0, 1\], got {eta}"):
        kind(TOP1, eta=eta)


@pytest.mark.parametrize("kind", [EF21SGDM, EControl], ids=lambda kind: kind.name)
def test_eta_of_another_type_is_refused(kind: Callable[..., Feedback]) -> None:
    with pytest.raises(ConfigError):
        kind(TOP1, eta="0.1")


@pytest.mark.parametrize("decay", [0, -0.5, 1.01, float("nan"), "0.9", True])
@pytest.mark.parametrize(
    "kind",
    [partial(MemSGD, TOP1), partial(DGC, TOP1), partial(VGC, 1.5), partial(Hybrid, 0.1)],
    ids=lambda kind: kind.func.name,
)
def test_a_decay_outside_its_bounds_is_refused(kind: partial[Feedback], decay: object) -> None:
    with pytest.raises(ConfigError, match=rf"{kind.func.name} decay must lie in \(0, 1\], got {decay!r}"):
        kind(decay=decay)
    assert str(kind(decay=1)) == str(kind())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"momentum": 1.0}, r"dgc momentum must lie in \[0, 1\), got 1.0"),
        ({"momentum": -0.1}, r"dgc momentum must lie in \[0, 1\), got -0.1"),
        ({"momentum": math.nan}, "got nan"),
        ({"momentum": "0.9"}, "got '0.9'"),
        ({"nesterov": 1}, "dgc nesterov must be True or False, got 1"),
        ({"masking": None}, "dgc masking must be True or False, got None"),
        ({"clip": 0}, "dgc clip must be a positive norm, or None to clip nothing, got 0"),
        ({"clip": math.inf}, "got inf"),
    ],
)
def test_dgc_refuses_what_is_out_of_bounds(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        DGC(TOP1, **options)


def test_dgc_clips_each_parameter_by_itself_and_leaves_the_signal() -> None:
    three = Layout.of([("a", 0, (2,)), ("none", 1, (0,)), ("b", 2, (2,))])
    state = {"velocity": torch.zeros(4), "error": torch.zeros(4)}
    gradient = torch.tensor([30.0, 40.0, 0.6, -0.8])
    payload = DGC(Identity(), clip=5.0, masking=False).send(Signal(gradient), three, state, Key())
    assert payload.decode(three, torch.float32).tolist() == pytest.approx([3.0, 4.0, 0.6, -0.8], rel=2.0**-22)
    assert torch.equal(state["velocity"][2:], gradient[2:])  # bit for bit what is short enough
    assert gradient.tolist()[:2] == [30.0, 40.0]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda x: torch.optim.SGD(x, lr=0.1, momentum=0.9),
        lambda x: torch.optim.AdamW(x, lr=0.1),
        lambda x: torch.optim.Adagrad(x, lr=0.1),
    ],
    ids=["SGD", "AdamW", "Adagrad"],
)
def test_momentum_is_not_applied_twice(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    x = torch.nn.Parameter(torch.zeros(4))
    with pytest.raises(AttachError, match=r"dgc\(.*'x'.*applied twice. Use torch.optim.SGD with momentum=0"):
        Simulation({"x": x}, DGC(TOP1), 2, optimizer=optimizer([x]))


def test_an_optimizer_without_momentum_is_fine_and_so_is_momentum_elsewhere() -> None:
    x, y = torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(4))
    assert Simulation({"x": x}, DGC(TOP1), 2, optimizer=torch.optim.SGD([x], lr=0.1))
    heavy = torch.optim.SGD([{"params": [x]}, {"params": [y], "momentum": 0.9}], lr=0.1)
    assert Simulation({"x": x, "y": y}, Route({"x": DGC(TOP1), "y": MemSGD(TOP1)}, 0), 2, optimizer=heavy)
    assert Simulation({"y": y}, DGC(TOP1, momentum=0.0), 2, optimizer=torch.optim.SGD([y], lr=0.1, momentum=0.9))


@pytest.mark.parametrize("kind", [MemSGD, DGC, MemAdam], ids=lambda kind: kind.name)
def test_an_unknown_kind_of_memory_is_refused(kind: Callable[..., Feedback]) -> None:
    with pytest.raises(ConfigError, match=f"{kind.name} memory must be one of full, int8, got 'int4'"):
        kind(TOP1, memory="int4")


def test_a_memory_fades_before_the_gradient_joins_it() -> None:
    for ratios, kept in ((None, 2.0), ((2.0,), 4.0)):
        state = {"error": torch.tensor([4.0, 4, 4, 4])}
        payload = MemSGD(TOP1, decay=0.5).send(Signal(G.clone(), rescale=ratios), ONE, state, Key())
        assert payload.decode(ONE, torch.float32).tolist() == [kept + 4, 0, 0, 0]
        assert state["error"].tolist() == [0, kept + 1, kept - 3, kept + 0.5]


@pytest.mark.parametrize("kind", RULES[1:], ids=lambda kind: kind.name)
def test_a_compressor_that_amplifies_is_refused_with_its_remedy(kind: type[Feedback]) -> None:
    rule = kind(QSGD(1, 100))
    with pytest.raises(
        AttachError, match=rf"'w' \(100 numbers\) has variance 10 > 1 .* {kind.name}\(contractive\(qsgd"
    ):
        rule_of(rule, "w", 100)
    assert rule_of(kind(Contractive(QSGD(1, 100))), "w", 100)
    assert rule_of(rule, "w", 1)
    assert rule_of(Plain(QSGD(1, 100)), "w", 100)


def test_memory_keeps_what_was_not_sent_and_rescales_by_piece() -> None:
    two = Layout.of([("a", 0, (2,)), ("b", 1, (2,))])
    state = {"error": torch.tensor([8.0, 8, 8, 8])}
    payload = MemSGD(TOP1).send(Signal(torch.zeros(4), rescale=(2.0, 0.5)), two, state, Key())
    assert payload.decode(two, torch.float32).tolist() == [16, 0, 4, 0]
    assert state["error"].tolist() == [0, 16, 0, 4]


def test_memory_needs_step_sizes_and_the_others_need_nothing() -> None:
    assert MemSGD(TOP1).needs == DGC(TOP1).needs == {Need.STEP_SIZE}
    assert all(not kind(TOP1).needs for kind in (Plain, EF21, EF21Plus, EF21SGDM, EControl))


@pytest.mark.parametrize("kind", [EF21, EF21SGDM, EControl], ids=lambda kind: kind.name)
@pytest.mark.parametrize(("start", "format"), [("gradient", Dense), ("zero", Empty)])
def test_the_first_message_is_what_the_start_says(kind: Callable[..., Feedback], start: str, format: type) -> None:
    rule = kind(TOP1, start=start)
    assert isinstance(rule.send(Signal(G.clone(), first=True), ONE, state_of(rule), Key()), format)
    assert not isinstance(rule.send(Signal(G.clone()), ONE, state_of(rule), Key()), format)


def test_a_dense_first_message_does_not_alias_the_gradient() -> None:
    gradient = G.clone()
    rule = EF21Plus(TOP1)
    payload = rule.send(Signal(gradient, first=True), ONE, state_of(rule), Key())
    gradient.zero_()
    assert torch.equal(payload.decode(ONE, torch.float32), G)


def test_ef21_sends_the_change_and_both_ends_add_it() -> None:
    rule = EF21(TOP1)
    state = state_of(rule)
    state["local"].copy_(torch.tensor([4.0, 1, 2, 0]))
    state["mean"].copy_(state["local"])
    payload = rule.send(Signal(G.clone()), ONE, state, Key())
    assert payload.decode(ONE, torch.float32).tolist() == [0, 0, -5, 0]
    out = rule.receive(Round([payload], Key()), ONE, state, torch.empty(4))
    assert out.tolist() == state["local"].tolist() == state["mean"].tolist() == [4, 1, -3, 0]
    assert rule.residual(Signal(G), state).tolist() == [0, 0, 0, 0.5]


def test_ef21_hands_out_a_copy_of_its_mean() -> None:
    rule = EF21(TOP1)
    state = state_of(rule)
    out = rule.receive(Round([Dense(G.clone())], Key()), ONE, state, torch.empty(4))
    out.mul_(1000)
    assert torch.equal(state["mean"], G)


def test_ef21_plus_replaces_piece_by_piece_where_that_is_closer() -> None:
    two = Layout.of([("a", 0, (2,)), ("b", 1, (2,))])
    rule = EF21Plus(TOP1)
    state = {"local": torch.tensor([9.0, 9, 5, 1]), "locals": torch.tensor([[9.0, 9, 5, 1]])}
    gradient = torch.tensor([4.0, 0, 5, 2])  # a: keeping 4 alone is exact; b: adding 1 to what is known is exact
    payload = rule.send(Signal(gradient.clone()), two, state, Key())
    assert isinstance(payload, Flagged)
    assert payload.replaces.tolist() == [True, False]
    assert torch.equal(state["local"], gradient)
    assert torch.equal(rule.receive(Round([payload], Key()), two, state, torch.empty(4)), gradient)
    assert torch.equal(state["locals"][0], gradient)


def test_ef21_plus_keeps_the_markov_branch_when_both_are_equally_close() -> None:
    rule = EF21Plus(Identity())
    state = state_of(rule)
    payload = rule.send(Signal(G.clone()), ONE, state, Key())
    assert isinstance(payload, Flagged)
    assert not payload.replaces.any()


def test_momentum_starts_as_the_first_gradient_and_then_averages() -> None:
    rule = EF21SGDM(TOP1, eta=0.25)
    state = state_of(rule)
    rule.send(Signal(G.clone(), first=True), ONE, state, Key())
    assert torch.equal(state["momentum"], G)
    rule.send(Signal(torch.zeros(4)), ONE, state, Key())
    assert torch.equal(state["momentum"], 0.75 * G)


def test_econtrol_adds_a_share_of_the_error() -> None:
    rule = EControl(TOP1, eta=0.5)
    state = state_of(rule)
    state["error"].copy_(torch.tensor([0.0, 0, 0, 10]))
    payload = rule.send(Signal(G.clone()), ONE, state, Key())
    assert payload.decode(ONE, torch.float32).tolist() == [0, 0, 0, 5.5]
    assert state["error"].tolist() == [4, 1, -3, 5]
    assert state["local"].tolist() == [0, 0, 0, 5.5]


@pytest.mark.parametrize("kind", [Plain, MemSGD], ids=lambda kind: kind.name)
def test_the_server_averages_in_rank_order(kind: type[Feedback]) -> None:
    """(2^60 + 1) - 2^60 loses the 1 in float32, whichever device adds: the order is part of the result."""
    messages = [Dense(torch.tensor([v])) for v in (2.0**60, 1.0, -(2.0**60))]
    layout = Layout.of([("x", 0, (1,))])
    assert kind(TOP1).receive(Round(messages, Key()), layout, {}, torch.empty(1)).item() == 0.0
    assert kind(TOP1).receive(Round(messages[::-1], Key()), layout, {}, torch.empty(1)).item() == 0.0
    assert kind(TOP1).receive(
        Round([messages[0], messages[2], messages[1]], Key()), layout, {}, torch.empty(1)
    ).item() == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"beta1": 1.0}, r"memadam beta1 must lie in \[0, 1\), got 1.0"),
        ({"beta2": -0.1}, r"memadam beta2 must lie in \[0, 1\), got -0.1"),
        ({"eps": 0}, "memadam eps must be a positive number, 1e-8 is usual, got 0"),
        ({"clip": math.inf}, "memadam clip must be positive, or None to clip nothing, got inf"),
        ({"clip": 0}, "got 0"),
        ({"refresh": 0}, "memadam refresh must be a whole number of steps, at least 1, got 0"),
        ({"refresh": 1.5}, "got 1.5"),
        ({"decay": 1.1}, r"memadam decay must lie in \(0, 1\], got 1.1"),
    ],
)
def test_memadam_refuses_what_is_out_of_bounds(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        MemAdam(TOP1, **options)

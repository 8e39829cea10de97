"""VGC and its hybrid step by step: who is sent, what is left, what is counted, what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import thinwire
from thinwire import VGC, Hybrid, Key, Layout, MemSGD, Plain, Route, ScaledSign, Simulation, Target, TopK, Warmup
from thinwire.channel import Channel
from thinwire.errors import AttachError, ConfigError, NonFiniteGradient
from thinwire.feedback import Feedback, Need, Signal, State
from thinwire.moments import watch
from thinwire.outgoing import Given
from thinwire.payload import Payload


class Worker:
    """One worker's half of a rule on a vector x."""

    def __init__(self, rule: Feedback, numel: int, dtype: torch.dtype = torch.float64) -> None:
        self.rule, self.layout = rule, Layout.of([("x", 0, (numel,))])
        zeros = torch.zeros(numel, dtype=dtype)
        self.state: State = {s.name: zeros.new_full((1 if s.single else numel,), s.initial) for s in rule.slots}

    def send(self, gradient: Any, moment: Any) -> Tensor:
        """What arrives of a step."""
        return self.payload(gradient, moment).decode(self.layout, self.state["total"].dtype)

    def payload(self, gradient: Any, moment: Any) -> Payload:
        dtype = self.state["total"].dtype
        signal = Signal(torch.as_tensor(gradient, dtype=dtype), moment=torch.as_tensor(moment, dtype=dtype))
        return self.rule.send(signal, self.layout, self.state, Key())

    @property
    def r(self) -> list[float]:
        return self.state["total"].tolist()

    @property
    def v(self) -> list[float]:
        return self.state["squares"].tolist()


# ------------------------------------------------------------------------------------------------- who is sent, when


def test_of_identical_samples_r2_over_v_is_their_number() -> None:
    """|B| equal rows pass any alpha below |B|, and none from |B| on."""
    model = nn.Linear(3, 1, bias=False).double()
    with watch(model) as moments:
        model(torch.tensor([[1.0, -2.0, 0.5]] * 64, dtype=torch.float64)).mean().backward()
        gradient, q = model.weight.grad, moments.pop("weight")
    assert gradient is not None
    assert torch.equal(gradient.square() / q, torch.full((1, 3), 64.0, dtype=torch.float64))
    for alpha, passes in ((math.nextafter(64, 0), True), (64.0, False)):
        arrived = Worker(VGC(alpha, values="full"), 3).send(gradient.view(-1), q.view(-1))
        assert arrived.tolist() == (gradient.view(-1).tolist() if passes else [0, 0, 0])


def test_what_is_sent_is_reset_and_not_decayed_and_the_rest_decays_in_v_alone() -> None:
    worker = Worker(VGC(2.0, zeta=0.5, values="full"), 3)
    assert worker.send([2, 1, 0], [1, 1, 0]).tolist() == [2, 0, 0]  # 4 > 2; 1 < 2; 0 is not above 0
    assert (worker.r, worker.v) == ([0, 1, 0], [0, 0.5, 0])
    assert worker.send([1, 0.5, 0], [1, 0.5, 0]).tolist() == [0, 1.5, 0]  # 1 < 2; 2.25 > 2 * 1.0
    assert (worker.r, worker.v) == ([1, 0, 0], [0.5, 0, 0])
    assert worker.send([1, 1, -1], [1, 1, 0.25]).tolist() == [2, 0, -1]  # 4 > 3; 1 < 2; 1 > 0.5
    assert (worker.r, worker.v) == ([0, 1, 0], [0, 0.5, 0])


def test_without_rounding_what_was_sent_and_what_is_kept_is_what_was_given_exactly() -> None:
    worker, rounds = Worker(VGC(1.5, values="full"), 40), torch.Generator().manual_seed(0)
    sent, given = torch.zeros(40, dtype=torch.float64), torch.zeros(40, dtype=torch.float64)
    for _ in range(100):
        gradient = torch.randint(-9, 10, (40,), generator=rounds).double()
        given += gradient
        sent += worker.send(gradient, gradient.square() + 3)
    assert 30 < sent.count_nonzero() < 40  # some wait to the end
    assert torch.equal(sent + worker.state["total"], given)


def test_a_number_too_small_for_the_code_stays_or_is_dropped_to_the_letter() -> None:
    """2^-8 beside 1 would need d = 8."""
    for rule, r, v in ((VGC(1.0), 2.0**-8, 0.999 * 2.0**-20), (VGC(1.0, drop_small=True), 0, 0)):
        worker = Worker(rule, 3)
        assert worker.send([1, 2.0**-8, 2.0**-7], [2.0**-10, 2.0**-20, 2.0**-20]).tolist() == [1, 0, 2.0**-7]
        assert (worker.r, worker.v) == ([0, r, 0], [0, v, 0])


def test_rounding_is_not_fed_back() -> None:
    worker = Worker(VGC(1.0), 1)
    assert worker.send([1.75], [0.1]).tolist() == [1.0]
    assert (worker.r, worker.v) == ([0], [0])


def test_hybrid_sends_one_tau_and_corrects_v_by_the_old_r() -> None:
    worker = Worker(Hybrid(0.5, alpha=2.0, zeta=0.5), 4)
    #            |r| = tau   large        ambiguous   2 |r| tau - tau^2 = 2.75 leaves 0.25 of v
    arrived = worker.send([0.5, -2.0, 2.0, 3.0], [0.0, 0.5, 3.0, 3.0])
    assert arrived.tolist() == [0, -0.5, 0, 0.5]
    assert worker.r == [0.5, -1.5, 2.0, 2.5]
    assert worker.v == [0.0, 0.0, 1.5, 0.25]
    assert worker.send([0, 0, 0, 0], [0, 0, 0, 0]).tolist() == [0, -0.5, 0.5, 0.5]


def test_hybrid_never_sends_up_to_tau_and_loses_nothing() -> None:
    worker, sent, given = Worker(Hybrid(0.25, alpha=1.0), 30), torch.zeros(30), torch.zeros(30)
    for t in range(200):
        gradient = torch.randint(-8, 9, (30,), generator=torch.Generator().manual_seed(t)) / 32
        before = torch.tensor(worker.r) + gradient
        arrived = worker.send(gradient, gradient.square() / 4)
        assert not arrived[before.abs() <= 0.25].any()
        assert set(arrived.tolist()) <= {-0.25, 0.0, 0.25}
        sent, given = sent + arrived, given + gradient
    assert torch.equal(sent + worker.state["total"], given.double())
    assert sent.count_nonzero() > 0


def test_a_dead_number_is_never_sent() -> None:
    for rule in (VGC(1.0), Hybrid(0.1)):
        worker = Worker(rule, 2)
        for _ in range(3):
            assert worker.payload([0, 0], [0, 0]).elements == 0


# ------------------------------------------------------------------------------------------------- alpha that moves


def test_alpha_follows_a_warm_up() -> None:
    rule, layout = VGC(Warmup(0.5, 2.0, 2), values="full"), Layout.of([("x", 0, (1,))])
    passes = []
    for step in range(3):
        state = Worker(rule, 1).state
        signal = Signal(torch.tensor([1.0], dtype=torch.float64), moment=torch.tensor([0.75], dtype=torch.float64))
        passes.append(rule.send(signal, layout, state, Key(step=step)).elements)
    assert passes == [1, 1, 0]  # alpha = 0.5, 1 and 2 against r^2 / v = 4/3


def test_a_target_moves_alpha_by_its_law() -> None:
    worker = Worker(VGC(Target(4, start=2.0, gain=0.25), values="full"), 8)
    worker.send([1] * 8, [1 / 4] * 4 + [1] * 4)  # 4 of 8 pass: 1 + (4 * 4/8 - 1) / 4
    assert worker.state["alpha"].tolist() == [2.5]
    worker.send([0] * 8, [1] * 8)  # none: 1 - 1/4
    assert worker.state["alpha"].tolist() == [1.875]
    for _ in range(30):
        worker.send([1] * 8, [1e-9] * 8)  # all: 1 + 3/4
    assert worker.state["alpha"].tolist() == [32.0]
    for _ in range(60):
        worker.send([0] * 8, [0] * 8)
    assert worker.state["alpha"].tolist() == [0.125]


def test_a_target_holds_its_ratio() -> None:
    """50 asked of noise, and of noise around a mean; over 1,500 steps after as many, within 2 %."""
    rule, generator = VGC(Target(50)), torch.Generator().manual_seed(0)
    parameters = {"a": torch.zeros(2000), "b": torch.zeros(300)}
    sim, sent, steps = Simulation(parameters, rule, 1, ledger_every=0), 0.0, 1500
    for step in range(2 * steps):
        gradients = {name: torch.randn(len(p), generator=generator) / 8 for name, p in parameters.items()}
        gradients["b"] += 0.02
        moments = {name: (1 + g.square()) / 64 for name, g in gradients.items()}
        sim.exchange([gradients], moments=[moments])
        last = sim.ledger.last_step()["ratio_elements"]
        sent += 2300 / last if step >= steps and not math.isnan(last) else 0
    assert abs(2300 * steps / sent - 50) <= 1


# ------------------------------------------------------------------------------------------------- accounts


def test_three_ratios_by_hand_and_with_all_headers() -> None:
    """(a) N steps p / words; (b) 4 N over the message; (c) 2 (p - 1) c / p^2."""
    numel, workers, steps, words, length = 60, 3, 5, 0, 0
    sim = Simulation({"x": torch.zeros(40), "y": torch.zeros(20)}, VGC(1.0, positions="word"), workers)
    twins = [Channel(VGC(1.0, positions="word"), sim.parameters, rank=w, size=workers) for w in range(workers)]
    layout = twins[0].layout(["x", "y"])
    for t in range(steps):
        flats = [torch.randn(numel, generator=torch.Generator().manual_seed(10 * t + w)) for w in range(workers)]
        named = [{p.name: view for p, view in layout.views(flat)} for flat in flats]
        squares = [{name: g.square() / 2 for name, g in own.items()} for own in named]
        sim.exchange(named, moments=squares)
        for twin, flat in zip(twins, flats, strict=True):
            sent = twin.send(layout, Given(flat, moment=flat.square() / 2))
            in_message = (sent.message.numel() - 16 - 8 - 4 - 4 - 4) / 4  # envelope, length, tag, count, two exponents
            assert in_message == sent.elements
            words += int(in_message)
            length += sent.message.numel()
            twin.finish()
    account = sim.ledger.summary()
    assert 0 < words < numel * workers * steps
    assert account["ratio_elements"] == numel * steps * workers / words
    rounded = 2 * steps * torch.finfo(torch.float64).eps  # a mean a step, and its sum
    assert account["ratio_message"] == pytest.approx(4 * numel * steps * workers / length, rel=rounded)
    assert account["ratio_effective"] == 2 * 2 * account["ratio_elements"] / 9


def test_ratios_of_elements_are_absent_where_a_format_does_not_count() -> None:
    sim = Simulation({"x": torch.zeros(40)}, Plain(ScaledSign()), 2)
    sim.exchange([{"x": torch.ones(40)}] * 2)
    assert "ratio_elements" not in sim.ledger.summary()
    assert sim.ledger.summary()["ratio_message"] > 1


class Decay(NamedTuple):
    """Where weight decay acts: in the optimizer, or (wrongly) in the gradients before they are exchanged."""

    optimizer: float = 0.0
    gradient: float = 0.0


def train_with(decay: Decay, steps: int = 40) -> tuple[list[Tensor], list[Tensor]]:
    """Linear regression with two workers, gradients and moments taken at the moving parameters.

    Gives r and v of worker 0 after each step, and what they would be for the samples' gradients alone.
    """
    torch.manual_seed(0)
    model = nn.Linear(12, 1).double()
    named = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=decay.optimizer)
    sim = Simulation(named, VGC(values="full"), 2, optimizer=optimizer)
    twin = Worker(VGC(values="full"), 12)
    kept, expected = [], []
    with watch(model) as moments:
        for t in range(steps):
            gradients, squares = [], []
            for w in range(2):
                x = torch.randn(16, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2 * t + w))
                model.zero_grad()
                (model(x) - x[:, :1] - 0.5).square().mean().backward()
                gradients.append({name: p.grad.clone() for name, p in named.items() if p.grad is not None})
                squares.append(moments.take())
            twin.send(gradients[0]["weight"].view(-1), squares[0]["weight"].view(-1))
            for own in gradients:
                for name, gradient in own.items():
                    gradient.add_(named[name].detach(), alpha=decay.gradient)
            sim.step(gradients, squares)
            state = sim.channels[0].worker
            kept.append(torch.cat([state.view("weight", slot) for slot in ("total", "squares")]))
            expected.append(torch.cat([twin.state["total"], twin.state["squares"]]))
    return kept, expected


def test_weight_decay_stays_outside() -> None:
    """The optimizer's decay moves the parameters, and through them later gradients; r and v take in gradients alone.

    With decay in the optimizer, both are bit for bit what the samples' gradients at the same points give, and others
    than in a run without decay. With decay within the gradients they never are.
    """
    plain, plain_twin = train_with(Decay())
    decayed, decayed_twin = train_with(Decay(optimizer=0.5))
    mixed, mixed_twin = train_with(Decay(gradient=0.5))
    assert all(map(torch.equal, plain, plain_twin))
    assert all(map(torch.equal, decayed, decayed_twin))
    assert 0 < torch.stack(plain)[:, :12].count_nonzero() < 40 * 12  # some wait, some were sent
    assert not torch.equal(plain[-1], decayed[-1])
    assert not any(map(torch.equal, mixed, mixed_twin))


# ------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: VGC(0.0), "vgc alpha must be a positive number"),
        (lambda: VGC(-1.0), "vgc alpha must be a positive number"),
        (lambda: VGC(math.nan), "vgc alpha must be a positive number"),
        (lambda: VGC(math.inf), "vgc alpha must be a positive number"),
        (lambda: VGC("much"), r"a positive number, warmup\(...\) or target\(...\), got 'much'"),
        (lambda: VGC(Warmup(0.5, -1.0, 3)), "warmup runs between two positive numbers"),
        (lambda: VGC(zeta=0.0), r"zeta must lie in \(0, 1\]"),
        (lambda: VGC(zeta=1.001), r"zeta must lie in \(0, 1\]"),
        (lambda: VGC(zeta=None), r"zeta must lie in \(0, 1\]"),
        (lambda: VGC(values="int8"), "unknown value format 'int8'; known: full"),
        (lambda: VGC(values="power4"), "unknown value format 'power4'; known: full"),
        (lambda: TopK(0.1, values="qsgd4"), "unknown value format 'qsgd4'; known: full"),
        (lambda: VGC(positions="word", values="qsgd4"), "values must be exponent4, got qsgd4"),
        (lambda: VGC(values=["a"]), r"unknown value format \['a'\]; known: full"),
        (lambda: VGC(positions="bitmap"), "positions must be entropy or word, got 'bitmap'"),
        (lambda: VGC(values="full", positions="word"), "leaves 4 bits for a value"),
        (lambda: VGC(drop_small="yes"), "drop_small must be True or False"),
        (lambda: Hybrid(0.0), "hybrid tau must be a positive number"),
        (lambda: Hybrid(-0.1), "hybrid tau must be a positive number"),
        (lambda: Hybrid(0.1, alpha=0), "hybrid alpha must be a positive number"),
        (lambda: Hybrid(0.1, zeta=2), "hybrid zeta must lie in"),
        (lambda: Target(1), "target ratio must be above 1"),
        (lambda: Target(100, start=0), "target start must be a positive number"),
        (lambda: Target(100, gain=0.5), "target gain must lie in"),
    ],
)
def test_values_out_of_bounds_are_refused_when_built(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make()


def test_the_hybrids_alpha_is_given_by_name() -> None:
    """Others write Hybrid(alpha, tau): two bare numbers could mean either."""
    with pytest.raises(TypeError, match="positional"):
        Hybrid(2.0, 0.01)  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"positional arguments but 3 were given\n  hybrid\(2.0, 0.01\)\n  \^"):
        thinwire.parse("hybrid(2.0, 0.01)")
    assert thinwire.parse("hybrid(0.01, alpha=2)") == Hybrid(alpha=2, tau=0.01)
    assert str(Hybrid(0.01, alpha=3)) == "hybrid(0.01, alpha=3)"


def test_a_text_out_of_bounds_shows_where() -> None:
    with pytest.raises(ConfigError, match=r"zeta must lie in .*\n  vgc\(1.5, zeta=2\)\n  \^"):
        thinwire.parse("vgc(1.5, zeta=2)")


def test_a_simulation_without_moments_is_refused_with_its_remedy() -> None:
    sim = Simulation({"x": torch.zeros(3)}, VGC(), 1)
    with pytest.raises(AttachError, match=r"vgc\(\) needs the second moments .*: pass each worker's .* as moments="):
        sim.exchange([{"x": torch.ones(3)}])


@pytest.mark.parametrize(
    ("moments", "problem"),
    [
        ([{"x": torch.ones(3)}], "2 workers need 2 second moments, got 1"),
        ([{"x": torch.ones(3)}, {}], r"worker 1 gives a gradient of 'x' without the moment vgc\(\) needs"),
        ([{"x": torch.ones(3)}, {"y": torch.ones(3)}], "worker 1 gives a second moment of 'y', which is no parameter"),
        ([{"x": torch.ones(3)}, {"x": torch.ones(4)}], r"worker 1's second moment of 'x' has shape \(4,\)"),
    ],
)
def test_moments_that_do_not_fit_are_refused(moments: list[dict[str, Tensor]], problem: str) -> None:
    sim = Simulation({"x": torch.zeros(3)}, VGC(), 2)
    with pytest.raises(ConfigError, match=problem):
        sim.exchange([{"x": torch.ones(3)}] * 2, moments=moments)
    assert sim.channels[0].step == 0


@pytest.mark.parametrize("terms", [2, {"x": 2}, {"x": 2, "other": 9}], ids=str)
def test_a_simulation_refuses_a_batch_that_alpha_does_not_allow(terms: Any) -> None:
    """As DDP does, where it is told how many gradients were squared; nothing has moved, and more samples go on."""
    x = nn.Parameter(torch.ones(3))
    sim = Simulation({"x": x}, VGC(2.0), 2, optimizer=torch.optim.SGD([x], lr=0.1))
    given, squares = [{"x": torch.ones(3)}] * 2, [{"x": torch.ones(3) / 8}] * 2
    for call in (sim.step, sim.exchange):
        with pytest.raises(ConfigError, match=r"parameter 'x'.*2 on some rank.*alpha = 2.0 .* larger batches"):
            call(given, moments=squares, terms=terms)
    assert (sim.channels[0].step, x.tolist()) == (0, [1, 1, 1])
    sim.step(given, squares, terms=3)
    sim.step(given, squares, terms=2)  # a parameter is asked for once: a short batch at the end of an epoch is no error
    assert sim.channels[0].step == 2


def test_moments_below_zero_are_refused() -> None:
    sim = Simulation({"x": torch.zeros(3), "none": torch.zeros(0)}, VGC(), 2)
    fine, bad = torch.ones(3), torch.tensor([1.0, -0.25, 1.0])
    none = torch.zeros(0)
    with pytest.raises(ConfigError, match=r"worker 1's second moment of 'x' has -0.25 in it, .* 0 or more"):
        sim.exchange([{"x": fine}] * 2, moments=[{"x": fine}, {"x": bad}])
    assert sim.channels[0].step == 0
    sim.exchange([{"x": fine, "none": none}] * 2, moments=[{"x": fine, "none": none}] * 2)


def test_a_route_asks_for_moments_only_where_a_rule_needs_them() -> None:
    sim = Simulation(
        {"x": torch.zeros(3), "y": torch.zeros(3)}, Route({"x": VGC(), "*": Plain(TopK(1.0))}, min_numel=0), 1
    )
    out = sim.exchange([{"x": torch.ones(3), "y": torch.ones(3)}], moments=[{"x": torch.full((3,), 0.1)}])
    assert out["x"].tolist() == out["y"].tolist() == [1, 1, 1]
    assert sim.channels[0].needs == {Need.MOMENTS}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("rule", [VGC(), Hybrid(0.1), Route({"y": VGC(), "*": MemSGD(TopK(1))}, 0)], ids=str)
def test_squares_that_are_not_finite_undo_the_step_as_such_gradients_do(rule: Any, bad: float) -> None:
    sims = [Simulation({"x": torch.zeros(2), "y": torch.zeros(3)}, rule, 2) for _ in range(2)]
    sizes = {"x": 0.1, "y": 0.1}

    def exchange(sim: Simulation, t: int, poison: float) -> dict[str, Tensor]:
        drawn = [{"x": torch.randn(2), "y": torch.randn(3)} for _ in range(2)]
        squares = [{name: g.square() / 2 for name, g in own.items()} for own in drawn]
        squares[1]["y"][1] += poison
        return sim.exchange(drawn, sizes, squares)

    for t in range(5):
        torch.manual_seed(t)
        clean = exchange(sims[0], t, 0.0)
        with pytest.raises(NonFiniteGradient, match=r"rank 1 computed .*squares.*'y'") as caught:
            exchange(sims[1], t, bad)
        assert (caught.value.rank, caught.value.parameter, caught.value.step) == (1, "y", t)
        torch.manual_seed(t)
        hit = exchange(sims[1], t, 0.0)
        assert all(torch.equal(clean[name], hit[name]) for name in clean)


@pytest.mark.parametrize("rule", [VGC(2.0), Hybrid(0.1), VGC(Target(9, start=2.0)), VGC(Warmup(0.1, 2.0, 9))], ids=str)
def test_a_batch_that_alpha_does_not_allow_is_refused(rule: Feedback) -> None:
    rule.admit_terms("x", 3)
    with pytest.raises(ConfigError, match=r"parameter 'x'.*2 on some rank.*alpha = 2.0 .* larger batches"):
        rule.admit_terms("x", 2)

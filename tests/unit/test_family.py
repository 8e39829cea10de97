"""The rules of EF21's family: what they refuse, what they say, and what engines give them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from thinwire import (
    CLAG,
    EF21,
    EF21BC,
    EF21HB,
    EF21P,
    EF21PAGE,
    EF21PP,
    EF21SGD2M,
    EF21W,
    EFBV,
    MARINA,
    QSGD,
    Feedback,
    Identity,
    Key,
    Layout,
    RandK,
    Simulation,
    ThreePCv2,
    ThreePCv4,
    ThreePCv5,
    TopK,
    Unbias,
    parse,
    simulate,
)
from thinwire.errors import AttachError, ConfigError
from thinwire.feedback import Need, Signal, rule_of
from thinwire.payload import Empty, Partial, Reader, Sum, pack_payload, unpack_payload
from thinwire.payload.nested import SECOND

TOP = TopK(count=1)
UNBIASED = Unbias(RandK(0.5))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: EF21PP(TOP, 0.0), r"ef21pp probability must lie in \(0, 1\], got 0.0"),
        (lambda: EF21PP(TOP, 1.5), "got 1.5"),
        (lambda: EF21PAGE(TOP, math.nan), "ef21page probability"),
        (lambda: ThreePCv5(TOP, -1), "threepcv5 probability"),
        (lambda: MARINA(UNBIASED, 2), "marina probability"),
        (lambda: MARINA(TOP, 0.5), "marina takes an unbiased compressor.*threepcv5 is its form for biased ones"),
        (lambda: EF21BC(TOP, 0.1), "ef21bc takes a compressor for the server"),
        (lambda: EF21HB(TOP, eta=1.0), r"ef21hb eta must lie in \[0, 1\), got 1.0"),
        (lambda: EF21SGD2M(TOP, eta=0), r"ef21sgd2m eta must lie in \(0, 1\]"),
        (lambda: EF21W(TOP, ()), "a positive number for each worker"),
        (lambda: EF21W(TOP, (1.0, -1.0)), "a positive number for each worker"),
        (lambda: EFBV(TOP, lam=0.0), r"efbv lam must lie in \(0, 1\]"),
        (lambda: EFBV(TOP, nu=2), "efbv nu"),
        (lambda: CLAG(TOP, zeta=-1), "clag zeta must be at least 0, got -1"),
        (lambda: ThreePCv2(TOP, TOP), "threepcv2 compresses the change by an unbiased compressor"),
        (lambda: ThreePCv4(TOP, 3), "threepcv4 takes a second compressor"),
        (lambda: EF21P(TOP, TOP), "ef21p takes a rule such as ef21"),
        (lambda: EF21P(EF21(TOP), 0.1), "ef21p takes a compressor such as topk"),
        (lambda: EF21P(EF21P(EF21(TOP), TOP), TOP), "ef21p takes a rule such as ef21"),
        (lambda: Unbias(TOP), "unbias scales a rand-k, got topk"),
        (lambda: Unbias(RandK(0.1, values="float16")), "constant density whose values travel as they are"),
        (lambda: EF21PP("topk", 0.5), "ef21pp takes a compressor"),
        (lambda: CLAG(TOP, start="ones"), "clag start must be one of"),
    ],
)
def test_what_the_rules_refuse_when_built(build: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build()


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (EF21BC(TOP, QSGD(1, 100)), r"qsgd\(1, .*'w' \(100 numbers\) has variance 10 > 1"),
        (ThreePCv4(TOP, QSGD(1, 100)), "would amplify errors"),
        (EF21P(EF21(TOP), QSGD(1, 100)), "would amplify errors"),
        (EF21P(EF21(QSGD(1, 100)), TOP), "would amplify errors"),
        (EFBV(Unbias(RandK(count=10))), r"variance 9, so h would not converge with lam = 1.0: take .* = 0.1"),
    ],
    ids=str,
)
def test_what_the_rules_refuse_of_a_parameter(rule: Feedback, words: str) -> None:
    with pytest.raises(AttachError, match=words):
        rule_of(rule, "w", 100)


def test_variance_is_no_obstacle_where_the_rule_is_made_for_it() -> None:
    assert rule_of(EFBV(Unbias(RandK(count=10)), lam=0.1), "w", 100)
    assert rule_of(MARINA(Unbias(RandK(count=10)), 0.1), "w", 100)


def test_weights_belong_to_a_number_of_workers() -> None:
    with pytest.raises(AttachError, match="smoothness of 2 workers, this run has 3"):
        Simulation({"x": torch.zeros(2)}, EF21W(TOP, (1.0, 2.0)), 3)


def test_a_tuple_is_read_back() -> None:
    for smoothness in ((1.0,), (1.0, 2.5)):
        rule = EF21W(TOP, smoothness)
        assert parse(str(rule)) == rule
    assert str(rule) == "ef21w(topk(count=1), smoothness=(1.0, 2.5))"


ONE = Layout.of([("x", 0, (4,))])
TWO = Layout.of([("a", 0, (2,)), ("b", 1, (2,))])


def state_of(rule: Feedback, **values: list[float]) -> dict[str, Tensor]:
    return {slot.name: torch.tensor(values.get(slot.name, [0.0] * 4)) for slot in rule.slots}


def test_a_lazy_worker_speaks_of_the_parameters_that_moved_away() -> None:
    """a: |x - h|^2 = 4 > 1 = |x - y|^2 fires; b: 1 > 4 does not."""
    rule = CLAG(TOP, zeta=1.0)
    state = state_of(rule, local=[0.0, 0, 0, 0], previous=[1.0, 0, 3, 0])
    payload = rule.send(Signal(torch.tensor([2.0, 0, 1, 0])), TWO, state, Key())
    assert isinstance(payload, Partial)
    assert payload.chosen.tolist() == [True, False]
    assert state["local"].tolist() == [2, 0, 0, 0]
    assert state["previous"].tolist() == [2, 0, 1, 0]
    assert isinstance(rule.send(Signal(torch.tensor([2.0, 0, 0, 0])), TWO, state, Key()), Empty)


def test_an_absent_worker_is_silent_and_changes_nothing() -> None:
    """All take part in the first round; later, with so small a probability, nobody does."""
    x = torch.zeros(4)
    simulation = Simulation({"x": x}, EF21PP(TOP, 2.0**-40), workers=1)
    first = simulation.exchange([{"x": torch.tensor([1.0, 2, 3, 4])}])
    whole = simulation.ledger.last_step()["message_bytes"]
    second = simulation.exchange([{"x": torch.zeros(4)}])
    assert first["x"].tolist() == second["x"].tolist() == [1, 2, 3, 4]
    assert simulation.channels[0].worker.view("x", "local").tolist() == [1, 2, 3, 4]
    assert simulation.ledger.last_step()["message_bytes"] <= whole - 4 * 4


@pytest.mark.parametrize("second", [TopK(0.5), RandK(0.5, shared=True), QSGD(3, 8)], ids=str)
def test_a_sum_and_a_choice_are_unpacked_as_they_were_packed(second: TopK | RandK | QSGD) -> None:
    layout, key = Layout.of([("a", 0, (7,)), ("b", 1, (5,)), ("c", 2, (9,))]), Key(1, 2, 3)
    x = torch.randn(layout.numel, generator=torch.Generator().manual_seed(0))
    both = Sum(TOP(x, layout, key), second(x, layout, key.stream(SECOND)))
    part = layout.select([True, False, True])
    some = Partial(torch.tensor([True, False, True]), second(torch.cat([x[:7], x[12:]]), part, key), layout)
    for payload in (both, some):
        reader = Reader(pack_payload(payload))
        arrived = unpack_payload(reader, layout, key, torch.float32)
        reader.finish()
        assert torch.equal(arrived.decode(layout, torch.float32), payload.decode(layout, torch.float32))
    assert both.elements is None or both.elements > 3
    assert some.decode(layout, torch.float32)[7:12].tolist() == [0] * 5


def test_streams_of_a_key_are_unlike_each_other() -> None:
    numbers = {Key(seed, step, 1).stream(n).at(2).number for seed in (0, -1) for step in range(9) for n in range(9)}
    assert len(numbers) == 2 * 9 * 9


class Bowls:
    """Two quadratics with noise that depends on the step alone."""

    workers = 2

    def start(self) -> dict[str, Tensor]:
        return {"x": torch.zeros(6, dtype=torch.float64)}

    def gradient(self, worker: int, x: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        noise = torch.randn(6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        return {"x": x["x"] - (1.0 + worker) + noise}

    def loss(self, x: Mapping[str, Tensor]) -> float:
        return float((x["x"] - 1.5).square().sum())


class FullBowls(Bowls):
    full = 0

    def full_gradient(self, worker: int, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.full += 1
        return {"x": x["x"] - (1.0 + worker)}


def test_what_a_rule_needs_must_be_given() -> None:
    made = Simulation({"x": torch.zeros(6)}, MARINA(UNBIASED, 0.5), 2)
    gradients = [{"x": torch.ones(6)}] * 2
    with pytest.raises(AttachError, match="previous point, on the same samples: pass each worker's as previous="):
        made.exchange(gradients)
    with pytest.raises(ConfigError, match="worker 0 gives a gradient of 'x' without the previous one marina"):
        made.exchange(gradients, previous=[{}, {}])
    with pytest.raises(ConfigError, match="previous gradient of 'x' has shape"):
        made.exchange(gradients, previous=[{"x": torch.ones(3)}] * 2)
    with pytest.raises(ArithmeticError):
        made.exchange(gradients, previous=[{"x": torch.full((6,), math.nan)}] * 2)
    assert made.exchange(gradients, previous=gradients)["x"].tolist() == [1] * 6


def test_full_gradients_are_asked_for_at_times_and_the_problem_must_have_them() -> None:
    with pytest.raises(AttachError, match=r"full_gradient\(worker, x\)"):
        simulate(Bowls(), EF21PAGE(TOP, 0.25), steps=1, step_size=0.1)
    problem = FullBowls()
    run = simulate(problem, EF21PAGE(TOP, 0.25), steps=200, step_size=0.1)
    assert 20 <= problem.full / 4 <= 90  # at two points for two workers; a binomial of mean 50, standard deviation 6
    assert run.losses[-1] < 1e-6
    assert simulate(Bowls(), EF21(TOP), steps=200, step_size=0.1).losses[-1] > 1e-2


def test_the_same_noise_at_both_points_is_no_noise_to_marina() -> None:
    """Whole rounds bring noise in, and with p = 2^-40 there is none but the first; each step halves what is left."""
    run = simulate(Bowls(), MARINA(Identity(), 2.0**-40), steps=60, step_size=0.5)
    first = torch.randn(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert run.x["x"].tolist() == pytest.approx((1.5 - first).tolist(), abs=60 * torch.finfo(torch.float64).eps * 8)


def test_workers_know_the_model_by_what_was_broadcast() -> None:
    x = torch.nn.Parameter(torch.zeros(4))
    rule = EF21P(EF21(Identity()), TOP)
    made = Simulation({"x": x}, rule, 1, optimizer=torch.optim.SGD([x], lr=1.0))
    made.step([{"x": torch.tensor([-4.0, -1, -3, 0])}])
    assert x.tolist() == [4, 1, 3, 0]
    assert made.points["x"].tolist() == [4, 0, 0, 0]
    made.step([{"x": torch.tensor([-4.0, -1, -3, 0])}])
    assert made.points["x"].tolist() == [4, 0, 6, 0]
    other = Simulation({"x": x}, rule, 1)
    other.load_state_dict(made.state_dict())
    assert torch.equal(other.points["x"], made.points["x"])


def test_where_nothing_is_broadcast_workers_know_the_parameters_themselves() -> None:
    x = torch.nn.Parameter(torch.zeros(4))
    assert Simulation({"x": x}, EF21(TOP), 1).points["x"] is x


def test_needs() -> None:
    assert ThreePCv5(TOP, 0.5).needs == MARINA(UNBIASED, 0.5).needs == {Need.PREVIOUS}
    assert EF21PAGE(TOP, 0.5).needs == {Need.PREVIOUS, Need.FULL}
    assert EF21P(EF21PAGE(TOP, 0.5), TOP).needs == {Need.PREVIOUS, Need.FULL, Need.BROADCAST}
    assert all(not rule.needs for rule in (EF21PP(TOP, 0.5), CLAG(TOP), EFBV(TOP), ThreePCv2(TOP, UNBIASED)))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "rule",
    [
        EF21SGD2M(TopK(0.1)),
        EF21PP(TopK(0.1), 0.5),
        EF21BC(TopK(0.1), TopK(0.2)),
        EF21HB(TopK(0.1)),
        EF21W(TopK(0.1), (1.0, 2.0)),
        EFBV(Unbias(RandK(0.2)), lam=0.2),
        CLAG(TopK(0.1)),
        CLAG(TopK(0.1), zeta=3.0),
        ThreePCv2(TopK(0.1), UNBIASED),
        ThreePCv4(TopK(0.1), RandK(0.1, shared=True)),
        ThreePCv5(TopK(0.1), 0.3),
        MARINA(UNBIASED, 0.3),
    ],
    ids=str,
)
def test_the_family_runs_on_a_gpu_as_on_the_cpu(rule: Feedback) -> None:
    """The sums differ in fused roundings at most."""
    shapes = {"x": (100,), "y": (30,)}
    runs: list[list[float]] = []
    for device in ("cpu", "cuda"):
        made = Simulation({name: torch.zeros(shape, device=device) for name, shape in shapes.items()}, rule, 2)
        previous: list[dict[str, Tensor]] | None = None
        for t in range(6):
            drawn = [
                {
                    name: torch.randn(shape, generator=torch.Generator().manual_seed(10 * t + w)).to(device)
                    for name, shape in shapes.items()
                }
                for w in range(2)
            ]
            out = made.exchange(drawn, previous=previous or drawn)
            previous = drawn
        runs.append(torch.cat([out[name] for name in shapes]).tolist())
    assert runs[0] == pytest.approx(runs[1], abs=64 * torch.finfo(torch.float32).eps)

"""All workers in one call: bit for bit what n channels compute and count."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest
import torch
from tests.methods import METHODS
from torch import Tensor

from thinwire import (
    EF21,
    EF21PP,
    EFBV,
    MARINA,
    QSGD,
    Compressor,
    Contractive,
    Feedback,
    HardThreshold,
    Identity,
    MemSGD,
    Natural,
    Plain,
    RandK,
    Route,
    ScaledSign,
    Simulation,
    ThreePCv5,
    TopK,
    Unbias,
)
from thinwire.engines.crowd import Crowd, JointKey, Seen, Stack, joint_layout, refusal
from thinwire.errors import AttachError, ConfigError, NonFiniteGradient
from thinwire.feedback import Need
from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.payload import Empty, pack_payload

WORKERS, STEPS = 3, 6
SHAPES = {"w": (5, 7), "none": (0,), "b": (11,)}
SIZES = [0.5, 0.5, 0.25, 0.0, 1.0, 1.0]
"""Step sizes that stay, move, and vanish."""


def parameters(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    return {name: torch.zeros(shape, dtype=dtype) for name, shape in SHAPES.items()}


CROWDS = [rule for rule in METHODS if refusal(rule, parameters()) is None]
EITHER_TYPE = [
    pytest.param(rule, dtype, id=f"{rule}-{dtype}", marks=() if (place + narrow) % 2 else pytest.mark.exhaustive)
    for place, rule in enumerate(CROWDS)
    for narrow, dtype in enumerate([torch.float64, torch.float32])
]
"""Every rule in both types; the quick suite takes one of them, in turn, so that every compressor meets both."""


def rounds(dtype: torch.dtype, workers: int = WORKERS, steps: int = STEPS) -> Iterator[dict[str, Tensor]]:
    """Gradients of all workers as rows, with ties and zeros among them."""
    random = torch.Generator().manual_seed(3)
    for _ in range(steps):
        yield {
            name: (torch.randn(workers, *shape, generator=random, dtype=dtype) * 4).round() / 2
            for name, shape in SHAPES.items()
        }


def rows(stacked: dict[str, Tensor], workers: int = WORKERS) -> list[dict[str, Tensor]]:
    return [{name: stack[worker] for name, stack in stacked.items()} for worker in range(workers)]


def assert_same_state(crowd: Crowd, made: Simulation) -> None:
    """Every slot of the workers, and every slot that they share."""
    for slot, state in crowd.state.items():
        kept = [torch.cat([channel.worker.view(name, slot) for name in SHAPES]) for channel in made.channels]
        assert torch.equal(state, torch.stack(kept))
    for slot in (slot for slot in crowd.rule.slots if not slot.per_worker):
        for name in SHAPES:
            assert torch.equal(crowd.server.view(name, slot.name), made.channels[0].server.view(name, slot.name))


@pytest.mark.parametrize(("rule", "dtype"), EITHER_TYPE)
def test_one_call_is_n_channels(rule: Feedback, dtype: torch.dtype) -> None:
    made = Simulation(parameters(dtype), rule, WORKERS, seed=4, ledger_every=2)
    crowd = Crowd(parameters(dtype), rule, WORKERS, seed=4, ledger_every=2)
    before: dict[str, Tensor] | None = None
    for size, now in zip(SIZES, rounds(dtype), strict=True):
        previous = (before or now) if Need.PREVIOUS in rule.needs else None
        assert crowd.wants_full == made.wants_full
        sizes = dict.fromkeys(SHAPES, size)
        theirs = made.exchange(rows(now), sizes, previous=None if previous is None else rows(previous))
        ours = crowd.exchange(now, size, previous)
        assert {name: ours[name].tolist() for name in SHAPES} == {name: theirs[name].tolist() for name in SHAPES}
        assert crowd.ledger.last_step() == pytest.approx(made.ledger.last_step(), rel=0, abs=0, nan_ok=True)
        before = now
    assert_same_state(crowd, made)
    assert crowd.ledger.summary() == pytest.approx(made.ledger.summary(), rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("rule", [*CROWDS, MARINA(Unbias(RandK(0.2)), 0.3), ThreePCv5(RandK(0.2), 0.3)], ids=str)
def test_what_is_seen_is_all_that_is_looked_at(rule: Feedback) -> None:
    """Everything else is not a number, which would show in the result, the state or the norms."""
    made, crowd = (engine(parameters(), rule, WORKERS, seed=4, ledger_every=2) for engine in (Simulation, Crowd))
    before = None
    for now in rounds(torch.float64):
        places = crowd.seen
        previous = (before or now) if Need.PREVIOUS in rule.needs else None
        theirs = made.exchange(
            rows(now), dict.fromkeys(SHAPES, 0.5), previous=None if previous is None else rows(previous)
        )
        for blank in crowd._blank.values():
            blank.fill_(torch.nan)
        ours = crowd.exchange(_seen(now, places), 0.5, None if previous is None else _seen(previous, places))
        assert {name: ours[name].tolist() for name in SHAPES} == {name: theirs[name].tolist() for name in SHAPES}
        assert crowd.ledger.last_step() == pytest.approx(made.ledger.last_step(), rel=0, abs=0, nan_ok=True)
        before = now
    assert_same_state(crowd, made)


def _seen(stacked: dict[str, Tensor], places: Tensor | None) -> dict[str, Tensor] | Seen:
    if places is None:
        return stacked
    flat = torch.cat([stack.reshape(WORKERS, -1) for stack in stacked.values()], dim=1).view(-1)
    return Seen(places, flat[places])


def test_random_coordinates_are_known_before_the_gradient() -> None:
    for rule in (EF21(RandK(count=2)), Plain(RandK(0.1)), EFBV(RandK(0.1)), MARINA(Unbias(RandK(0.1)), 2.0**-40)):
        crowd = Crowd({"x": torch.zeros(100)}, rule, 50, ledger_every=0)
        gradients = {"x": torch.ones(50, 100)}
        crowd.exchange(gradients, 1.0, gradients)
        assert crowd.seen is not None
        assert crowd.seen.numel() == 50 * (2 if rule.name == "ef21" else 10)
    for rule in (EF21(TopK(count=2)), MemSGD(RandK(count=2)), EF21PP(RandK(count=2), 0.5)):
        assert Crowd({"x": torch.zeros(100)}, rule, 50).seen is None


def test_what_is_seen_must_be_finite() -> None:
    crowd = Crowd(parameters(), Plain(RandK(0.5)), WORKERS)
    places = crowd.seen
    assert places is not None
    values = torch.zeros(places.numel(), dtype=torch.float64)
    values[-1] = torch.inf
    with pytest.raises(NonFiniteGradient, match=r"rank 2.*'b' at step 0"):
        crowd.exchange(Seen(places, values), 1.0)


def test_most_methods_need_no_channels() -> None:
    names = {rule.name for rule in CROWDS}
    assert names >= {
        "plain",
        "memsgd",
        "ef21",
        "ef21plus",
        "ef21sgdm",
        "ef21pp",
        "ef21bc",
        "ef21page",
        "ef21w",
        "marina",
    }


REASONS = {
    "clag": "clag does not treat each piece by itself",
    "memadam": "memadam does not treat each piece by itself",
    "threepcv2": "threepcv2 does not treat each piece by itself",
    "threepcv4": "threepcv4 does not treat each piece by itself",
    "ef21p": "ef21p needs a server that broadcasts the model",
    "vgc": "vgc needs the second moments",
    "hybrid": "hybrid needs the second moments",
}


@pytest.mark.parametrize("rule", [rule for rule in METHODS if rule not in CROWDS], ids=str)
def test_a_method_that_goes_by_channels_has_its_reason(rule: Feedback) -> None:
    """A compressor that chooses over the whole buffer, a memory in bytes, or one of few rules."""
    beyond, in_bytes = TopK(0.3, per="bucket"), any(slot.bits == 8 for slot in rule.slots)
    other = f"{rule.name} keeps its memory in bytes" if in_bytes else f"{beyond} does not compress each piece by itself"
    agrees = Need.AGREEMENT in rule.needs
    reason = f"{rule.name} needs {Need.AGREEMENT.value}" if agrees else REASONS.get(rule.name, other)
    assert rule.name in REASONS or in_bytes or agrees or rule.compressor == beyond
    assert str(refusal(rule, parameters())).startswith(reason)
    with pytest.raises(ConfigError, match=re.escape(f"workers cannot be simulated together: {reason}")):
        Crowd(parameters(), rule, WORKERS)


def test_a_route_goes_by_channels() -> None:
    assert "rules of their own" in str(refusal(Route({"*": EF21(TopK(0.1))}), parameters()))


@pytest.mark.parametrize(
    "compressor",
    [TopK(0.2), RandK(0.2), RandK(0.2, shared=True), RandK(count=0.5), Identity(), HardThreshold(1.0), ScaledSign(),
     ScaledSign(3), QSGD(3, 8), QSGD(5), Natural(), Contractive(QSGD(2, 8)), Unbias(RandK(0.2))],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("ranks", [range(4), (1, 4, 6)], ids=str)
def test_a_joint_payload_is_cut_into_the_workers_messages(compressor: Compressor, ranks: Sequence[int]) -> None:
    layout = Layout.of([(name, index, shape) for index, (name, shape) in enumerate(SHAPES.items())])
    vectors = torch.randn(len(ranks), layout.numel, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    joint = compressor(vectors.view(-1), joint_layout(layout, len(ranks)), JointKey(3, 5, ranks=ranks))
    stack = Stack(joint, layout, ranks, 8)
    for rank in range(stack.workers if isinstance(ranks, tuple) else len(ranks)):
        row = ranks.index(rank) if rank in ranks else None
        own = Empty() if row is None else compressor(vectors[row], layout, Key(3, 5, rank))
        assert pack_payload(stack[rank]).tolist() == pack_payload(own).tolist()


def test_parameters_of_two_types_go_by_channels() -> None:
    mixed = {"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.float64)}
    for others in (mixed, {"a": torch.zeros(2, dtype=torch.float16)}):
        assert "of one type" in str(refusal(EF21(TopK(0.5)), others))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_names_its_worker_and_moves_nothing(bad: float) -> None:
    crowd = Crowd(parameters(), MemSGD(TopK(count=1)), WORKERS)
    now = next(rounds(torch.float64))
    crowd.exchange(now, 1.0)
    kept = {name: state.clone() for name, state in crowd.state.items()}
    now["b"][2, 4] = bad
    with pytest.raises(NonFiniteGradient, match=r"rank 2.*'b' at step 1"):
        crowd.exchange(now, 1.0)
    assert all(torch.equal(crowd.state[name], kept[name]) for name in kept)


def test_a_mean_that_overflows_is_a_fault() -> None:
    crowd = Crowd({"x": torch.zeros(1)}, EF21(TopK(count=1)), 2)
    crowd.exchange({"x": torch.full((2, 1), 3e38)}, 1.0)
    with pytest.raises(NonFiniteGradient, match="does not fit"):
        crowd.exchange({"x": torch.full((2, 1), -3e38)}, 1.0)


def test_workers_and_parameters_are_checked() -> None:
    with pytest.raises(ConfigError, match="at least 1 worker, got 0"):
        Crowd(parameters(), EF21(TopK(0.1)), 0)
    with pytest.raises(AttachError, match="amplify"):
        Crowd({"x": torch.zeros(5000)}, EF21(QSGD(1)), 2)


def test_ten_thousand_workers_hold_one_vector_each() -> None:
    """8 bytes a number of g_i; no message is kept, and one that fits all is packed once."""
    crowd = Crowd({"x": torch.zeros(30, dtype=torch.float64)}, EF21(TopK(count=1)), 10_000)
    crowd.exchange({"x": torch.ones(10_000, 30, dtype=torch.float64)}, 1.0)
    out = crowd.exchange({"x": torch.zeros(10_000, 30, dtype=torch.float64)}, 1.0)["x"]
    rounding = 2 * 10_000 * torch.finfo(torch.float64).eps  # of two sums of 10,000 numbers
    assert out.tolist() == pytest.approx([0.0] + [1.0] * 29, rel=0, abs=rounding)
    assert sum(state.numel() for state in crowd.state.values()) == 10_000 * 30


@pytest.mark.parametrize("probability", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("compressor", [TopK(count=2), RandK(0.3), HardThreshold(1.0)], ids=str)
def test_gradients_of_those_who_are_heard_are_enough(compressor: Compressor, probability: float) -> None:
    """The ledger's norms are worker 0's, every other step, whether or not it sends."""
    rule = EF21PP(compressor, probability)
    crowd = Crowd(parameters(), rule, 8, seed=2, ledger_every=2)
    made = Simulation(parameters(), rule, 8, seed=2, ledger_every=2)
    sent = set()
    for now in rounds(torch.float64, workers=8, steps=20):
        heard = crowd.heard
        sent.add(len(heard))
        theirs = made.exchange(rows(now, 8))
        ours = crowd.exchange({name: stack[list(heard)] for name, stack in now.items()}, 1.0, ranks=heard)
        assert {name: ours[name].tolist() for name in SHAPES} == {name: theirs[name].tolist() for name in SHAPES}
        assert crowd.ledger.last_step() == pytest.approx(made.ledger.last_step(), rel=0, abs=0, nan_ok=True)
    kept = [torch.cat([channel.worker.view(name, "local") for name in SHAPES]) for channel in made.channels]
    assert torch.equal(crowd.state["local"], torch.stack(kept))
    assert (0 in sent) == (probability < 0.1)  # a round in which nobody sends is among them


@pytest.mark.parametrize("compressor", [TopK(count=2), RandK(0.3), HardThreshold(1.0)], ids=str)
def test_who_stays_away_says_nothing(compressor: TopK | RandK | HardThreshold) -> None:
    crowd = Crowd({"x": torch.zeros(9)}, EF21PP(compressor, 0.5), 8, seed=2)
    made = Simulation({"x": torch.zeros(9)}, EF21PP(compressor, 0.5), 8, seed=2)
    random = torch.Generator().manual_seed(1)
    for _ in range(8):
        now = torch.randn(8, 9, generator=random)
        theirs = made.exchange([{"x": row} for row in now])["x"]
        assert torch.equal(crowd.exchange({"x": now}, 1.0)["x"], theirs)
    assert crowd.ledger.summary()["sent_bytes"] == made.ledger.summary()["sent_bytes"]


def test_one_message_is_packed_to_know_the_size_of_all() -> None:
    """QSGD's numbers that are not zero differ from round to round; the bytes of its messages do not."""
    crowd = Crowd(parameters(torch.float32), Plain(QSGD(3, 8)), WORKERS)
    for now in rounds(torch.float32):
        crowd.exchange(now, 0.1)
    assert len(crowd._sizes) == 1

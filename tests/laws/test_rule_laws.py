"""Laws that every rule obeys, over the one list of methods."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws.gradients import LAYOUTS, eps, streams
from tests.methods import COMPRESSORS, METHODS
from torch import Tensor

from thinwire import (
    EF21,
    VGC,
    EControl,
    EF21Plus,
    Feedback,
    Hybrid,
    Identity,
    Layout,
    MemSGD,
    Plain,
    Route,
    Simulation,
    TopK,
    parse,
)
from thinwire.feedback.increments import Increments
from thinwire.feedback.variance_criterion import Criterion
from thinwire.spec import NAMES

WORKERS = 3
EXHAUSTIVE = pytest.mark.exhaustive
each_method = pytest.mark.parametrize("rule", METHODS, ids=str)
MEMORIES = [rule for rule in METHODS if isinstance(rule, MemSGD)]
each_memory = pytest.mark.parametrize("rule", [rule for rule in MEMORIES if rule.memory == "full"], ids=str)
INCREMENTS = [rule for rule in METHODS if isinstance(rule, Increments)]
EXACT_CRITERIA = [
    VGC(values="full"),
    VGC(1.0, drop_small=True, values="full"),
    VGC(values="full", decay=0.75),
    Hybrid(0.25),
    Hybrid(0.25, decay=0.75),
]
Stream = list[list[Tensor]]


def each_third(rules: Sequence[Feedback], first: int) -> pytest.MarkDecorator:
    """Every rule; the quick suite takes each third from `first` on, and the few criteria.

    In the list, a rule's forms over one compressor come before those over the next: a third of it has every form of a
    rule over a third of the compressors. Three laws that take a while share the list out: each rule meets one of them.
    """
    parameters = [
        pytest.param(rule, id=str(rule), marks=() if place % 3 == first or isinstance(rule, Criterion) else EXHAUSTIVE)
        for place, rule in enumerate(rules)
    ]
    return pytest.mark.parametrize("rule", parameters)


def simulation(rule: Feedback | Route, layout: Layout, dtype: torch.dtype = torch.float64) -> Simulation:
    zeros = {p.name: torch.zeros(p.shape, dtype=dtype) for p in layout.pieces}
    return Simulation(zeros, rule, WORKERS, seed=11)


def exchange(sim: Simulation, layout: Layout, gradients: list[Tensor], step_size: float = 1.0) -> Tensor:
    """One step; the result as a flat vector in the layout's order."""
    named = [{p.name: view.view(p.shape) for p, view in layout.views(g)} for g in gradients]
    moments = [{name: moment(g) for name, g in own.items()} for own in named]
    previous = [{name: 0.75 * g for name, g in own.items()} for own in named]
    out = sim.exchange(named, dict.fromkeys(sim.parameters, step_size), moments, previous)
    with sim.moving():
        for name, parameter in sim.parameters.items():
            parameter.sub_(out[name], alpha=step_size)
    return torch.cat([out[p.name].reshape(-1) for p in layout.pieces])


def moment(gradient: Tensor) -> Tensor:
    """A second moment for rules that need one: g^2 / n with n from 1 to 4, so that some numbers pass and some wait."""
    terms = 1 + torch.arange(gradient.numel(), dtype=gradient.dtype).view(gradient.shape) % 4
    return gradient.square() / terms


def slot(sim: Simulation, worker: int, name: str, layout: Layout) -> Tensor:
    """A slot of one worker (or the common one) as a flat vector."""
    channel = sim.channels[worker]
    per_worker = {s.name for p in channel.parameters for s in channel.worker.slots_of(p)}
    store = channel.worker if name in per_worker else channel.server
    return torch.cat([store.view(p.name, name).reshape(-1) for p in layout.pieces])


@each_method
def test_parse_reads_what_str_writes(rule: Feedback) -> None:
    assert parse(str(rule)) == rule


@each_method
def test_parse_reads_pythons_spelling(rule: Feedback) -> None:
    """As Python shows it, and as people write it: the text form with classes for names."""
    assert parse(repr(rule)) == rule
    assert parse(as_python(str(rule))) == rule
    assert parse(as_python(str(rule), "thinwire.")) == rule
    assert str(parse(repr(rule))) == str(rule)


def as_python(text: str, module: str = "") -> str:
    """The text form with the name of its class for each name: EF21(TopK(0.1)) for ef21(topk(0.1))."""
    return re.sub(r"(\w+)\(", lambda match: f"{module}{NAMES[match[1]].__name__}(", text)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_a_route_reads_back_too(compressor: Feedback) -> None:
    route = Route({"a.*": compressor, "[bc]?": MemSGD(TopK(0.5)), "*": Identity()}, min_numel=3)
    assert parse(str(route)) == route
    assert parse(repr(route)) == route


@each_memory
@settings(max_examples=8)
@given(
    data=st.data(), layout=st.sampled_from(LAYOUTS), schedule=st.sampled_from([(1.0,), (1.0, 0.1), (0.5, 2.0, 0.25)])
)
def test_nothing_is_lost(rule: MemSGD, data: st.DataObject, layout: Layout, schedule: tuple[float, ...]) -> None:
    """In update units, what was applied plus the mean of what is kept equals what was given, under any schedule.

    But for what a decay is to lose: in each step its share of what waited.
    Each of the t steps rounds a handful of times, relative to what has passed through so far.
    """
    stream: Stream = data.draw(streams(layout, torch.float64, workers=WORKERS))
    sim = simulation(rule, layout)
    applied, given_, lost, kept, mass = (torch.zeros(layout.numel, dtype=torch.float64) for _ in range(5))
    for step, gradients in enumerate(stream):
        size = schedule[step % len(schedule)]
        lost += (1 - rule.decay) * kept
        applied += size * exchange(sim, layout, gradients, size)
        given_ += size * sum(gradients) / WORKERS
        mass += size * sum(g.abs() for g in gradients)
        kept = size * sum(slot(sim, worker, "error", layout) for worker in range(WORKERS)) / WORKERS
    scales = mass + mass.max() if mass.numel() else mass  # sign and QSGD round relative to their block's largest number
    assert ((applied + kept + lost - given_).abs() <= 32 * eps(torch.float64) * len(stream) * scales).all()


@pytest.mark.parametrize("rule", [rule for rule in MEMORIES if rule.memory == "int8"], ids=str)
@settings(max_examples=20)
@given(data=st.data(), layout=st.sampled_from(LAYOUTS))
def test_a_memory_in_bytes_loses_less_than_a_unit_of_its_block_a_step(
    rule: MemSGD, data: st.DataObject, layout: Layout
) -> None:
    """A unit is a 127th of the largest magnitude in a worker's block, which the whole vector's bounds."""
    stream: Stream = data.draw(streams(layout, torch.float64, workers=WORKERS))
    sim = simulation(rule, layout)
    sent, given_, mass = (torch.zeros(layout.numel, dtype=torch.float64) for _ in range(3))
    units = 0.0
    for gradients in stream:
        sent += exchange(sim, layout, gradients)
        given_ += sum(gradients) / WORKERS
        mass += sum(g.abs() for g in gradients)
        memories = [slot(sim, worker, "error", layout) for worker in range(WORKERS)]
        units += sum(float(e.abs().max()) for e in memories if e.numel()) / 127 / WORKERS
    kept = sum(memories) / WORKERS
    assert ((sent + kept - given_).abs() <= units + 32 * eps(torch.float64) * len(stream) * mass).all()


@pytest.mark.parametrize("rule", EXACT_CRITERIA, ids=str)
@settings(max_examples=20)
@given(data=st.data(), layout=st.sampled_from(LAYOUTS))
def test_nothing_unambiguous_or_not_is_lost(rule: Criterion, data: st.DataObject, layout: Layout) -> None:
    """Where values are not rounded, what was sent, is kept or (by decay) is lost sums to what was given."""
    stream: Stream = data.draw(streams(layout, torch.float64, workers=WORKERS))
    sim = simulation(rule, layout)
    sent, given_, lost, kept, mass = (torch.zeros(layout.numel, dtype=torch.float64) for _ in range(5))
    for gradients in stream:
        lost += (1 - rule.decay) * kept
        sent += exchange(sim, layout, gradients)
        given_ += sum(gradients) / WORKERS
        mass += sum(g.abs() for g in gradients)
        kept = sum(slot(sim, worker, "total", layout) for worker in range(WORKERS)) / WORKERS
    assert ((sent + kept + lost - given_).abs() <= 32 * eps(torch.float64) * len(stream) * mass).all()


@each_third(INCREMENTS, 0)
@settings(max_examples=4)
@given(data=st.data(), layout=st.sampled_from(LAYOUTS))
def test_the_mean_is_the_mean_of_the_locals(rule: Increments, data: st.DataObject, layout: Layout) -> None:
    """The mean by the rule's own weights; where the server does nothing else, it is what comes out."""
    stream: Stream = data.draw(streams(layout, torch.float64, workers=WORKERS))
    sim = simulation(rule, layout)
    mass = torch.zeros(layout.numel, dtype=torch.float64)
    for gradients in stream:
        out, mean = exchange(sim, layout, gradients), slot(sim, 0, "mean", layout)
        assert type(rule).receive is not Increments.receive or torch.equal(out, mean)
        locals_ = [slot(sim, worker, "local", layout) for worker in range(WORKERS)]
        mass += sum(g.abs() for g in gradients) + sum(v.abs() for v in locals_)
        gap = mean - sum(rule.share(worker, WORKERS) * v for worker, v in enumerate(locals_))
        scales = mass + mass.max() if mass.numel() else mass
        assert (gap.abs() <= 32 * eps(torch.float64) * len(stream) * scales).all()


@pytest.mark.parametrize("rule", [r for r in METHODS if isinstance(r, EF21Plus)], ids=str)
@settings(max_examples=4)
@given(data=st.data(), layout=st.sampled_from(LAYOUTS))
def test_what_comes_out_is_the_mean_of_all_copies(rule: EF21Plus, data: st.DataObject, layout: Layout) -> None:
    stream: Stream = data.draw(streams(layout, torch.float64, workers=WORKERS))
    sim = simulation(rule, layout)
    mass = torch.zeros(layout.numel, dtype=torch.float64)
    for gradients in stream:
        out = exchange(sim, layout, gradients)
        locals_ = [slot(sim, worker, "local", layout) for worker in range(WORKERS)]
        mass += sum(g.abs() for g in gradients) + sum(v.abs() for v in locals_)
        gap = out - sum(locals_) / WORKERS
        scales = mass + mass.max() if mass.numel() else mass
        assert (gap.abs() <= 32 * eps(torch.float64) * len(stream) * scales).all()


@pytest.mark.parametrize("rule", [Plain(Identity()), MemSGD(Identity()), MemSGD(TopK(1.0)), Plain(TopK(1.0))], ids=str)
@settings(max_examples=20)
@given(data=st.data(), layout=st.sampled_from(LAYOUTS), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_no_compression_is_plain_sgd_bit_for_bit(
    rule: Feedback, data: st.DataObject, layout: Layout, dtype: torch.dtype
) -> None:
    stream: Stream = data.draw(streams(layout, dtype, workers=WORKERS))
    sim = simulation(rule, layout, dtype)
    for gradients in stream:
        total = torch.zeros_like(gradients[0])
        for gradient in gradients:
            total += gradient
        assert torch.equal(exchange(sim, layout, gradients), total / WORKERS)


@pytest.mark.parametrize(
    "rule",
    [EF21(Identity()), EF21(Identity(), start="zero"), EF21Plus(TopK(1.0)), EControl(Identity(), eta=1.0)],
    ids=str,
)
@settings(max_examples=20)
@given(data=st.data(), layout=st.sampled_from(LAYOUTS))
def test_increments_without_compression_are_gradient_descent(
    rule: Feedback, data: st.DataObject, layout: Layout
) -> None:
    """local + (g - local) is g up to rounding, so out is the mean (after a zero start's first step)."""
    stream: Stream = data.draw(streams(layout, torch.float64, workers=WORKERS))
    sim = simulation(rule, layout)
    mass = torch.zeros(layout.numel, dtype=torch.float64)
    for step, gradients in enumerate(stream):
        out = exchange(sim, layout, gradients)
        mass += sum(g.abs() for g in gradients)
        wasted = step == 0 and getattr(rule, "start", "") == "zero"
        expected = torch.zeros_like(out) if wasted else sum(gradients) / WORKERS
        assert ((out - expected).abs() <= 16 * eps(torch.float64) * len(stream) * mass).all()


@each_third(METHODS, 0)
@settings(max_examples=3)
@given(data=st.data(), cut=st.integers(0, 5))
def test_save_and_load_mid_run_is_the_uninterrupted_run(rule: Feedback, data: st.DataObject, cut: int) -> None:
    layout = LAYOUTS[-1]
    stream: Stream = data.draw(streams(layout, torch.float32, workers=WORKERS))
    whole, first = simulation(rule, layout, torch.float32), simulation(rule, layout, torch.float32)
    expected = [exchange(whole, layout, g, 0.5 + t) for t, g in enumerate(stream)]
    for step, gradients in enumerate(stream[:cut]):
        exchange(first, layout, gradients, 0.5 + step)
    second = simulation(rule, layout, torch.float32)
    second.load_state_dict(first.state_dict())
    for step, gradients in list(enumerate(stream))[cut:]:
        assert torch.equal(exchange(second, layout, gradients, 0.5 + step), expected[step])


PER_PIECE = [rule for rule in METHODS if "per=bucket" not in str(rule)]


@each_third(PER_PIECE, 1)
@settings(max_examples=3)
@given(data=st.data())
def test_another_layout_makes_no_difference(rule: Feedback, data: st.DataObject) -> None:
    """The same parameters in one bucket, and in two that are cut differently at every step."""
    layout = LAYOUTS[-1]
    stream: Stream = data.draw(streams(layout, torch.float32, workers=WORKERS))
    one, cut = simulation(rule, layout, torch.float32), simulation(rule, layout, torch.float32)
    names = [p.name for p in layout.pieces]
    for step, gradients in enumerate(stream):
        shuffled = names[step:] + names[:step]
        cut._layouts = [cut.channels[0].layout(part) for part in (shuffled[:2], shuffled[2:])]
        assert torch.equal(exchange(one, layout, gradients), exchange(cut, layout, gradients))


@each_third(METHODS, 2)
@settings(max_examples=3)
@given(data=st.data())
def test_a_non_finite_gradient_changes_nothing(rule: Feedback, data: st.DataObject) -> None:
    """A run with a poisoned step in its middle goes on as the run without that step."""
    layout = LAYOUTS[-1]
    stream: Stream = data.draw(streams(layout, torch.float32, workers=WORKERS))
    clean, hit = simulation(rule, layout, torch.float32), simulation(rule, layout, torch.float32)
    for gradients in stream:
        poisoned = [g.clone() for g in gradients]
        poisoned[1][21] = float("nan")
        with pytest.raises(ArithmeticError, match=r"rank 1 .*parameter 'b'"):
            exchange(hit, layout, poisoned)
        assert torch.equal(exchange(hit, layout, gradients), exchange(clean, layout, gradients))


@each_method
@settings(max_examples=1)
@given(data=st.data())
def test_torch_generator_is_never_touched(rule: Feedback, data: st.DataObject) -> None:
    layout = LAYOUTS[1]
    stream: Stream = data.draw(streams(layout, torch.float32, workers=WORKERS))
    before = torch.get_rng_state()
    sim = simulation(rule, layout, torch.float32)
    for gradients in stream:
        exchange(sim, layout, gradients)
    assert torch.equal(torch.get_rng_state(), before)

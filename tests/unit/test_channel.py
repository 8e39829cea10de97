"""One worker's end: whole steps, refused steps, parameters that take no part, and damaged messages."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from thinwire import (
    EF21,
    EF21SGDM,
    QSGD,
    EControl,
    EF21Plus,
    Feedback,
    Identity,
    MemSGD,
    Natural,
    Plain,
    RandK,
    Route,
    ScaledSign,
    TopK,
)
from thinwire.channel import Channel
from thinwire.checkpoint import save
from thinwire.errors import AttachError, NonFiniteGradient, WireError
from thinwire.layout import Layout
from thinwire.ops import first_nonfinite
from thinwire.outgoing import Given, Outgoing
from thinwire.payload import Dense, Empty, Payload, pack_payload
from thinwire.payload.letter import CHECKED, FINITE, sign_
from thinwire.payload.message import fields

SHAPES = {"a": (3, 4), "b": (5,), "c": (0,), "d": (7,)}
TOP = TopK(0.3)
RULES: list[Feedback | Route] = [
    Plain(RandK(0.4)),
    MemSGD(TOP),
    MemSGD(ScaledSign()),
    MemSGD(RandK(0.3, shared=True)),
    EF21(TOP),
    EF21(TOP, start="zero"),
    EF21Plus(TOP),
    EF21SGDM(TopK(0.3, values="exponent4")),
    EControl(TOP),
    Plain(QSGD(4, 3)),
    Plain(Natural()),
    Route({"a": EF21(TOP), "b": Identity(), "*": MemSGD(TopK(0.3, values="float16"))}, min_numel=0),
]
each_rule = pytest.mark.parametrize("rule", RULES, ids=str)
SIZES = dict.fromkeys(SHAPES, 0.1)


def channels(
    rule: Feedback | Route, workers: int = 2, dtype: torch.dtype = torch.float32, **options: Any
) -> list[Channel]:
    parameters = {name: torch.zeros(shape, dtype=dtype) for name, shape in SHAPES.items()}
    return [Channel(rule, parameters, rank=rank, size=workers, **options) for rank in range(workers)]


def gaussian(layout: Layout, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(layout.numel, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exchange(
    ends: list[Channel],
    names: list[str],
    gradients: list[Tensor],
    *,
    step_sizes: dict[str, float] = SIZES,
    **options: Any,
) -> list[Tensor]:
    """Every rank's result for one bucket."""
    layout = ends[0].layout(names)
    sent = [
        end.send(layout, Given(g, step_sizes=step_sizes, **options)) for end, g in zip(ends, gradients, strict=True)
    ]
    messages = [s.message for s in sent]
    return [end.receive(s, messages, torch.empty_like(g)) for end, s, g in zip(ends, sent, gradients, strict=True)]


def step(
    ends: list[Channel], seed: int, buckets: tuple[list[str], ...] = (["a", "c"], ["d", "b"]), **options: Any
) -> list[Tensor]:
    out: list[Tensor] = []
    for place, names in enumerate(buckets):
        layout = ends[0].layout(names)
        gradients = [gaussian(layout, 100 * seed + 10 * place + end.rank) for end in ends]
        out.append(exchange(ends, names, gradients, **options)[0])
    for end in ends:
        assert end.finish() is None
    return out


def snapshot(end: Channel) -> dict[str, Any]:
    state = save(end)
    slots = {key: tensor.clone() for key, tensor in state.pop("slots").items()}
    return {**state, "slots": {key: tensor.tolist() for key, tensor in slots.items()}}


@each_rule
def test_every_rank_computes_the_same(rule: Feedback | Route) -> None:
    ends = channels(rule, 3)
    for seed in range(4):
        layout = ends[0].layout(list(SHAPES))
        results = exchange(ends, list(SHAPES), [gaussian(layout, 10 * seed + end.rank) for end in ends])
        assert all(torch.equal(results[0], other) for other in results)
        assert [end.finish() for end in ends] == [None] * 3
    commons = [{k: v for k, v in snapshot(end)["slots"].items() if "/rank" not in k} for end in ends]
    assert commons[0] == commons[1] == commons[2]


@each_rule
def test_sending_leaves_the_gradient_as_it_is(rule: Feedback | Route) -> None:
    ends = channels(rule)
    for seed in range(2):
        layout = ends[0].layout(list(SHAPES))
        gradients = [gaussian(layout, seed + end.rank) for end in ends]
        before = [g.clone() for g in gradients]
        exchange(ends, list(SHAPES), gradients, scale=4.0)
        assert all(torch.equal(g, b) for g, b in zip(gradients, before, strict=True))
        for end in ends:
            end.finish()


@each_rule
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("warm", [0, 2], ids=["first step", "later step"])
def test_a_bad_gradient_on_one_rank_undoes_the_whole_step_on_all(rule: Feedback | Route, bad: float, warm: int) -> None:
    ends, twins = channels(rule), channels(rule)
    for seed in range(warm):
        step(ends, seed)
        step(twins, seed)
    before = [snapshot(end) for end in ends]
    first = ends[0].layout(["a", "c"])
    second = ends[0].layout(["d", "b"])
    exchange(ends, ["a", "c"], [gaussian(first, 1), gaussian(first, 2)])  # a good bucket, which must be undone too
    broken = gaussian(second, 4)
    broken[second.pieces[1].offset] = bad
    results = exchange(ends, ["d", "b"], [gaussian(second, 3), broken], step_sizes=dict.fromkeys(SHAPES, 0.7))
    assert all(bool(result.isnan().all()) for result in results)
    for end in ends:
        fault = end.finish()
        assert isinstance(fault, NonFiniteGradient)
        assert (fault.rank, fault.parameter, fault.step) == (1, "b", warm)
    assert [snapshot(end) for end in ends] == before
    assert all(torch.equal(x, y) for x, y in zip(step(ends, 9), step(twins, 9), strict=True))


def test_the_first_of_several_faults_is_named() -> None:
    ends = channels(MemSGD(TOP), 3)
    layout = ends[0].layout(["a", "b"])
    gradients = [gaussian(layout, 1), torch.full((layout.numel,), math.nan), torch.full((layout.numel,), math.inf)]
    exchange(ends, ["a", "b"], gradients)
    fault = ends[2].finish()
    assert fault is not None
    assert (fault.rank, fault.parameter) == (1, "a")


@each_rule
def test_an_abandoned_step_leaves_no_trace(rule: Feedback | Route) -> None:
    ends, twins = channels(rule), channels(rule)
    step(ends, 0)
    step(twins, 0)
    layout = ends[0].layout(list(SHAPES))
    exchange(ends, list(SHAPES), [gaussian(layout, 1), gaussian(layout, 2)])
    for end in ends:
        end.abandon()
    assert [snapshot(end) for end in ends] == [snapshot(end) for end in twins]
    assert all(torch.equal(x, y) for x, y in zip(step(ends, 3), step(twins, 3), strict=True))


@each_rule
def test_parameters_that_no_rank_used_keep_their_state_and_get_zero(rule: Feedback | Route) -> None:
    ends = channels(rule)
    step(ends, 0)
    before = [snapshot(end)["slots"] for end in ends]
    layout = ends[0].layout(list(SHAPES))
    used = [piece.name != "d" for piece in layout.pieces]
    result = exchange(ends, list(SHAPES), [gaussian(layout, 5), gaussian(layout, 6)], used=used)[0]
    assert torch.count_nonzero(result[layout.pieces[3].part]) == 0
    assert torch.count_nonzero(result[layout.pieces[0].part]) > 0
    for end, old in zip(ends, before, strict=True):
        assert end.finish() is None
        now = snapshot(end)["slots"]
        assert {k: v for k, v in now.items() if k.endswith("/d")} == {k: v for k, v in old.items() if k.endswith("/d")}


def test_a_parameter_used_late_has_its_first_step_then() -> None:
    ends = channels(EF21(TOP))
    layout = ends[0].layout(["a", "b"])
    gradients = [gaussian(layout, 1), gaussian(layout, 2)]
    exchange(ends, ["a", "b"], gradients, used=[True, False])
    assert [end.finish() for end in ends] == [None, None]
    assert ends[0].started == {"a"}
    result = exchange(ends, ["a", "b"], gradients)[0]
    part = layout.pieces[1].part
    assert torch.allclose(result[part], (gradients[0][part] + gradients[1][part]) / 2)


def test_a_step_size_of_zero_holds_the_parameter() -> None:
    """Nothing can be said in update units at step size zero: the memory waits, and wakes at the old step size."""
    ends, twins = channels(MemSGD(TOP)), channels(MemSGD(TOP))
    step(ends, 0)
    step(twins, 0)
    before = [snapshot(end) for end in ends]
    held = step(ends, 1, step_sizes=dict.fromkeys(SHAPES, 0.0))
    assert all(torch.count_nonzero(out) == 0 for out in held)
    assert [{**snapshot(end), "step": 1} for end in ends] == before
    for end in twins:
        end.step += 1
    woken = dict.fromkeys(SHAPES, 0.3)
    mine, theirs = step(ends, 2, step_sizes=woken), step(twins, 2, step_sizes=woken)
    assert all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("rule", [EF21(TOP), EF21Plus(TOP), EF21SGDM(TOP), EControl(TOP), Plain(TOP)], ids=str)
def test_rules_that_need_no_step_size_bear_any_schedule(rule: Feedback) -> None:
    """A warm-up from zero, or a decay to zero, is no business of theirs."""
    ends, twins = channels(rule), channels(rule)
    for seed, size in enumerate([0.0, 0.1, 0.0, 0.0, 0.2]):
        mine = step(ends, seed, step_sizes=dict.fromkeys(SHAPES, size))
        theirs = step(twins, seed, step_sizes=None)
        assert all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))


@each_rule
def test_the_loss_scale_changes_nothing_but_the_units(rule: Feedback | Route) -> None:
    """Scales are powers of two, so not even rounding differs, and may move at every step."""
    ends, twins = channels(rule), channels(rule)
    for seed, scale in enumerate([1024.0, 2048.0, 512.0]):
        layout = ends[0].layout(list(SHAPES))
        gradients = [gaussian(layout, 10 * seed + rank) for rank in range(2)]
        scaled = exchange(ends, list(SHAPES), [g * scale for g in gradients], scale=scale)[0]
        assert torch.equal(scaled, exchange(twins, list(SHAPES), gradients)[0] * scale)
        for end in [*ends, *twins]:
            end.finish()


@each_rule
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_parameters_keep_float32_state(rule: Feedback | Route, dtype: torch.dtype) -> None:
    ends = channels(rule, dtype=dtype)
    layout = ends[0].layout(list(SHAPES))
    for seed in range(3):
        results = exchange(ends, list(SHAPES), [gaussian(layout, 10 * seed + r, dtype) for r in range(2)])
        assert results[0].dtype == dtype
        assert bool(results[0].isfinite().all())
        assert [end.finish() for end in ends] == [None, None]
    assert {tensor.dtype for end in ends for tensor in save(end)["slots"].values()} <= {torch.float32}


def test_float32_memory_collects_what_bfloat16_would_swallow() -> None:
    """256 is the last whole number before bfloat16 steps by two: 1 + 256 would stay 256."""
    end = Channel(MemSGD(TopK(count=1)), {"x": torch.zeros(2, dtype=torch.bfloat16)}, rank=0, size=1)
    for _ in range(300):
        exchange([end], ["x"], [torch.tensor([1000.0, 1.0], dtype=torch.bfloat16)], step_sizes={"x": 1.0})
        end.finish()
    assert end.worker.view("x", "error").tolist() == [0, 300]


@pytest.mark.parametrize(("second", "scale"), [(60000.0, 1.0), (0.0, 2.0**12)], ids=["sum", "scaled"])
def test_a_result_too_large_for_float16_refuses_the_step(second: float, scale: float) -> None:
    """Every gradient is finite, but what the memory has saved up, or its scaled form, leaves the range of float16."""
    end = Channel(MemSGD(TopK(count=1)), {"x": torch.zeros(2, dtype=torch.float16)}, rank=0, size=1)
    exchange([end], ["x"], [torch.tensor([60001.0, 60000.0], dtype=torch.float16)], step_sizes={"x": 1.0})
    assert end.finish() is None
    before = snapshot(end)
    gradient = torch.full((2,), second, dtype=torch.float16)
    (out,) = exchange([end], ["x"], [gradient], step_sizes={"x": 1.0}, scale=scale)
    assert bool(out.isnan().all())
    fault = end.finish()
    assert fault is not None
    assert (fault.rank, fault.parameter) == (None, "x")
    assert "does not fit the gradient's type" in str(fault)
    assert snapshot(end) == before


def test_a_message_of_another_method_layout_step_or_seed_is_refused() -> None:
    mine = channels(MemSGD(TOP))[0]
    layout = mine.layout(["a", "b"])
    others = {
        "method": channels(MemSGD(TopK(0.5)))[1],
        "seed": channels(MemSGD(TOP), seed=1)[1],
        "step": channels(MemSGD(TOP))[1],
    }
    others["step"].step = 1
    sent = mine.send(layout, Given(gaussian(layout, 0), step_sizes=SIZES))
    for other in others.values():
        message = other.send(layout, Given(gaussian(layout, 1), step_sizes=SIZES)).message
        with pytest.raises(
            WireError, match=r"rank 1's message is for another method, .* attach the same rule, and load"
        ):
            mine.receive(sent, [sent.message, message], torch.empty(layout.numel))
    twin = channels(MemSGD(TOP))[1]
    order = twin.send(twin.layout(["b", "a"]), Given(gaussian(layout, 1), step_sizes=SIZES)).message
    with pytest.raises(WireError, match="another method"):
        mine.receive(sent, [sent.message, order], torch.empty(layout.numel))
    unused = twin.send(layout, Given(gaussian(layout, 1), step_sizes=SIZES, used=[True, False])).message
    with pytest.raises(WireError, match="another method"):
        mine.receive(sent, [sent.message, unused], torch.empty(layout.numel))


def test_another_wire_version_is_refused_with_its_remedy() -> None:
    (mine,) = channels(MemSGD(TOP), 1)
    layout = mine.layout(["a"])
    sent = mine.send(layout, Given(gaussian(layout, 0), step_sizes=SIZES))
    message = sent.message.clone()
    message[0] = 9
    with pytest.raises(WireError, match="rank 0 speaks wire version 9, this rank 3: use one thinwire everywhere"):
        mine.receive(sent, [message], torch.empty(layout.numel))


mutations = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 10**6), st.integers(0, 255)),
    st.tuples(st.just("flip"), st.integers(0, 10**6), st.integers(0, 7)),
    st.tuples(st.just("cut"), st.integers(0, 10**6), st.just(0)),
    st.tuples(st.just("extend"), st.integers(1, 30), st.integers(0, 255)),
)


def resealed(message: Tensor, rank: int = 1) -> Tensor:
    """The message with the checksum that its bytes have now: damage that got past the first guard."""
    return sign_(message, rank) if message.numel() >= CHECKED else message


def damage(message: Tensor, changes: list[tuple[str, int, int]]) -> Tensor:
    message = message.clone()
    for kind, place, value in changes:
        if kind == "extend":
            message = torch.cat([message, torch.full((place,), value, dtype=torch.uint8)])
        elif message.numel() and kind == "cut":
            message = message[: place % message.numel()]
        elif message.numel():
            at = place % message.numel()
            message[at] = value if kind == "set" else int(message[at]) ^ (1 << value)
    return message


@each_rule
@settings(max_examples=60)
@given(changes=st.lists(mutations, min_size=1, max_size=3))
def test_a_damaged_message_with_a_right_checksum_is_refused_or_read_as_some_gradient(
    rule: Feedback | Route, changes: list[tuple[str, int, int]]
) -> None:
    """Whatever the bytes, nothing but a WireError leaves `receive`, and what it writes has the bucket's shape."""
    ends = ENDS.setdefault(str(rule), _started(rule))
    layout = ends[0].layout(list(SHAPES))
    sent = [end.send(layout, Given(gaussian(layout, end.rank), step_sizes=SIZES)) for end in ends]
    out = torch.empty(layout.numel)
    try:
        assert ends[0].receive(sent[0], [sent[0].message, resealed(damage(sent[1].message, changes))], out) is out
    except WireError:
        pass
    finally:
        for end in ends:
            end.abandon()


ENDS: dict[str, list[Channel]] = {}


def _started(rule: Feedback | Route) -> list[Channel]:
    ends = channels(rule)
    step(ends, 0)
    return ends


@each_rule
def test_a_message_of_another_format_is_refused_or_read(rule: Feedback | Route) -> None:
    """The tag behind the envelope (16 bytes) and the part's length (8) is replaced by every other one."""
    ends = _started(rule)
    layout = ends[0].layout(list(SHAPES))
    for tag in range(10):
        sent = [end.send(layout, Given(gaussian(layout, end.rank), step_sizes=SIZES)) for end in ends]
        message = sent[1].message.clone()
        message[24:28] = torch.tensor([tag, 0, 0, 0])
        resealed(message)
        with contextlib.suppress(WireError):
            ends[0].receive(sent[0], [sent[0].message, message], torch.empty(layout.numel))
        for end in ends:
            end.abandon()


@pytest.mark.parametrize("rule", [r for r in RULES if not isinstance(r, Route)], ids=str)
@pytest.mark.parametrize("payload", [Empty(), Dense(torch.ones(24))], ids=["empty", "dense"])
def test_a_sound_message_of_a_format_that_the_rule_never_sends_is_refused_or_read(
    rule: Feedback, payload: Payload
) -> None:
    ends = _started(rule)
    layout = ends[0].layout(list(SHAPES))
    sent = [end.send(layout, Given(gaussian(layout, end.rank), step_sizes=SIZES)) for end in ends]
    body = pack_payload(payload)
    length = torch.frombuffer(bytearray(fields("Q", body.numel())), dtype=torch.uint8)
    forged = resealed(torch.cat([sent[1].message[:16], length, body]))
    with contextlib.suppress(WireError):
        ends[0].receive(sent[0], [sent[0].message, forged], torch.empty(layout.numel))


def test_a_message_without_the_flags_that_its_rule_needs_names_its_rank() -> None:
    """It once did not say whose message it was."""
    ends = _started(EF21Plus(TOP))
    layout = ends[0].layout(list(SHAPES))
    sent = [end.send(layout, Given(gaussian(layout, end.rank), step_sizes=SIZES)) for end in ends]
    body = pack_payload(Empty())
    length = torch.frombuffer(bytearray(fields("Q", body.numel())), dtype=torch.uint8)
    forged = resealed(torch.cat([sent[1].message[:16], length, body]))
    with pytest.raises(WireError, match="rank 1: an ef21plus message must carry its flags, got format 0"):
        ends[0].receive(sent[0], [sent[0].message, forged], torch.empty(layout.numel))


def test_needs_are_those_of_the_rules_in_use() -> None:
    assert channels(Route({"a": MemSGD(TOP), "*": Identity()}, min_numel=0))[0].needs == MemSGD(TOP).needs
    assert channels(Route({"a": MemSGD(TOP), "*": Identity()}, min_numel=1000))[0].needs == frozenset()


def test_a_rule_that_amplifies_is_refused_at_construction() -> None:
    with pytest.raises(AttachError, match=r"memsgd\(contractive\(qsgd\(1\)\)\)"):
        channels(MemSGD(QSGD(1)))


@pytest.mark.parametrize("seed", [-1, 0, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_any_64_bit_seed_will_do(seed: int) -> None:
    step(channels(Plain(RandK(0.5)), seed=seed), 0)


def test_seeds_draw_different_masks() -> None:
    results = {tuple(step(channels(Plain(RandK(0.5)), seed=seed), 0)[0].tolist()) for seed in range(5)}
    assert len(results) == 5


def test_another_bucketing_gives_the_same_numbers() -> None:
    """Per parameter, nothing depends on how parameters are cut into buckets, which may change from step to step."""
    rule = Route({"a": EF21SGDM(RandK(0.5)), "b": EF21Plus(TOP), "*": MemSGD(QSGD(200, 4))}, min_numel=0)
    cuts: list[tuple[list[str], ...]] = [
        (["a", "c"], ["d", "b"]),
        (["d", "c", "b", "a"],),
        (["b"], ["a"], ["c"], ["d"]),
    ]
    runs: list[dict[str, list[float]]] = []
    for order in ((0, 0, 0, 0), (0, 1, 2, 1), (2, 1, 0, 2)):
        ends = channels(rule)
        last: dict[str, list[float]] = {}
        for t, cut in enumerate(order):
            for names in cuts[cut]:
                layout = ends[0].layout(names)
                gradients = [
                    torch.cat(
                        [
                            gaussian(ends[0].layout([n]), 1000 * t + 10 * ends[0].parameters[n].index + end.rank)
                            for n in names
                        ]
                    )
                    for end in ends
                ]
                result = exchange(ends, names, gradients)[0]
                last |= {piece.name: view.tolist() for piece, view in layout.views(result)}
            assert [end.finish() for end in ends] == [None, None]
        runs.append(last)
    assert runs[0] == runs[1] == runs[2]


@each_rule
@settings(max_examples=60)
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere_is_refused(rule: Feedback | Route, place: int, bit: int) -> None:
    ends = ENDS.setdefault(str(rule), _started(rule))
    layout = ends[0].layout(list(SHAPES))
    sent = [end.send(layout, Given(gaussian(layout, end.rank), step_sizes=SIZES)) for end in ends]
    try:
        with pytest.raises(WireError, match="rank 1"):
            ends[0].receive(
                sent[0], [sent[0].message, damage(sent[1].message, [("flip", place, bit)])], torch.empty(layout.numel)
            )
    finally:
        for end in ends:
            end.abandon()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 11, 12, 16, 23])
def test_one_bad_number_among_many_is_found_whatever_they_sum_to(dtype: torch.dtype, bad: float, place: int) -> None:
    end = channels(MemSGD(TOP), 1)[0]
    layout = end.layout(list(SHAPES))
    x = torch.full((layout.numel,), -1.0, dtype=dtype)
    assert int(first_nonfinite(x, layout)) == FINITE
    x[place] = bad
    owner = next(i for i, piece in enumerate(layout.pieces) if place < piece.part.stop)
    assert int(first_nonfinite(x, layout)) == owner
    x[:2] = torch.tensor([math.inf, -math.inf])
    assert int(first_nonfinite(x, layout)) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_finite_numbers_whose_sum_overflows_are_finite(dtype: torch.dtype) -> None:
    end = channels(MemSGD(TOP), 1)[0]
    layout = end.layout(list(SHAPES))
    assert int(first_nonfinite(torch.full((layout.numel,), torch.finfo(dtype).max, dtype=dtype), layout)) == FINITE


def test_a_memory_that_overflows_undoes_the_step_and_names_its_parameter() -> None:
    """Each gradient is finite, and so is what is sent, for bfloat16 saturates; what waits grows beyond float32."""
    end = channels(MemSGD(TopK(count=1, values="bfloat16")), 1)[0]
    gradient = torch.tensor([3e38, *[2e38] * 4])
    results = [exchange([end], ["b"], [gradient])[0]]
    assert end.finish() is None
    before = snapshot(end)
    results += exchange([end], ["b"], [gradient])
    assert all(bool(torch.isfinite(result).all()) for result in results)
    end.judge()
    fault = end.finish()
    assert isinstance(fault, NonFiniteGradient)
    assert (fault.rank, fault.parameter, fault.overflows) == (0, "b", True)
    assert snapshot(end) == before


def test_what_is_saved_in_the_middle_of_a_step_is_all_that_was_before_it() -> None:
    """As a signal handler does: messages are sent, answers of one bucket have come, nothing is finished."""
    ends = channels(EF21SGDM(TOP))
    step(ends, 0)
    before = [snapshot(end) for end in ends]
    exchange(ends, ["a", "c"], [gaussian(ends[0].layout(["a", "c"]), 7) for _ in ends])
    assert ends[0].moving
    assert [snapshot(end) for end in ends] == before


# ---------------------------------------------------------------------- as a receiver on a GPU reads: all ranks at once


TOGETHER: list[Feedback | Route] = [
    *(MemSGD(TopK(0.5, values=name)) for name in ("full", "bfloat16", "float16")),  # positions in a bitmap
    *(MemSGD(TopK(count=1, per="bucket", values=name)) for name in ("full", "bfloat16", "float16")),  # Elias-Fano
    MemSGD(ScaledSign()),
    MemSGD(RandK(0.3, shared=True)),
    MemSGD(RandK(0.3, shared=True, values="float16")),
    EF21(TopK(0.5)),
    EF21(TopK(count=1, per="bucket"), start="zero"),
    EF21Plus(TopK(count=1, per="bucket")),
    Plain(QSGD(4, 3)),
    Plain(Natural()),
    Plain(Identity()),
    Route({"a": EF21(TopK(0.5)), "b": Identity(), "*": MemSGD(ScaledSign(3))}, min_numel=0),
]
"""Rules whose messages have a fixed size."""
each_fixed = pytest.mark.parametrize("rule", TOGETHER, ids=str)


def sent_by_three(rule: Feedback | Route, warm: int) -> tuple[list[Channel], list[Outgoing]]:
    ends = channels(rule, 3)
    for seed in range(warm):
        step(ends, seed)
    layout = ends[0].layout(list(SHAPES))
    sent = [end.send(layout, Given(gaussian(layout, end.rank), step_sizes=SIZES)) for end in ends]
    assert all(one.fixed for one in sent)
    return ends, sent


each_warm = pytest.mark.parametrize("warm", [0, 2], ids=["first step", "later step"])


@each_fixed
@each_warm
@pytest.mark.parametrize("as_rows", [True, False], ids=["rows", "list"])
def test_messages_of_all_ranks_read_at_once_give_what_reading_one_by_one_gives(
    rule: Feedback | Route, warm: int, as_rows: bool
) -> None:
    ends, sent = sent_by_three(rule, warm)
    messages = [s.message for s in sent]
    outs = [torch.empty(sent[0].layout.numel) for _ in ends]
    ends[0].receive(sent[0], messages, outs[0])
    for end, mine, out in zip(ends[1:], sent[1:], outs[1:], strict=True):
        assert end._receive_unjudged(mine, torch.stack(messages) if as_rows else messages, out) is out
    assert [end.finish() for end in ends] == [None] * 3
    assert all(torch.equal(outs[0], out) for out in outs)
    commons = [{k: v for k, v in snapshot(end)["slots"].items() if "/rank" not in k} for end in ends]
    assert commons[0] == commons[1] == commons[2]


@each_fixed
@each_warm
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_damaged_one_of_all_messages_read_at_once_is_named(rule: Feedback | Route, warm: int, rank: int) -> None:
    """In its version, what fills that up, its digest, its flag, a part's length, its tag and what fills that up."""
    ends, sent = sent_by_three(rule, warm)
    end, mine = ends[1], sent[1]
    for place in (0, 1, 8, 13, 16, 24, 25, 27):
        rows = torch.stack([s.message for s in sent])
        rows[rank, place] ^= 64
        if place >= CHECKED:
            resealed(rows[rank], rank)
        out = torch.empty(mine.layout.numel)
        end._receive_unjudged(mine, rows, out)
        (unjudged,) = end._underway.unjudged
        assert unjudged.verdict[3:-1].tolist() == [r != rank for r in range(3)]
        with pytest.raises(WireError, match=f"rank {rank}"):
            end.judge()
        assert bool(out.isnan().all())


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("change", [-4, -1, 1, 4])
def test_a_message_of_another_length_read_at_once_is_refused(rank: int, change: int) -> None:
    """It once was an error of torch's."""
    ends, sent = sent_by_three(MemSGD(ScaledSign()), 1)
    messages = [s.message for s in sent]
    length = messages[0].numel()
    messages[rank] = torch.cat([messages[rank], torch.zeros(4, dtype=torch.uint8)])[: length + change]
    problem = f"rank {rank}: message has {length + change} bytes where this rank's own has {length}"
    with pytest.raises(WireError, match=problem):
        ends[0]._receive_unjudged(sent[0], messages, torch.empty(sent[0].layout.numel))


def test_a_gradient_that_is_not_finite_is_found_among_all_messages_read_at_once() -> None:
    ends = channels(MemSGD(ScaledSign()), 3)
    layout = ends[0].layout(list(SHAPES))
    gradients = [gaussian(layout, rank) for rank in range(3)]
    gradients[2][13] = math.inf
    sent = [end.send(layout, Given(g, step_sizes=SIZES)) for end, g in zip(ends, gradients, strict=True)]
    out = torch.empty(layout.numel)
    ends[0]._receive_unjudged(sent[0], torch.stack([s.message for s in sent]), out)
    fault = ends[0].finish()
    assert fault is not None
    assert (fault.rank, fault.parameter) == (2, "b")
    assert bool(out.isnan().all())

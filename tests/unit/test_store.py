"""State kept by parameter name, packed for whatever layout asks."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire import Key, Layout
from thinwire.feedback import Slot
from thinwire.store import ParameterInfo, Store

SHAPES = {"a": (2, 3), "b": (0,), "c": (), "d": (5,)}
INFOS = {
    name: ParameterInfo(i, shape, torch.float32, torch.device("cpu")) for i, (name, shape) in enumerate(SHAPES.items())
}
SLOTS = [Slot("error"), Slot("rows", per_worker=False, copies=True)]


def store(workers: int = 3) -> Store:
    return Store(dict.fromkeys(SHAPES, SLOTS), INFOS, workers)


def layout(names: list[str]) -> Layout:
    return Layout.of([(name, INFOS[name].index, SHAPES[name]) for name in names])


def filled() -> Store:
    made = store()
    for i, name in enumerate(SHAPES):
        for slot in SLOTS:
            view = made.view(name, slot.name)
            view.copy_(torch.arange(view.numel()).view(view.shape) + 100.0 * (i + 1))
    return made


def contents(made: Store) -> dict[tuple[str, str], list[float]]:
    return {(name, slot.name): made.view(name, slot.name).tolist() for name in SHAPES for slot in SLOTS}


def test_state_exists_from_construction_and_is_zero() -> None:
    made = store()
    assert made.view("a", "error").shape == (6,)
    assert made.view("a", "rows").shape == (3, 6)
    assert all(torch.count_nonzero(torch.tensor(v)) == 0 for v in contents(made).values())


partitions = st.permutations(list(SHAPES)).flatmap(
    lambda names: st.lists(st.integers(0, 3), min_size=4, max_size=4).map(
        lambda marks: [[n for n, m in zip(names, marks, strict=True) if m == k] for k in range(4)]
    )
)


@settings(max_examples=50)
@given(st.lists(partitions, min_size=1, max_size=4))
def test_packing_for_other_layouts_keeps_every_value(cuts: list[list[list[str]]]) -> None:
    made = filled()
    before = contents(made)
    for cut in cuts:
        for names in cut:
            if names:
                flats = made.bind(layout(names))
                assert flats["error"].tolist() == [v for n in names for v in before[n, "error"]]
        assert contents(made) == before


def test_a_bound_tensor_and_a_view_are_the_same_memory_in_every_layout() -> None:
    made = store()
    for names in (["a", "d"], ["d", "c", "a"], ["a"]):
        flats = made.bind(layout(names))
        flats["error"].add_(1)
        flats["rows"].add_(1)
    assert set(made.view("a", "error").tolist()) == {3}
    assert set(made.view("d", "error").tolist()) == {2}
    assert set(made.view("d", "rows").flatten().tolist()) == {2}
    assert made.view("c", "error").tolist() == [1]
    made.view("a", "error").fill_(7)
    assert set(made.bind(layout(["a"]))["error"].tolist()) == {7}


def test_the_same_layout_is_bound_once() -> None:
    made = store()
    assert made.bind(layout(["a", "d"])) is made.bind(layout(["a", "d"]))


def test_restore_goes_back_to_what_was_remembered() -> None:
    made = filled()
    before = contents(made)
    both = layout(["a", "d"])
    made.remember(both)
    made.move(both, turn=3)
    made.bind(both)["error"].mul_(3)
    made.bind(both)["rows"].zero_()
    assert contents(made) != before
    settled = {(name, slot): made.settled(name, slot, 3).tolist() for name, slot in before}
    assert settled == before  # what is saved meanwhile
    made.restore(both, turn=4)
    assert contents(made) != before  # it moved in a turn that is over: nothing to undo
    made.restore(both, turn=3)
    assert contents(made) == before


def test_restore_of_a_layout_that_was_never_remembered_changes_nothing() -> None:
    made = filled()
    before = contents(made)
    made.restore(layout(["a"]), turn=0)
    assert contents(made) == before


def test_a_shallow_copy_has_a_memory_of_its_own() -> None:
    made = filled()
    made.bind(layout(["a", "d"]))
    before, twin = contents(made), copy.copy(made)
    assert contents(twin) == before
    twin.view("a", "error").fill_(7)
    twin.bind(layout(["d"]))["rows"].zero_()
    assert contents(made) == before


def test_an_empty_layout_has_no_state() -> None:
    assert store().bind(Layout(())) == {}


@pytest.mark.parametrize(
    ("parameter", "state"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
def test_state_is_at_least_float32(parameter: torch.dtype, state: torch.dtype) -> None:
    info = ParameterInfo.of(0, torch.zeros(2, 2, dtype=parameter))
    made = Store({"x": [Slot("error")]}, {"x": info}, 1)
    assert info.state_dtype == made.view("x", "error").dtype == state


BYTES = [Slot("error", bits=8), Slot("other")]


def in_bytes() -> Store:
    infos = {"a": INFOS["a"], "d": ParameterInfo(3, (700,), torch.float32, torch.device("cpu"))}
    return Store(dict.fromkeys(infos, BYTES), infos, 1)


def wide(names: list[str]) -> Layout:
    return Layout.of([(name, 0 if name == "a" else 3, (6,) if name == "a" else (700,)) for name in names])


def test_a_slot_in_bytes_takes_a_byte_a_number_and_comes_back_within_its_unit() -> None:
    made, both = in_bytes(), wide(["a", "d"])
    state = made.bind(both)
    assert not state["error"].any()
    noise = torch.randn(706, generator=torch.Generator().manual_seed(0))
    state["error"].copy_(noise)
    state["other"].fill_(3.0)
    made.put(both, state, Key())
    kept = made.bind(both)
    assert set(kept) == {"error", "other"}
    assert float((kept["error"] - noise).abs().max()) <= float(noise.abs().max()) / 127
    assert kept["error"].abs().max() == noise.abs().max()
    assert made._bound[both]["error"].dtype == torch.int8
    assert made._bound[both]["error, scales"].numel() == 1 + 3
    assert made._bound[both]["error"].nbytes + made._bound[both]["error, scales"].nbytes <= 1.1 * both.numel
    assert torch.equal(made.view("d", "error"), kept["error"][6:])
    cut = made.bind(wide(["d"]))["error"]  # packed anew, nothing is rounded again
    assert torch.equal(cut, kept["error"][6:])


def test_bytes_are_undone_saved_meanwhile_and_written_back_bit_for_bit() -> None:
    made, both = in_bytes(), wide(["a", "d"])
    state = made.bind(both)
    state["error"].copy_(torch.randn(706, generator=torch.Generator().manual_seed(1)))
    made.put(both, state, Key())
    before = made.bind(both)["error"]
    made.remember(both)
    made.move(both, turn=1)
    state = made.bind(both)
    state["error"].mul_(-2).add_(0.1)
    made.put(both, state, Key(step=1))
    assert torch.equal(made.settled("d", "error", 1), before[6:])
    assert not torch.equal(made.bind(both)["error"], before)
    fresh = in_bytes()
    fresh.write("d", "error", made.settled("d", "error", 1))
    assert torch.equal(fresh.view("d", "error"), before[6:])
    made.clear_pieces(both, ["a"])
    assert not made.view("a", "error").any()
    made.restore(both, turn=1)
    assert torch.equal(made.bind(both)["error"], before)


def test_what_is_not_finite_shows_in_the_scales() -> None:
    made, both = in_bytes(), wide(["a", "d"])
    state = made.bind(both)
    state["error"][400] = torch.inf
    made.put(both, state, Key())
    (scales, flat), (whole, _) = made.vectors(both)[::-1]
    assert whole == both
    assert [piece.name for piece in scales.pieces] == ["a", "d"]
    assert flat.isfinite().tolist() == [True, True, False, True]

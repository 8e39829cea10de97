"""A channel's state: saved by name, loaded wholly or not at all."""

from __future__ import annotations

import copy
import math
from typing import Any

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
    EF21SGDM,
    EFBV,
    MARINA,
    EControl,
    EF21Plus,
    Feedback,
    Identity,
    MemSGD,
    Plain,
    RandK,
    Route,
    Simulation,
    ThreePCv2,
    TopK,
    Unbias,
    merge_states,
)
from thinwire.channel import Channel
from thinwire.checkpoint import load_, save
from thinwire.errors import StateError, ThinwireError

SHAPES = {"w": (3, 4), "b": (5,), "s": ()}
TOP = TopK(0.3)
FAMILY: list[Feedback] = [
    EF21PAGE(TOP, 0.5),
    EF21BC(TOP, TOP),
    EF21HB(TOP),
    EFBV(TOP, lam=0.5),
    CLAG(TOP),
    ThreePCv2(TOP, Unbias(RandK(0.5))),
]
RULES: list[Feedback | Route] = [
    Plain(RandK(0.5)),
    MemSGD(TOP),
    MemSGD(RandK(0.4)),
    EF21(TOP),
    EF21(TOP, start="zero"),
    EF21Plus(TOP),
    EF21SGDM(TOP),
    EControl(TOP),
    *FAMILY,
    EF21P(MARINA(Unbias(RandK(0.5)), 0.5), TOP),
    Route({"w": EF21Plus(TOP), "b": MemSGD(TOP), "*": Identity()}, min_numel=0),
]
each_rule = pytest.mark.parametrize("rule", RULES, ids=str)


def simulation(
    rule: Feedback | Route, workers: int = 2, shapes: dict[str, tuple[int, ...]] = SHAPES, seed: int = 3
) -> Simulation:
    return Simulation({n: torch.zeros(s) for n, s in shapes.items()}, rule, workers, seed=seed)


def advance(made: Simulation, start: int, steps: int) -> list[Tensor]:
    results = []
    for t in range(start, start + steps):
        gradients = [
            {n: torch.randn(s, generator=torch.Generator().manual_seed(100 * t + w)) for n, s in SHAPES.items()}
            for w in range(made.workers)
        ]
        previous = [{name: g / 2 for name, g in own.items()} for own in gradients]
        out = made.exchange(gradients, dict.fromkeys(SHAPES, 0.1 / (1 + t)), previous=previous)
        results.append(torch.cat([out[n].reshape(-1) for n in SHAPES]).clone())
    return results


def contents(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "slots": {key: tensor.tolist() for key, tensor in state["slots"].items()}}


def slot(made: Simulation, name: str, parameter: str) -> Tensor:
    """One slot of every worker, as rows."""
    return torch.stack([channel.worker.view(parameter, name) for channel in made.channels]).double()


@each_rule
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(rule: Feedback | Route, tmp_path: Any) -> None:
    run = simulation(rule)
    advance(run, 0, 4)
    torch.save(run.state_dict(), tmp_path / "state.pt")
    other = simulation(rule, seed=99)  # the seed comes with the state
    advance(other, 50, 1)
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert contents(other.state_dict()) == contents(run.state_dict())
    assert all(torch.equal(x, y) for x, y in zip(advance(run, 4, 4), advance(other, 4, 4), strict=True))


def test_a_saved_state_does_not_move_with_the_run() -> None:
    run = simulation(MemSGD(TOP))
    advance(run, 0, 2)
    state = run.state_dict()
    before = copy.deepcopy(contents(state))
    advance(run, 2, 2)
    assert contents(state) == before
    run.load_state_dict(state)
    advance(run, 2, 2)
    assert contents(state) == before


def test_keys_carry_the_rank_where_workers_differ() -> None:
    state = simulation(EF21(TOP)).state_dict()
    assert set(state["slots"]) == {f"local/rank{r}/{n}" for r in range(2) for n in SHAPES} | {
        f"mean/{n}" for n in SHAPES
    }
    assert all(tensor.shape == SHAPES[key.split("/")[-1]] for key, tensor in state["slots"].items())
    rows = simulation(EF21Plus(TOP)).state_dict()["slots"]["locals/w"]
    assert rows.shape == (2, 3, 4)


def test_merging_gathers_the_slots_of_all_ranks() -> None:
    run = simulation(MemSGD(TOP), 3)
    advance(run, 0, 2)
    states = [save(channel) for channel in run.channels]
    merged = merge_states(states)
    assert set(merged["slots"]) == set().union(*(state["slots"] for state in states))
    assert contents(merged) == contents(run.state_dict())


def test_each_rank_can_load_its_own_part_or_the_merged_state() -> None:
    run, own, merged = (simulation(EF21(TOP)) for _ in range(3))
    advance(run, 0, 2)
    states = [save(channel) for channel in run.channels]
    for place in range(2):
        load_(own.channels[place], states[place])
        load_(merged.channels[place], merge_states(states))
    assert contents(own.state_dict()) == contents(merged.state_dict()) == contents(run.state_dict())


def unfit(state: dict[str, Any]) -> dict[str, tuple[dict[str, Any], str]]:
    """Every way a state can be wrong, and a word of what the error must say."""
    slots = state["slots"]
    key = next(iter(slots))
    last = list(slots)[-1]
    without = {k: v for k, v in slots.items() if k != last}
    flat = {**slots, last: slots[last].reshape(-1)[:0]}
    made: dict[str, tuple[dict[str, Any], str]] = {
        "another method": ({**state, "method": "memsgd(topk(0.9))"}, "belongs to memsgd"),
        "another format": ({**state, "format": 99}, "format 99"),
        "another size": ({**state, "workers": 3}, "saved by 3 workers, this group has 2"),
        "another shape": ({**state, "shapes": {**state["shapes"], "w": [4, 3]}}, r"'w' has shape \[4, 3\]"),
        "one parameter less": ({**state, "shapes": {"w": [3, 4]}}, "absent"),
        "one parameter more": ({**state, "shapes": {**state["shapes"], "z": [1]}}, "'z'"),
        "a missing slot": ({**state, "slots": without}, "has no"),
        "a slot of another shape": ({**state, "slots": flat}, "shape"),
        "a slot that is no tensor": ({**state, "slots": {**slots, last: [1.0]}}, "has no"),
        "a slot with nan": (
            {**state, "slots": {**slots, key: torch.full_like(slots[key], math.nan)}},
            "NaN, infinity",
        ),
        "nothing": ({}, "not a thinwire state: it has no format"),
    }
    for field in [field for field in state if field != "run"]:  # states of older versions have none
        made[f"without {field}"] = ({k: v for k, v in state.items() if k != field}, field)
    return made


@pytest.mark.parametrize("case", list(unfit(simulation(EF21(TOP)).state_dict())))
def test_a_state_that_does_not_fit_is_refused_and_nothing_changes(case: str) -> None:
    run = simulation(EF21(TOP))
    advance(run, 0, 2)
    saved = run.state_dict()
    advance(run, 2, 2)
    before = contents(run.state_dict())
    state, words = unfit(saved)[case]
    with pytest.raises(StateError, match=words):
        run.load_state_dict(state)
    assert contents(run.state_dict()) == before


@pytest.mark.parametrize("field", list(simulation(EF21(TOP)).state_dict()))
@pytest.mark.parametrize("value", [None, "text", [None], -1.5], ids=repr)
def test_a_damaged_field_is_refused_and_nothing_changes(field: str, value: object) -> None:
    run = simulation(MemSGD(TOP))
    advance(run, 0, 2)
    saved = run.state_dict()
    advance(run, 2, 2)
    before = contents(run.state_dict())
    with pytest.raises(StateError):
        run.load_state_dict({**saved, field: value})
    assert contents(run.state_dict()) == before


@pytest.mark.parametrize("state", [None, 5, "state", []], ids=repr)
def test_what_is_no_dict_is_refused(state: Any) -> None:
    with pytest.raises(StateError):
        simulation(EF21(TOP)).load_state_dict(state)


@each_rule
def test_a_state_cut_off_at_any_slot_changes_nothing(rule: Feedback | Route) -> None:
    run = simulation(rule)
    advance(run, 0, 2)
    saved = run.state_dict()
    advance(run, 2, 2)
    before = contents(run.state_dict())
    for key in saved["slots"]:
        with pytest.raises(StateError, match="has no"):
            run.load_state_dict({**saved, "slots": {k: v for k, v in saved["slots"].items() if k != key}})
        assert contents(run.state_dict()) == before, key


def test_one_ranks_state_is_not_taken_for_anothers() -> None:
    """What the documentation of torch's PowerSGD hook teaches: rank 0 saves, everyone loads."""
    run = simulation(MemSGD(TOP))
    advance(run, 0, 2)
    with pytest.raises(StateError, match=r"has no 'error/rank1/w': each rank saves its own part"):
        load_(run.channels[1], save(run.channels[0]))


@pytest.mark.parametrize("field", ["format", "method", "workers", "step", "seed"])
def test_states_of_different_runs_do_not_merge(field: str) -> None:
    one, two = (save(channel) for channel in simulation(EF21(TOP)).channels)
    with pytest.raises(StateError, match=f"different runs: {field} is"):
        merge_states([one, {**two, field: "other"}])


@pytest.mark.parametrize("states", [[], [{}], [{}, {}], [{"format": 1}, {"format": 1}], [None]], ids=repr)
def test_what_is_no_state_does_not_merge(states: Any) -> None:
    with pytest.raises(StateError):
        merge_states(states)


def resized(
    rule: Feedback | Route, old: int, new: int, on_resize: Any = "redistribute"
) -> tuple[Simulation, Simulation]:
    before, after = simulation(rule, old), simulation(rule, new)
    advance(before, 0, 5)
    after.load_state_dict(before.state_dict(), on_resize=on_resize)
    return before, after


EPS = torch.finfo(torch.float32).eps
each_resize = pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2), (1, 4), (4, 1)])


def assert_same_mean(one: Tensor, two: Tensor) -> None:
    assert float((one.mean(0) - two.mean(0)).abs().max()) <= EPS * float(one.abs().max())
    assert float(one.abs().max()) > 0


@each_resize
@pytest.mark.parametrize("rule", [MemSGD(TOP), EControl(TOP)], ids=str)
def test_resizing_keeps_the_mean_of_the_memories(rule: Feedback, old: int, new: int) -> None:
    before, after = resized(rule, old, new)
    for name in SHAPES:
        if name != "s":  # one number is always sent whole
            assert_same_mean(slot(before, "error", name), slot(after, "error", name))


@each_resize
@pytest.mark.parametrize("rule", [EF21(TOP), EF21(TOP, start="zero"), EF21SGDM(TOP), EControl(TOP), *FAMILY], ids=str)
def test_resizing_keeps_the_mean_and_the_locals_agree_with_it(rule: Feedback, old: int, new: int) -> None:
    before, after = resized(rule, old, new)
    for name in SHAPES:
        mean = after.channels[0].server.view(name, "mean")
        assert torch.equal(mean, before.channels[0].server.view(name, "mean"))
        assert all(torch.equal(channel.worker.view(name, "local"), mean) for channel in after.channels)
    if isinstance(rule, EF21SGDM):
        assert_same_mean(slot(before, "momentum", "w"), slot(after, "momentum", "w"))


@each_resize
def test_resizing_ef21_plus_keeps_the_mean_of_the_locals_on_both_ends(old: int, new: int) -> None:
    before, after = resized(EF21Plus(TOP), old, new)
    for name in SHAPES:
        assert_same_mean(slot(before, "local", name), slot(after, "local", name))
        rows = after.channels[0].server.view(name, "locals")
        assert rows.shape[0] == new
        assert torch.equal(rows.double(), slot(after, "local", name))


@each_rule
@each_resize
def test_a_resized_run_goes_on(rule: Feedback | Route, old: int, new: int) -> None:
    before, after = resized(rule, old, new)
    assert after.state_dict()["step"] == before.state_dict()["step"] == 5
    assert all(bool(out.isfinite().all()) for out in advance(after, 5, 3))
    assert after.state_dict()["workers"] == new


@each_rule
def test_a_reset_starts_the_memories_anew_but_not_the_step(rule: Feedback | Route) -> None:
    _, after = resized(rule, 2, 3, "reset")
    state = after.state_dict()
    assert all(torch.count_nonzero(tensor) == 0 for tensor in state["slots"].values())
    assert (state["step"], state["seed"], state["started"], state["step_sizes"]) == (5, 3, [], [])
    assert all(bool(out.isfinite().all()) for out in advance(after, 5, 2))


def test_another_size_is_refused_unless_asked_for() -> None:
    before, after = simulation(MemSGD(TOP), 2), simulation(MemSGD(TOP), 3)
    advance(before, 0, 2)
    advance(after, 0, 1)
    was = contents(after.state_dict())
    with pytest.raises(StateError, match=r"saved by 2 workers, this group has 3.*merge_states.*redistribute.*reset"):
        after.load_state_dict(before.state_dict())
    assert contents(after.state_dict()) == was


def test_redistributing_needs_every_old_rank() -> None:
    before, after = simulation(MemSGD(TOP), 2), simulation(MemSGD(TOP), 3)
    with pytest.raises(StateError, match="has no 'error/rank1/w'"):
        after.load_state_dict(save(before.channels[0]), on_resize="redistribute")


@pytest.mark.parametrize("workers", [2, 3])
def test_an_unknown_choice_on_resize_is_refused(workers: int) -> None:
    before, after = simulation(MemSGD(TOP), 2), simulation(MemSGD(TOP), workers)
    advance(before, 0, 2)
    was = contents(after.state_dict())
    with pytest.raises(ThinwireError, match="redistribut"):
        after.load_state_dict(before.state_dict(), on_resize="redistribut")  # type: ignore[arg-type]
    assert contents(after.state_dict()) == was


def test_a_state_of_float64_loads_into_float32_and_keeps_its_values() -> None:
    run = Simulation({"x": torch.zeros(4, dtype=torch.float64)}, MemSGD(TopK(count=1)), 1)
    run.exchange([{"x": torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)}], {"x": 1.0})
    narrow = Simulation({"x": torch.zeros(4)}, MemSGD(TopK(count=1)), 1)
    narrow.load_state_dict(run.state_dict())
    assert narrow.channels[0].worker.view("x", "error").tolist() == [1, 2, 3, 0]


def build(rule: Feedback) -> Channel:
    return Channel(rule, {"x": torch.zeros(4)}, rank=0, size=1)


@pytest.mark.parametrize("other", [EF21(TOP), MemSGD(TopK(0.5)), EF21SGDM(TOP)], ids=str)
def test_the_state_of_another_rule_names_both(other: Feedback) -> None:
    with pytest.raises(StateError, match=r"belongs to .*, this run uses memsgd\(topk\(0.3\)\): attach the same rule"):
        load_(build(MemSGD(TOP)), save(build(other)))


def test_loading_between_two_steps_discards_nothing_of_the_layout() -> None:
    """State written before any bucket was seen, and after another cut of buckets, is the same state."""
    rule = MemSGD(TOP)
    run = simulation(rule)
    advance(run, 0, 3)
    saved = run.state_dict()
    fresh = simulation(rule)
    fresh.load_state_dict(saved)
    used = simulation(rule)
    advance(used, 7, 2)
    used.load_state_dict(saved)
    assert all(torch.equal(x, y) for x, y in zip(advance(fresh, 3, 2), advance(used, 3, 2), strict=True))


# -------------------------------------------------------------------------------------------- states that are damaged


def strange_tensors(slot: torch.Tensor) -> dict[str, object]:
    """What a file can hold in a slot's place, of the right shape."""
    return {
        "requires grad": slot.clone().requires_grad_(),
        "sparse": slot.to_sparse(),
        "meta": torch.empty_like(slot, device="meta"),
        "too large for float32": torch.full_like(slot, 1e300, dtype=torch.float64),
        "whole numbers": slot.to(torch.int64),
        "complex": slot.to(torch.complex64),
        "bfloat16": slot.to(torch.bfloat16),
    }


@pytest.mark.parametrize("kind", list(strange_tensors(torch.zeros(1))))
def test_a_strange_tensor_is_loaded_or_refused_with_a_state_error(kind: str) -> None:
    """All or none: what is refused changes nothing, and what is loaded is plain numbers of the state's own type."""
    made = Simulation({"x": torch.zeros(4)}, EF21(TopK(0.5)), 2)
    made.exchange([{"x": torch.randn(4)} for _ in range(2)])
    state = made.state_dict()
    key = "local/rank1/x"
    state["slots"][key] = strange_tensors(state["slots"][key])[kind]
    fresh = Simulation({"x": torch.zeros(4)}, EF21(TopK(0.5)), 2)
    before = fresh.state_dict()["slots"]
    try:
        fresh.load_state_dict(state)
    except StateError:
        assert kind in ("sparse", "meta", "too large for float32", "whole numbers", "complex")
        assert all(torch.equal(tensor, before[name]) for name, tensor in fresh.state_dict()["slots"].items())
    else:
        assert kind in ("requires grad", "bfloat16")
        fresh.exchange([{"x": torch.randn(4)} for _ in range(2)])
        assert not any(t.requires_grad for t in fresh.state_dict()["slots"].values())


@pytest.mark.parametrize(
    "change",
    [
        {"step": 1 << 64},
        {"step": True},
        {"seed": 1 << 70},
        {"run": -1},
        {"started": ["y"]},
        {"step_sizes": [["y", 0.1]]},
        {"step_sizes": []},
        {"step_sizes": [["x", math.inf]]},
    ],
    ids=str,
)
def test_fields_that_cannot_be_are_refused(change: dict[str, object]) -> None:
    made = Simulation({"x": torch.zeros(4)}, MemSGD(TopK(0.5)), 1)
    made.exchange([{"x": torch.randn(4)}], step_sizes={"x": 0.1})
    with pytest.raises(StateError):
        made.load_state_dict({**made.state_dict(), **change})


def test_a_state_of_an_older_version_has_no_run_and_is_loaded() -> None:
    made = Simulation({"x": torch.zeros(4)}, EF21(TopK(0.5)), 1)
    made.exchange([{"x": torch.randn(4)}])
    state = made.state_dict()
    del state["run"]
    made.load_state_dict(state)
    assert made.state_dict()["step"] == 1


@pytest.mark.parametrize("how", ["pickle", "deepcopy", "torch.save"])
def test_a_simulation_that_was_copied_goes_on_like_the_original(how: str) -> None:
    """Two views of one storage come apart in a pickle."""
    import copy
    import io
    import pickle

    made = Simulation({"x": torch.zeros(40)}, EF21(TopK(0.1)), 2)
    gradients = [[{"x": torch.randn(40)} for _ in range(2)] for _ in range(4)]
    made.exchange(gradients[0])
    if how == "torch.save":
        file = io.BytesIO()
        torch.save(made, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    else:
        twin = pickle.loads(pickle.dumps(made)) if how == "pickle" else copy.deepcopy(made)
    for own in gradients[1:]:
        assert torch.equal(made.exchange(own)["x"], twin.exchange(own)["x"])
    mine, theirs = made.state_dict()["slots"], twin.state_dict()["slots"]
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in mine.items())

"""Saving, resuming and resizing with real ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.dist.training import Run, differences, network, train_ddp
from tests.dist.world import run_world
from tests.methods import DDP_STATES
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.stateful import Stateful

import thinwire
from thinwire.errors import StateError

pytestmark = pytest.mark.dist

HALF = 10
RUNS = [*(Run(rule) for rule in DDP_STATES), Run("ef21sgdm(topk(0.1))", muon=True)]


def saved_half(rank: int, size: int, folder: str) -> None:
    for place, run in enumerate(RUNS):
        _, handle, _ = train_ddp(rank, run, until=HALF)
        torch.save(handle.saved, f"{folder}/{place}-{rank}.pt")  # type: ignore[attr-defined]


def resumed(rank: int, size: int, folder: str) -> list[bool]:
    """Resume with buckets cut differently, and compare with a run that never stopped."""
    same = []
    for place, run in enumerate(RUNS):
        saved = torch.load(f"{folder}/{place}-{rank}.pt", weights_only=True)
        other_buckets = replace(run, ddp={"bucket_cap_mb": 0.003})
        halves, _, _ = train_ddp(rank, other_buckets, resume=(HALF, saved))
        whole, _, _ = train_ddp(rank, run)
        same.append(not list(differences(whole, halves)))
    return same


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder of what so many ranks have saved half-way."""

    @cache
    def saved_by(ranks: int) -> Path:
        folder = tmp_path_factory.mktemp(f"half-{ranks}")
        run_world(ranks, saved_half, str(folder), folder=folder)
        return folder

    return saved_by


def test_resume_is_bitwise_the_uninterrupted_run_with_other_buckets(halves: Callable[[int], Path]) -> None:
    """The first half and the second are different processes."""
    folder = halves(2)
    for same in run_world(2, resumed, str(folder), folder=folder):
        assert same == [True] * len(RUNS)


def mean_of(states: list[dict[str, Any]], slot: str) -> dict[str, torch.Tensor]:
    """The mean over ranks of a per-worker slot, in float64."""
    return {
        name: torch.stack([s["slots"][f"{slot}/rank{r}/{name}"].double() for r, s in enumerate(states)]).mean(0)
        for name in states[0]["shapes"]
    }


def resized(rank: int, size: int, folder: str, old: int) -> list[dict[str, Any]]:
    """Load the states of `old` ranks into this world, after checking that the default refuses."""
    new_states = []
    for place, rule in enumerate(DDP_STATES):
        merged = thinwire.merge_states(
            [torch.load(f"{folder}/{place}-{r}.pt", weights_only=True)["thinwire"] for r in range(old)]
        )
        _, handle, _ = train_ddp(rank, Run(rule), until=0)
        before = handle.state_dict()
        with pytest.raises(StateError, match=f"saved by {old} workers, this group has {size}"):
            handle.load_state_dict(merged)
        assert all(torch.equal(t, handle.state_dict()["slots"][k]) for k, t in before["slots"].items())
        handle.load_state_dict(merged, on_resize="redistribute")
        new_states.append(handle.state_dict())
    return new_states


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2)])
def test_resizing_keeps_what_the_rule_conserves(old: int, new: int, halves: Callable[[int], Path]) -> None:
    """Memory, VGC: the mean of the memories. EF21's family: the common mean, and the mean of the locals equal to it."""
    folder = halves(old)
    by_rank = run_world(new, resized, str(folder), old, folder=folder)
    for place, rule in enumerate(DDP_STATES):
        states = [s[place] for s in by_rank]
        past = [torch.load(folder / f"{place}-{r}.pt", weights_only=True)["thinwire"] for r in range(old)]
        slots = {key.split("/")[0] for key in past[0]["slots"]}
        for slot in slots & {"error", "momentum", "velocity", "total", "squares", "alpha"}:
            before, after = mean_of(past, slot), mean_of(states, slot)
            in_bytes = any(own.name == slot and own.bits == 8 for own in thinwire.parse(rule).slots)
            for name, value in before.items():  # in bytes: to half of the unit that they are kept in
                bound = float(value.abs().max()) / 254 if in_bytes else 0
                assert torch.allclose(value, after[name], rtol=2.0**-22, atol=bound), (rule, slot)
        if "mean" in slots:
            after = mean_of(states, "local")
            for name, value in after.items():
                common = states[0]["slots"][f"mean/{name}"]
                assert torch.equal(common, past[0]["slots"][f"mean/{name}"])
                assert torch.equal(common.double(), value), (rule, name)


def drifted(rank: int, size: int) -> tuple[str, str]:
    """Ranks that load different moments, and a rank whose state does not fit: every rank is told, none loads."""
    run = Run("ef21(topk(0.1))")
    _, handle, _ = train_ddp(rank, run, until=3)
    _, later, _ = train_ddp(rank, run, until=5)
    _, fresh, _ = train_ddp(rank, run, until=0)
    messages = []
    for state in ((handle if rank else later).state_dict(), handle.state_dict() if rank else {}):
        with pytest.raises(StateError) as caught:
            fresh.load_state_dict(state)
        messages.append(str(caught.value))
    assert fresh.state_dict()["step"] == 0
    return messages[0], messages[1]


def test_ranks_load_the_same_moment_or_nothing(tmp_path: Path) -> None:
    answers = run_world(2, drifted, folder=tmp_path)
    for messages in answers:
        assert "of different moments or runs: they differ in step: rank 0 has 5, rank 1 has 3" in messages[0]
    assert "not a thinwire state" in answers[0][1]
    assert "rank 0 could not load its state" in answers[1][1]


def checkpointed(rank: int, size: int, folder: str) -> tuple[bool, bool, list[str]]:
    """Save with torch.distributed.checkpoint, load into a fresh run, compare every rank's own part."""
    run = Run("memsgd(topk(0.1))", decay_at=(HALF,))  # the rate moves at the very step of the checkpoint
    whole, _, _ = train_ddp(rank, run)
    _, handle, _ = train_ddp(rank, run, until=HALF)
    saved = handle.saved  # type: ignore[attr-defined]
    dcp.save({"thinwire": handle}, checkpoint_id=folder)
    _, fresh, _ = train_ddp(rank, run, until=0)
    dcp.load({"thinwire": fresh}, checkpoint_id=folder)
    restored = fresh.state_dict()
    equal = all(torch.equal(t, restored["slots"][k]) for k, t in saved["thinwire"]["slots"].items())
    equal = equal and restored["step_sizes"] == saved["thinwire"]["step_sizes"]
    halves, _, _ = train_ddp(rank, run, resume=(HALF, {**saved, "thinwire": restored}))
    return equal and isinstance(fresh, Stateful), not list(differences(whole, halves)), sorted(restored["slots"])


def test_distributed_checkpoint_keeps_every_ranks_part(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    answers = run_world(2, checkpointed, str(folder), folder=tmp_path)
    for rank, (equal, same, keys) in enumerate(answers):
        assert equal
        assert same
        assert all(f"/rank{rank}/" in key for key in keys)
    dcp_to_torch_save(folder, tmp_path / "merged.pt")  # one file with every rank's keys: a merged state
    merged = torch.load(tmp_path / "merged.pt", weights_only=False)["thinwire"]
    three = thinwire.Simulation(dict(network().named_parameters()), thinwire.parse("memsgd(topk(0.1))"), 3)
    three.load_state_dict(merged, on_resize="redistribute")
    assert three.state_dict()["step"] == HALF

"""Checkpoints that survive: whatever happens while one is written, the newest whole one can be loaded."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.dist.world import run_world

import thinwire
from thinwire.checkpoint import Rotating, rotating
from thinwire.checkpoint.part_set import PartSet, Seal, Sink, sets_in
from thinwire.errors import CheckpointError, CheckpointWarning, ConfigError, StateError


def state_of(step: int) -> dict[str, Any]:
    return {"step": step, "values": torch.full((1000,), float(step))}


def steps_in(folder: Path) -> list[int]:
    return [place.step for place in sets_in(folder)]


def saved(folder: Path, *steps: int, keep: int = 2) -> Rotating:
    checkpoints = Rotating(folder, keep)
    for step in steps:
        checkpoints.save(step, state_of(step))
    return checkpoints


def save_parts(folder: Path, serial: int, step: int, states: list[Any]) -> PartSet:
    """What several ranks would have saved together."""
    place = PartSet(serial, step, folder)
    place.create()
    place.seal([place.write(rank, state) for rank, state in enumerate(states)])
    return place


@contextmanager
def small_files() -> Iterator[None]:
    """A disk on which no file can grow beyond 16 kB: the system refuses the rest, as it does when the disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ----------------------------------------------------------------------------------------------------- saving, loading


def test_a_folder_without_checkpoints_gives_none(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "not yet there"):
        checkpoints = Rotating(folder)
        assert checkpoints.load() is None
        assert checkpoints.parts() is None
        assert checkpoints.latest() is None


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    generator = torch.get_rng_state()
    model, rule = torch.nn.Linear(3, 2), thinwire.EF21(thinwire.TopK(0.5))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    everything = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "rng": generator,
        "method": str(rule),
    }
    checkpoints = Rotating(tmp_path / "a" / "b")
    checkpoints.save(3, everything)
    found = checkpoints.load()
    assert found is not None
    step, state = found
    assert step == 3
    assert state.keys() == everything.keys()
    assert torch.equal(state["rng"], generator)
    assert torch.equal(state["model"]["weight"], model.weight)
    assert checkpoints.latest() == 3
    assert checkpoints.skipped == ()


def test_the_set_saved_last_counts_even_if_its_step_is_smaller(tmp_path: Path) -> None:
    """A run that went back to an earlier step goes on from there."""
    assert saved(tmp_path, 10, 20, 5).latest() == 5


def test_a_step_may_be_saved_again(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 7)
    checkpoints.save(7, {"again": 1})
    assert checkpoints.load() == (7, {"again": 1})
    assert steps_in(tmp_path) == [7, 7]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_sets_are_kept(tmp_path: Path, keep: int) -> None:
    saved(tmp_path, 1, 2, 3, 4, 5, keep=keep)
    assert steps_in(tmp_path) == [5, 4, 3][:keep]


def test_leftovers_of_kills_go_and_do_not_count_as_kept(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    for serial in (3, 4, 5):
        place = PartSet(serial, 9, tmp_path)
        place.create()
        place.write(0, state_of(9))
    saved(tmp_path, 6)
    assert steps_in(tmp_path) == [6, 2]


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "1-step-1").mkdir()
    (tmp_path / "record.jsonl").touch()
    saved(tmp_path, 1, 2, 3, keep=1)
    assert {"notes", "record.jsonl", "1-step-1"} < {path.name for path in tmp_path.iterdir()}


def test_a_simulation_resumes_bit_for_bit(tmp_path: Path) -> None:
    through = simulation()
    for step in range(6):
        train_(*through, step)
        if step == 2:
            Rotating(tmp_path).save(3, {"model": through[0].state_dict(), "thinwire": through[1].state_dict()})
    resumed = simulation()
    step, state = Rotating(tmp_path).load() or (0, None)
    resumed[0].load_state_dict(state["model"])
    resumed[1].load_state_dict(state["thinwire"])
    for later in range(step, 6):
        train_(*resumed, later)
    assert torch.equal(through[0].weight, resumed[0].weight)


def simulation(workers: int = 2) -> tuple[torch.nn.Linear, thinwire.Simulation]:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4, bias=False)
    return model, thinwire.Simulation(dict(model.named_parameters()), thinwire.EF21(thinwire.TopK(0.25)), workers)


def train_(model: torch.nn.Linear, run: thinwire.Simulation, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    gradients = [{"weight": torch.randn(4, 8, generator=generator)} for _ in run.channels]
    with torch.no_grad():
        model.weight -= 0.1 * run.exchange(gradients)["weight"]


# -------------------------------------------------------------------------------------------------------------- damage

DAMAGE: dict[str, tuple[Callable[[PartSet], Any], str]] = {
    "no manifest": (lambda place: place.manifest.unlink(), "no manifest"),
    "manifest cut": (lambda place: os.truncate(place.manifest, 20), "manifest cannot be read"),
    "manifest empty": (lambda place: os.truncate(place.manifest, 0), "manifest cannot be read"),
    "manifest not text": (lambda place: place.manifest.write_bytes(b"\xff\xfe{"), "manifest cannot be read"),
    "manifest of nothing": (lambda place: place.manifest.write_text("[]"), "manifest cannot be read"),
    "manifest of another step": (lambda place: edit(place, step=99), "manifest cannot be read"),
    "manifest without a format": (lambda place: edit(place, format=None), "manifest cannot be read"),
    "manifest without parts": (lambda place: edit(place, world_size=0, parts=[]), "manifest cannot be read"),
    "manifest of odd parts": (lambda place: edit(place, parts=["?"]), "manifest cannot be read"),
    "part missing": (lambda place: place.part(0).unlink(), "rank00000.pt is missing"),
    "part cut": (lambda place: os.truncate(place.part(0), 100), "length"),
    "part changed": (lambda place: flip(place.part(0)), "checksum"),
    "part is a folder": (lambda place: as_folder(place.part(0)), "length"),
}


def edit(place: PartSet, **changes: Any) -> None:
    place.manifest.write_text(json.dumps(json.loads(place.manifest.read_text()) | changes))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_set_is_passed_over_with_its_reason(tmp_path: Path, kind: str) -> None:
    damage, reason = DAMAGE[kind]
    checkpoints = saved(tmp_path, 1, 2)
    newest = sets_in(tmp_path)[0]
    damage(newest)
    for load in (checkpoints.load, checkpoints.parts, checkpoints.latest):
        with pytest.warns(CheckpointWarning, match=reason):
            found = load()
        assert found is not None
        assert (found if isinstance(found, int) else found[0]) == 1
        assert [skipped.path for skipped in checkpoints.skipped] == [newest.path]
        assert reason in checkpoints.skipped[0].reason


def test_a_set_of_a_later_thinwire_is_neither_passed_over_nor_deleted(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, keep=1)
    edit(sets_in(tmp_path)[0], format=2)
    with pytest.raises(CheckpointError, match="has format 2, this thinwire reads format 1"):
        checkpoints.load()
    with pytest.warns(CheckpointWarning, match="format 2"):
        checkpoints.save(2, state_of(2))
    assert steps_in(tmp_path) == [2, 1]


def test_a_set_found_damaged_does_not_take_the_place_of_a_sound_one(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    flip(sets_in(tmp_path)[0].part(0))
    with pytest.warns(CheckpointWarning):
        checkpoints.load()
    checkpoints.save(3, state_of(3))
    assert steps_in(tmp_path) == [3, 1]


def test_nothing_whole_is_none_and_is_said(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    sets_in(tmp_path)[0].part(0).unlink()
    with pytest.warns(CheckpointWarning, match="there is no other"):
        assert checkpoints.load() is None


def test_a_part_that_may_not_be_read_is_an_error_not_a_reason_to_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = saved(tmp_path, 1, 2)

    def refuse(path: Path) -> Seal:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("thinwire.checkpoint.part_set.seal_of", refuse)
    with pytest.raises(CheckpointError, match=r"Permission denied.*Nothing was loaded"):
        checkpoints.load()


# --------------------------------------------------------------------------------------------------------------- kills


class Killed(BaseException):
    """Stands for SIGKILL: nothing that handles errors handles it."""


def die_at_(monkeypatch: pytest.MonkeyPatch, call: int) -> Callable[[], int]:
    """From now on, die right before the n-th call that changes a file or a folder; gives the number of calls so far."""
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count >= call:  # the dead do nothing more
                raise Killed
            return function(*arguments, **options)

        return counting

    for name in ("mkdir", "fsync", "replace", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    monkeypatch.setattr(Sink, "write", counted(Sink.write))
    return lambda: count


@pytest.mark.filterwarnings("ignore::thinwire.errors.CheckpointWarning")
@pytest.mark.parametrize("keep", [1, 2])
def test_a_kill_before_any_single_call_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)  # a kill, unlike a loss of power, loses nothing written
    call, finished = 0, False
    while not finished:
        call += 1
        folder = tmp_path / str(call)
        saved(folder, 1, 2, keep=keep)
        with pytest.MonkeyPatch.context() as patch:
            calls = die_at_(patch, call)
            with suppress(Killed):
                saved(folder, 3, keep=keep)
            finished = calls() < call
        step, state = Rotating(folder).load() or (0, None)
        assert step in (2, 3)
        assert torch.equal(state["values"], state_of(step)["values"])
        assert steps_in(folder)[-1] <= 2 or keep == 1
        saved(folder, 4, keep=keep)
        assert len(steps_in(folder)) == keep
        shutil.rmtree(folder)
    assert call > 40


def test_data_is_on_the_disk_before_a_name_and_names_before_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def noting_fsync(file: int) -> None:
        events.append(("sync", Path(os.readlink(f"/proc/self/fd/{file}")).name))
        fsync(file)

    def noting_replace(source: Path, target: Path) -> None:
        events.append(("name", target.name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "replace", noting_replace)
    saved(tmp_path / "run", 5)
    here = "00000001-step-5"
    assert events == [
        ("sync", tmp_path.name),
        ("sync", "run"),
        ("sync", "rank00000.pt.tmp"),
        ("name", "rank00000.pt"),
        ("sync", here),
        ("sync", "manifest.json.tmp"),
        ("name", "manifest.json"),
        ("sync", here),
    ]


# ------------------------------------------------------------------------------------------------- what cannot be saved


def test_a_full_disk_costs_only_the_new_set(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    with (
        small_files(),
        pytest.raises(CheckpointError, match=r"rank 0 could not write .*00000.pt: .*File too large"),
    ):
        checkpoints.save(3, {"values": torch.zeros(100_000)})
    assert steps_in(tmp_path) == [2, 1]
    assert checkpoints.latest() == 2
    saved(tmp_path, 3)
    assert steps_in(tmp_path) == [3, 2]


class FillingDisk:
    """A file on a disk that has room for so many writes."""

    room = 0

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        FillingDisk.room -= 1
        if FillingDisk.room < 0:
            raise OSError(28, "No space left on device")
        return int(self._file.write(data))


def test_a_disk_that_is_full_at_any_write_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's own words reach the user, whatever torch's writer makes of them."""
    checkpoints = saved(tmp_path, 1)
    made = Sink.__init__
    monkeypatch.setattr(Sink, "__init__", lambda sink, file: made(sink, FillingDisk(file)))  # type: ignore[arg-type]
    monkeypatch.setattr(os, "fsync", lambda file: None)
    room = 0
    while steps_in(tmp_path) == [1]:
        FillingDisk.room, room = room, room + 1
        kind, text = error_of(lambda: checkpoints.save(2, state_of(2)))
        assert (kind, "No space left on device" in text) in (("CheckpointError", True), ("none", False))
    assert room > 30


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"could not make a place in .*file/run"):
        saved(tmp_path / "file" / "run", 1)


def test_a_state_that_could_not_be_loaded_is_refused_when_saved(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"numpy.*weights_only") as caught:
        checkpoints.save(2, {"rng": np.random.default_rng(0).random(3)})
    assert isinstance(caught.value.__cause__, StateError)
    with pytest.raises(CheckpointError, match=r"pickle|local object"):
        checkpoints.save(2, {"f": lambda: 0})
    assert steps_in(tmp_path) == [1]


@pytest.mark.parametrize("step", [-1, 2**63, 1.0, True, "1"])
def test_a_step_is_a_whole_number(tmp_path: Path, step: Any) -> None:
    with pytest.raises(ConfigError, match="step must be"):
        Rotating(tmp_path).save(step, {})


@pytest.mark.parametrize("keep", [0, -1, 1.5, True])
def test_at_least_one_set_is_kept(tmp_path: Path, keep: Any) -> None:
    with pytest.raises(ConfigError, match="keep must be"):
        Rotating(tmp_path, keep)


def test_a_launched_rank_without_its_group_does_not_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is 4.*init_process_group"):
        saved(tmp_path, 2)
    assert Rotating(tmp_path).latest() == 1


def test_an_old_set_that_cannot_be_deleted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 1, keep=1)

    def busy(path: Path) -> None:
        raise OSError(16, "Device or resource busy", str(path))

    monkeypatch.setattr(shutil, "rmtree", busy)
    with pytest.warns(CheckpointWarning, match="step-1 was not deleted.*busy"):
        checkpoints.save(2, state_of(2))
    assert checkpoints.latest() == 2


def test_a_part_that_rank_0_does_not_see_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotating, "SEEN_WITHIN", 0.0)
    place = PartSet(1, 1, tmp_path)
    place.create()
    with pytest.raises(StateError, match=r"rank 1 has written .*rank00001.pt.*all hosts share"):
        rotating._see(place, [place.write(0, {}), Seal(100, 0)])


# -------------------------------------------------------------------------------------------------- another world size


def test_a_set_of_other_ranks_is_loaded_in_parts(tmp_path: Path) -> None:
    model, run = simulation(2)
    train_(model, run, 0)
    states = [{"thinwire": thinwire.checkpoint.save(channel)} for channel in run.channels]
    save_parts(tmp_path, 1, 1, states)
    checkpoints = Rotating(tmp_path)
    with pytest.raises(StateError, match=r"saved by 2 ranks, this group has 1.*resume\(\).*redistribute"):
        checkpoints.load()
    assert checkpoints.latest() == 1
    step, parts = checkpoints.parts() or (0, [])
    assert step == 1
    _, wider = simulation(3)
    merged = thinwire.merge_states([part["thinwire"] for part in parts])
    wider.load_state_dict(merged, on_resize="redistribute")
    again, saved = checkpoints.resume() or (0, None)
    assert again == 1
    assert saved["thinwire"].keys() == merged.keys()
    assert saved["thinwire"]["slots"].keys() == merged["slots"].keys()


def test_what_rank_0_alone_saved_is_resumed_as_it_is(tmp_path: Path) -> None:
    save_parts(tmp_path, 1, 1, [{"loss": 0.5, "model": {"w": 1}}, {"model": {"w": 2}}])
    assert Rotating(tmp_path).resume() == (1, {"loss": 0.5, "model": {"w": 1}})


# ---------------------------------------------------------------------------------------------------------- real ranks


def error_of(action: Callable[[], Any]) -> tuple[str, str]:
    """An error's type and text."""
    try:
        action()
    except Exception as error:
        return type(error).__name__, str(error)
    return "none", ""


def job(rank: int, size: int, folder: str) -> dict[str, Any]:
    """Everything that needs real ranks, in one pair of processes."""
    rotating.SEEN_WITHIN = 0.0
    checkpoints, place = Rotating(f"{folder}/run"), Path(folder, "run")
    said: dict[str, Any] = {"empty": checkpoints.load()}
    for step in (1, 2):
        checkpoints.save(step, {"mine": rank, "values": torch.full((1000,), float(step))})
    said["loaded"] = checkpoints.load()[1]["mine"]  # type: ignore[index]

    def save(step: int = 3, state: Any = None) -> None:
        checkpoints.save(step, state)

    said["different steps"] = error_of(lambda: save(3 + rank))
    with small_files() if rank == 1 else nullcontext():
        said["full disk"] = error_of(lambda: save(state=torch.zeros(100_000)))
    said["odd state"] = error_of(lambda: save(state=error_of if rank == 1 else 0))
    said["own folders"] = error_of(lambda: Rotating(f"{folder}/host{rank}").save(3, {}))
    said["after failures"] = steps_in(place)
    said["latest"] = checkpoints.latest()
    said["parts"] = [part["mine"] for part in checkpoints.parts()[1]]  # type: ignore[index]
    alone = dist.new_group([0])
    said["narrower"] = error_of(lambda: Rotating(place, group=alone).load())
    if rank == 1:
        flip(sets_in(place)[0].part(1))
    dist.barrier()
    with pytest.warns(CheckpointWarning) if rank == 0 else nullcontext():
        said["torn"] = checkpoints.load()[0]  # type: ignore[index]
    said["skipped"] = [reason for _, reason in checkpoints.skipped]
    return said


@pytest.mark.dist
def test_two_ranks_save_fail_and_load_together(tmp_path: Path) -> None:
    first, second = run_world(2, job, str(tmp_path), folder=tmp_path)
    assert [first.pop("loaded"), second.pop("loaded")] == [0, 1]
    for said in (first, second):
        assert said["empty"] is None
        assert said["different steps"][0] == "StateError"
        assert "rank 0 saves step 3 and rank 1 saves step 4" in said["different steps"][1]
        assert said["full disk"][0] == "CheckpointError"
        assert "rank 1 could not write" in said["full disk"][1]
        assert "rank00001.pt: " in said["full disk"][1]
        assert "File too large" in said["full disk"][1]
        assert said["odd state"][0] == "CheckpointError"
        assert said["own folders"][0] == "CheckpointError"
        assert "rank 1" in said["own folders"][1]
        assert said["after failures"] == [2, 1]
        assert said["latest"] == 2
        assert said["parts"] == [0, 1]
        assert said["torn"] == 1
        assert said["skipped"] == ["rank00001.pt does not have the checksum that the manifest gives"]
    assert "its own error says why" in first["odd state"][1]
    assert "weights_only" in second["odd state"][1]
    assert "all hosts share" in second["own folders"][1]
    assert first["narrower"][0] == "StateError"
    assert "saved by 2 ranks, this group has 1" in first["narrower"][1]
    assert second["narrower"][0] == "ConfigError"
    assert not (tmp_path / "host1").exists()

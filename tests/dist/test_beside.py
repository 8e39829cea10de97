"""Every rank's state beside a framework's checkpoint: one file a rank, or all in one that rank 0 writes."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tests.dist.training import Run, batch, differences, network, train_ddp
from tests.dist.world import run_world

import thinwire
from thinwire.errors import CheckpointError, StateError, ThinwireError

pytestmark = pytest.mark.dist

HALF = 10
RUNS = [Run("memsgd(topk(0.1))"), Run("ef21sgdm(topk(0.1))")]


def saved_beside(rank: int, size: int, folder: str) -> list[bool]:
    """Save in the middle, both ways, and resume from each; the second answer is of the file that rank 0 writes."""
    same = []
    for place, run in enumerate(RUNS):
        whole, _, _ = train_ddp(rank, run)
        _, handle, _ = train_ddp(rank, run, until=HALF)
        saved: dict[str, Any] = handle.saved  # type: ignore[attr-defined]
        own = f"{folder}/{place}/host{rank}"  # no rank sees another's folder
        handle.save(own)
        before = handle.ledger.summary()["sent_bytes"]
        merged = handle.merged_state()
        same.append(handle.ledger.summary()["sent_bytes"] > before)  # what travelled for it is counted
        torch.save(merged, f"{folder}/{place}-{rank}.pt")
        dist.barrier()

        _, fresh, _ = train_ddp(rank, run, until=0)
        same.append(fresh.load(own))
        resumed = {**deepcopy(saved), "thinwire": fresh.state_dict()}  # an optimizer trains on in what it has loaded
        halves, _, _ = train_ddp(rank, run, resume=(HALF, resumed))
        same.append(not list(differences(whole, halves)))

        merged = torch.load(f"{folder}/{place}-0.pt", weights_only=True)
        halves, _, _ = train_ddp(rank, run, resume=(HALF, {**saved, "thinwire": merged}))
        same.append(not list(differences(whole, halves)))
    return same


def test_a_run_resumes_bitwise_from_either_kind_of_file(tmp_path: Path) -> None:
    for same in run_world(2, saved_beside, str(tmp_path), folder=tmp_path):
        assert same == [True] * (4 * len(RUNS))
    for place in range(len(RUNS)):  # rank 0 has all, and holds no more than that; the other has its own
        zero, one = (torch.load(tmp_path / f"{place}-{rank}.pt", weights_only=True)["slots"] for rank in range(2))
        parts = [torch.load(tmp_path / f"{place}/host{r}/thinwire-rank0000{r}.pt", weights_only=True) for r in range(2)]
        merged = thinwire.merge_states(parts)["slots"]
        assert zero.keys() == merged.keys()
        assert all(torch.equal(zero[key], merged[key]) for key in merged)
        assert one.keys() == parts[1]["slots"].keys()
        size = sum(tensor.nbytes for tensor in merged.values())
        assert (tmp_path / f"{place}-0.pt").stat().st_size < size + 1000 * (len(merged) + 10)


def refused(action: Any) -> str:
    """The error of this rank."""
    with pytest.raises(ThinwireError) as caught:
        action()
    return f"{type(caught.value).__name__}: {caught.value}"


def damaged(rank: int, size: int, folder: str) -> list[Any]:
    _, handle, _ = train_ddp(rank, RUNS[0], until=3)
    answers: list[Any] = [handle.load(f"{folder}/nothing")]
    before = handle.state_dict()["slots"]

    handle.save(f"{folder}/missing")
    if rank == 1:
        Path(f"{folder}/missing/thinwire-rank00001.pt").unlink()
    dist.barrier()
    answers.append(refused(lambda: handle.load(f"{folder}/missing")))

    handle.save(f"{folder}/torn")
    if rank == 1:
        torn = Path(f"{folder}/torn/thinwire-rank00001.pt")
        torn.write_bytes(torn.read_bytes()[:-100])
    dist.barrier()
    answers.append(refused(lambda: handle.load(f"{folder}/torn")))

    Path(f"{folder}/file{rank}").touch()
    place = f"{folder}/full" if rank == 0 else f"{folder}/file{rank}"  # a file is where rank 1's folder should be
    answers.append(refused(lambda: handle.save(place)))

    torch.save([1, 2], f"{folder}/foreign-{rank}.pt")
    other = Path(f"{folder}/foreign{rank}/thinwire-rank0000{rank}.pt")
    other.parent.mkdir()
    Path(f"{folder}/foreign-{rank}.pt").rename(other)
    answers.append(refused(lambda: handle.load(other.parent)))
    answers.append(all(torch.equal(t, handle.state_dict()["slots"][k]) for k, t in before.items()))
    return answers


def test_what_is_wrong_on_one_rank_is_an_error_on_all(tmp_path: Path) -> None:
    answers = run_world(2, damaged, str(tmp_path), folder=tmp_path)
    for nothing, missing, torn, full, foreign, unchanged in answers:
        assert nothing is False
        assert unchanged is True
        assert missing.startswith(StateError.__name__)
        assert "thinwire-rank00001.pt is missing, of 2 files that were saved" in missing
        assert torn.startswith(StateError.__name__)
        assert "thinwire-rank00001.pt cannot be read, it is damaged" in torn
        assert full.startswith(CheckpointError.__name__)
        assert "rank 1 could not write" in full
        assert "holds a list, not the state of a handle" in foreign


def saved_by_three(rank: int, size: int, folder: str) -> None:
    _, handle, _ = train_ddp(rank, RUNS[0], until=3)
    handle.save(folder)


def loaded_by_two(rank: int, size: int, folder: str) -> tuple[str, dict[str, torch.Tensor], str]:
    _, handle, _ = train_ddp(rank, RUNS[0], until=0)
    refusal = refused(lambda: handle.load(folder))
    handle.load(folder, on_resize="redistribute")
    if rank == 0:
        Path(folder, "thinwire-rank00002.pt").unlink()
    dist.barrier()
    return refusal, handle.state_dict()["slots"], refused(lambda: handle.load(folder, on_resize="redistribute"))


def test_another_number_of_ranks_loads_all_files(tmp_path: Path) -> None:
    run_world(3, saved_by_three, str(tmp_path / "saved"), folder=tmp_path)
    parts = [torch.load(tmp_path / f"saved/thinwire-rank0000{r}.pt", weights_only=True)["slots"] for r in range(3)]
    answers = run_world(2, loaded_by_two, str(tmp_path / "saved"), folder=tmp_path)
    (slot,) = {key.partition("/")[0] for key in parts[0]}
    for rank, (refusal, slots, gone) in enumerate(answers):
        assert "saved by 3 workers, this group has 2" in refusal
        assert "thinwire-rank00002.pt is missing, and another number of ranks needs all files" in gone
        for name, parameter in network().named_parameters():
            before = [part[f"{slot}/rank{r}/{name}"].double() for r, part in enumerate(parts)]
            assert torch.equal(slots[f"{slot}/rank{rank}/{name}"], torch.stack(before).mean(0).to(parameter.dtype))


def saved_meanwhile(rank: int, size: int, folder: str) -> tuple[bool, bool]:
    """A distributed checkpoint that is written while training goes on holds the moment at which it was asked for."""
    run = RUNS[0]
    whole, _, _ = train_ddp(rank, run)
    _, handle, _ = train_ddp(rank, run, until=HALF)
    saved: dict[str, Any] = deepcopy(handle.saved)  # type: ignore[attr-defined]
    written = dcp.async_save({"thinwire": handle}, checkpoint_id=folder, process_group=dist.new_group(backend="gloo"))
    train_ddp(rank, run, until=2)  # another run, whose collectives travel meanwhile
    handle.flush()  # and memories of this one change
    written.result()
    _, fresh, _ = train_ddp(rank, run, until=0)
    dcp.load({"thinwire": fresh}, checkpoint_id=folder)
    changed = any(t.count_nonzero() for t in saved["thinwire"]["slots"].values())
    halves, _, _ = train_ddp(rank, run, resume=(HALF, {**saved, "thinwire": fresh.state_dict()}))
    return changed, not list(differences(whole, halves))


def test_an_asynchronous_distributed_checkpoint_resumes_bitwise(tmp_path: Path) -> None:
    assert run_world(2, saved_meanwhile, str(tmp_path / "checkpoint"), folder=tmp_path) == [(True, True)] * 2


def test_batches_of_ranks_differ() -> None:
    """Or else a state of rank 0 on every rank would pass here."""
    assert not torch.equal(batch(0, 0)[0], batch(0, 1)[0])

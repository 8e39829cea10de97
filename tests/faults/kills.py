"""Two real ranks that save in a loop until one or both are killed, and what they find when they start again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from tests.forks import CONTEXT

from thinwire.checkpoint import Rotating
from thinwire.checkpoint.part_set import Sink
from thinwire.errors import CheckpointWarning

RANKS = 2
LIMIT = 100.0
"""Seconds after which a rank that has not ended counts as hung."""
NUMEL = 1 << 18
CALLS = 120
"""About as many calls to the file system as rank 0 makes in two saves."""


# ------------------------------------------------------------------------------------------------------------ the ranks


def state_of(step: int, rank: int) -> dict[str, Any]:
    """A state that shows by itself whose it is and whether it is whole."""
    return {"step": step, "rank": rank, "values": torch.full((NUMEL,), float(RANKS * step + rank))}


def is_right(state: Any, step: int, rank: int) -> bool:
    """Whether a state is what this rank saved at this step."""
    same = (state["step"], state["rank"]) == (step, rank)
    return same and bool((state["values"] == RANKS * step + rank).all())


class Safe:
    """Saving as thinwire offers it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._rotating, self._rank = Rotating(folder), rank

    def load(self) -> tuple[int, bool, list[str]]:
        """Step, whether the state is right, and what was passed over; step 0 if there is nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            step, state = self._rotating.load() or (0, None)
        right = state is None or is_right(state, step, self._rank)
        return step, right, [reason for _, reason in self._rotating.skipped]

    def save(self, step: int, state: Any) -> None:
        self._rotating.save(step, state)


class Naive:
    """Saving as most scripts do: every rank writes over its own file."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path, self._rank = folder / f"rank{rank}.pt", rank

    def load(self) -> tuple[int, bool, list[str]]:
        """The same; a torn file is not right."""
        if not self._path.exists():
            return 0, True, []
        try:
            state = torch.load(self._path, weights_only=True)
        except Exception:
            return 0, False, ["torn file"]
        return state["step"], is_right(state, state["step"], self._rank), []

    def save(self, step: int, state: Any) -> None:
        torch.save(state, self._path)
        dist.all_reduce(torch.zeros(1))


def rank_main(
    saver: type[Safe] | type[Naive], folder: Path, store: str, rank: int, call: int, pipe: Connection
) -> None:
    """Load, say what was found, then save and say so, for ever; `call` > 0: die at that call to the file system."""
    torch.set_num_threads(1)
    files = dist.FileStore(store, RANKS)
    dist.init_process_group("gloo", store=files, rank=rank, world_size=RANKS, timeout=timedelta(seconds=LIMIT / 2))
    try:
        ours = saver(folder, rank)
        step, right, skipped = ours.load()
        pipe.send(("loaded", step, right, skipped))
        if call:
            die_at_(call)
        while True:
            step += 1
            ours.save(step, state_of(step, rank))
            pipe.send(("saved", step))
    except RuntimeError as error:  # the other rank is gone
        pipe.send(("ended", type(error).__name__))
    os._exit(0)


def die_at_(call: int) -> None:
    """End this process by SIGKILL right before its n-th call that changes a file or a folder."""
    left = call

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return counting

    for name in ("mkdir", "fsync", "replace", "unlink", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))
    Sink.write = counted(Sink.write)  # type: ignore[method-assign]


# ----------------------------------------------------------------------------------------------------------- the trials


@dataclass
class Tally:
    """What the kills met, and what was there afterwards."""

    moments: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By what the disk held after the kill, and by who was killed."""
    skipped: Counter[str] = field(default_factory=Counter)
    saves: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def trials(self) -> int:
        return sum(self.moments.values())


@dataclass
class Rank:
    """A process, and what it has said."""

    process: Any
    pipe: Connection
    said: list[tuple[Any, ...]] = field(default_factory=list)

    def listen(self) -> bool:
        """Take in what has come; False once it is silent for ever."""
        try:
            while self.pipe.poll():
                self.said.append(self.pipe.recv())
        except (EOFError, OSError):
            return False
        return True

    @property
    def loaded(self) -> tuple[int, bool, list[str]] | None:
        return next(((said[1], said[2], said[3]) for said in self.said if said[0] == "loaded"), None)

    @property
    def saved(self) -> int:
        """The last step that `save` has returned for."""
        return max((said[1] for said in self.said if said[0] == "saved"), default=0)

    @property
    def saves(self) -> int:
        return sum(said[0] == "saved" for said in self.said)


class Trials:
    """Kills, one after the other, on one folder of checkpoints."""

    def __init__(self, saver: type[Safe] | type[Naive], folder: Path, seed: int) -> None:
        self._saver, self._folder, self._random = saver, folder, Random(seed)
        self._promised = 0  # the last step that a save has returned for on any rank
        self._newest = 0  # the step of the newest set with a manifest when the ranks were started
        self.tally = Tally()

    def run(self, count: int) -> Iterator[Tally]:
        """Kill `count` times; once more the ranks start to say what the last kill left."""
        self._places().mkdir(parents=True, exist_ok=True)
        while self.tally.trials < count:
            self._trial()
            yield self.tally
        with self._started() as ranks:
            self._await_loaded(ranks)
            self._examine(ranks)

    def _places(self) -> Path:
        return self._folder / "checkpoints"

    def _trial(self) -> None:
        victims = self._random.choice([(0,), (1,), (0, 1)])
        call = self._random.randint(1, CALLS) if self._saver is Safe and self._random.random() < 0.5 else 0
        with self._started(victims[0], call) as ranks:
            self._await_loaded(ranks)
            sound = self._examine(ranks)
            if sound:
                self._kill(ranks, victims, call)
        if not sound:
            self._start_afresh()
            return
        self._promised = max(self._promised, *(rank.saved for rank in ranks))
        self.tally.saves += max(rank.saves for rank in ranks)
        who = "both" if len(victims) == 2 else f"rank {victims[0]}"
        self.tally.moments[moment(self._places()), who] += 1

    @contextlib.contextmanager
    def _started(self, dying: int = 0, call: int = 0) -> Iterator[list[Rank]]:
        store = str(self._folder / uuid.uuid4().hex)
        self._newest = newest_sealed(self._places())  # looked at now: soon the ranks save again
        ranks = []
        for rank in range(RANKS):
            here, there = CONTEXT.Pipe(duplex=False)
            mine = call if rank == dying else 0
            arguments = (self._saver, self._places(), store, rank, mine, there)
            process = CONTEXT.Process(target=rank_main, args=arguments, daemon=True)
            process.start()
            there.close()
            ranks.append(Rank(process, here))
        try:
            yield ranks
        finally:
            for rank in ranks:
                rank.process.kill()
                rank.process.join()
                rank.pipe.close()
            Path(store).unlink(missing_ok=True)

    def _await_loaded(self, ranks: Sequence[Rank]) -> None:
        deadline = time.monotonic() + LIMIT
        while not all(rank.loaded for rank in ranks) and time.monotonic() < deadline:
            wait([rank.pipe for rank in ranks], timeout=1)
            if not all([rank.listen() for rank in ranks]):
                break
        if not all(rank.loaded for rank in ranks):
            raise AssertionError(f"the ranks did not load: {[rank.said for rank in ranks]}")

    def _examine(self, ranks: Sequence[Rank]) -> bool:
        """Whether what the ranks found on the disk is what was promised."""
        loaded = [rank.loaded or (0, False, []) for rank in ranks]
        steps = [step for step, _, _ in loaded]
        self.tally.skipped.update(loaded[0][2])
        if not all(right for _, right, _ in loaded):
            return self._find("a checkpoint is lost: torn or wrong on some rank")
        if len(set(steps)) > 1:
            return self._find("the ranks' checkpoints are of different steps")
        if steps[0] < self._promised:
            return self._find(f"older than what was saved: {steps[0]}, not {self._promised}")
        if self._saver is Safe and steps[0] != self._newest:
            return self._find(f"not the newest whole set: {steps[0]}, not {self._newest}")
        return True

    def _find(self, text: str) -> bool:
        self.tally.findings.append(text)
        return False

    def _start_afresh(self) -> None:
        """After a loss: begin the run again, as its owner would have to."""
        shutil.rmtree(self._places())
        self._places().mkdir()
        self._promised = 0

    def _kill(self, ranks: Sequence[Rank], victims: Sequence[int], call: int) -> None:
        first = ranks[victims[0]].process
        if call:
            first.join(LIMIT)  # kills itself
        else:
            time.sleep(self._random.uniform(0.0, 0.2))
        for victim in victims:
            ranks[victim].process.kill()
        for number, rank in enumerate(ranks):
            rank.process.join(LIMIT)
            if rank.process.is_alive():
                self._find(f"rank {number} hung for {LIMIT:.0f} s after {victims} was killed")
            rank.listen()


def newest_sealed(folder: Path) -> int:
    """The step of the newest set with a manifest, by a plain look at the names."""
    sealed = sorted(path.parent.name for path in folder.glob("*/manifest.json"))
    return int(sealed[-1].split("-")[-1]) if sealed else 0


def moment(folder: Path) -> str:
    """What a kill has left on the disk, and so when it came."""
    sets = sorted(path for path in folder.iterdir() if path.is_dir())
    if not sets:
        return "before the first set" if not any(folder.iterdir()) else "files written over"
    names = sorted(path.name for path in sets[-1].iterdir())
    parts = sum(name.endswith(".pt") for name in names)
    if "manifest.json" in names:
        older = [path for path in sets if not (path / "manifest.json").exists()]
        return "older sets being deleted" if len(sets) > 2 or older else "set whole"
    if "manifest.json.tmp" in names:
        return "manifest being written"
    if parts == RANKS:
        return "all parts there, no manifest"
    if parts:
        return "some parts there"
    return "parts being written" if names else "folder made"

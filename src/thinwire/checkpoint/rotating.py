"""A folder of checkpoints of which the newest whole one can always be loaded, whenever a process was killed."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from thinwire.checkpoint.part_set import Damage, Damaged, PartSet, Seal, sets_in, sync_folder
from thinwire.checkpoint.state import merge_parts
from thinwire.errors import CheckpointError, CheckpointWarning, ConfigError, StateError
from thinwire.exchange import Exchange, Group, Loopback

SEEN_WITHIN = 30.0
"""Seconds that a network file system gets to show one host what another has written."""

_SHARE = "Give a folder on a file system that all hosts share"
_NOT_SAVED = "This checkpoint counts on no rank; the older ones are as they were"
_NOT_LOADED = "Nothing was loaded on any rank"

_Result = TypeVar("_Result")
_WHOLE, _OTHER_SIZE = 0, -1  # what a rank says of a set, beside the numbers of `Damage`


class Skipped(NamedTuple):
    """A checkpoint that was passed over, and why."""

    path: Path
    reason: str


class Rotating:
    """Checkpoints in a folder that all ranks see; the newest `keep` whole ones stay.

    `save` and the loading methods are collective: every rank of the group calls them. Without a process group (a
    simulation, a notebook) this process is the only rank. One folder belongs to one run.

    In `save`, every rank writes its part under a temporary name, brings it to the disk and renames it. When all have,
    rank 0 checks that it sees every part and writes the manifest (sizes and checksums) in the same way; only then are
    older sets deleted. So at every moment a whole set is on the disk: a kill, a full disk or a loss of power costs the
    set that was being written, never one that was saved.

    >>> import tempfile
    >>> checkpoints = Rotating(tempfile.mkdtemp())
    >>> checkpoints.save(100, {"w": [1, 2]})
    >>> checkpoints.load()
    (100, {'w': [1, 2]})
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2, group: Any = None) -> None:
        if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
            raise ConfigError(f"keep must be a whole number of at least 1, got {keep!r}")
        self.folder, self.keep = Path(folder).absolute(), keep
        self.skipped: tuple[Skipped, ...] = ()
        """What the last load passed over, newest first."""
        self._group = group
        # held until the next call: see exchange.Group.begin
        self._ranks: Exchange | None = None

    def save(self, step: int, state: Any) -> None:
        """Save every rank's part of one step; when it returns, the set is on the disk, whole.

        The state may hold whatever `torch.load(weights_only=True)` gives back: tensors, numbers, text, lists, tuples
        and dicts, as `state_dict()` of thinwire, modules and optimizers are. Another one is refused here, not at load.
        A failure on one rank raises a `CheckpointError` on all of them.
        """
        _check_step(step)
        ranks = self._join()
        _check_alone(ranks)
        place = self._open(ranks, step)
        try:
            seals = self._write(ranks, place, state)
            self._seal(ranks, place, seals)
        except CheckpointError:
            if ranks.rank == 0:
                _remove(place)
            raise
        if ranks.rank == 0:
            self._prune(place)

    def load(self, map_location: Any = "cpu") -> tuple[int, Any] | None:
        """Step and this rank's state from the newest whole set, the same set on every rank; None if there is none."""

        def own(place: PartSet, ranks: Exchange) -> Any:
            seals = place.seals()
            if len(seals) != ranks.size:
                raise _OtherSize(len(seals))
            return place.read(ranks.rank, seals[ranks.rank], map_location)

        return self._newest(own)

    def resume(self, map_location: Any = "cpu") -> tuple[int, Any] | None:
        """As `load`, but of another number of ranks too: for launchers that start again with those that are left.

        A rank then gets rank 0's part, in which each state of a handle is that of all ranks, merged: load it with
        `on_resize="redistribute"`. Every rank reads all parts.

        >>> import tempfile
        >>> checkpoints = Rotating(tempfile.mkdtemp())
        >>> checkpoints.save(100, {"w": [1, 2]})
        >>> checkpoints.resume()
        (100, {'w': [1, 2]})
        """

        def own_or_all(place: PartSet, ranks: Exchange) -> Any:
            seals = place.seals()
            if len(seals) == ranks.size:
                return place.read(ranks.rank, seals[ranks.rank], map_location)
            return merge_parts([place.read(rank, seal, map_location) for rank, seal in enumerate(seals)])

        return self._newest(own_or_all)

    def parts(self, map_location: Any = "cpu") -> tuple[int, list[Any]] | None:
        """Step and the states of all ranks that saved it, in rank order: for `merge_states` and another world size."""

        def every(place: PartSet, ranks: Exchange) -> list[Any]:
            return [place.read(rank, seal, map_location) for rank, seal in enumerate(place.seals())]

        return self._newest(every)

    def latest(self) -> int | None:
        """The step of the newest whole set: its parts are read and checked, the work shared among the ranks."""

        def checked(place: PartSet, ranks: Exchange) -> None:
            for rank, seal in list(enumerate(place.seals()))[ranks.rank :: ranks.size]:
                place.check(rank, seal)

        found = self._newest(checked)
        return found[0] if found else None

    # ---------------------------------------------------------------------------------------------------------- saving

    def _join(self) -> Exchange:
        self._ranks = _joined(self._group)
        self._ranks.begin("saving or loading")
        return self._ranks

    def _open(self, ranks: Exchange, step: int) -> PartSet:
        """A new set's place: rank 0 makes the folder and tells its serial number; all mean the same step."""

        def make() -> tuple[int, int]:
            return (self._create(step) if ranks.rank == 0 else 0), step

        rows = _attempt(ranks, make, lambda rank: f"make a place in {self.folder}", _NOT_SAVED)
        place = PartSet(rows[0][0], rows[0][1], self.folder)
        odd = next((rank for rank, (_, other) in enumerate(rows) if other != place.step), None)
        if odd is None:
            return place
        if ranks.rank == 0:
            _remove(place)
        raise StateError(
            f"rank 0 saves step {place.step} and rank {odd} saves step {rows[odd][1]}: nothing was saved. Every rank "
            "calls save after the same step"
        )

    def _create(self, step: int) -> int:
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True)
            sync_folder(self.folder.parent)
        newest = next((place.serial for place in sets_in(self.folder)), 0)
        PartSet(newest + 1, step, self.folder).create()
        return newest + 1

    def _write(self, ranks: Exchange, place: PartSet, state: Any) -> list[Seal]:
        def write() -> tuple[int, int]:
            if not _await(place.path.is_dir):
                raise StateError(f"rank {ranks.rank} does not see {place.path}, which rank 0 has made. {_SHARE}")
            seal = place.write(ranks.rank, state)
            return seal.size, seal.crc

        return [Seal(*row) for row in _attempt(ranks, write, lambda rank: f"write {place.part(rank)}", _NOT_SAVED)]

    def _seal(self, ranks: Exchange, place: PartSet, seals: Sequence[Seal]) -> None:
        def seal() -> tuple[int, int]:
            if ranks.rank == 0:
                _see(place, seals)
                place.seal(seals)
            return 0, 0

        _attempt(ranks, seal, lambda rank: f"complete {place.path}", _NOT_SAVED)

    def _prune(self, newest: PartSet) -> None:
        """Delete what is older than the set just written, but for the `keep` newest whole ones."""
        kept, damaged = 0, {path for path, _ in self.skipped}  # a changed part shows only when it is read
        for place in sets_in(self.folder):
            try:
                if place.is_whole() and place.path not in damaged and kept < self.keep:
                    kept += 1
                elif place < newest:
                    place.remove()
            except (OSError, StateError) as error:
                _warn(f"the old checkpoint {place.path} was not deleted: {error}")

    # --------------------------------------------------------------------------------------------------------- loading

    def _newest(self, read: Callable[[PartSet, Exchange], _Result]) -> tuple[int, _Result] | None:
        """What `read` gives on this rank for the newest set that it can be done for on every rank."""
        ranks, self.skipped = self._join(), ()
        skipped: list[Skipped] = []
        for place in _told(ranks, self.folder):
            results, reason = _read_together(ranks, place, read)
            if reason is None:
                self._report(ranks, skipped, f"loaded step {place.step}")
                return place.step, results[0]
            skipped.append(Skipped(place.path, reason))
        self._report(ranks, skipped, "there is no other")
        return None

    def _report(self, ranks: Exchange, skipped: Sequence[Skipped], taken: str) -> None:
        """Say what was passed over: to the caller in `skipped`, to the reader of the log once, from rank 0."""
        self.skipped = tuple(skipped)
        if ranks.rank == 0:
            for path, reason in skipped:
                _warn(f"passed over the checkpoint {path}: {reason}; {taken}")


def _joined(group: Any) -> Exchange:
    """The ranks of a process group, the default one if there is any; else this process by itself."""
    try:
        ranks = Group(group)
    except ValueError:  # torch: "Default process group has not been initialized"
        if group is not None:
            raise
        return Loopback(1).ends[0]
    if ranks.rank < 0:
        raise ConfigError("this process is not a member of the group: only members save and load")
    return ranks


def _check_alone(ranks: Exchange) -> None:
    """A launcher's rank that has not joined its group would write as if it were the only one, and so would the rest."""
    launched = os.environ.get("WORLD_SIZE", "1")
    if not isinstance(ranks, Group) and launched.isdigit() and int(launched) > 1:
        raise ConfigError(
            f"WORLD_SIZE is {launched}, but this process has joined no process group: call "
            "torch.distributed.init_process_group before saving (or unset WORLD_SIZE if there is only this process)"
        )


class _OtherSize(Exception):
    """The set was saved by another number of ranks."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def _attempt(
    ranks: Exchange, action: Callable[[], tuple[int, int]], what: Callable[[int], str], outcome: str
) -> list[tuple[int, int]]:
    """Two numbers from every rank's action or, if one rank's fails in whatever way, an error on all ranks."""
    numbers, failure = (0, 0), None
    try:
        numbers = action()
    except Exception as error:  # whatever it is: the others are waiting, and must be told
        failure = error
    rows = ranks.everyone([_code(failure), *numbers], "a checkpoint")
    failed = {rank: code for rank, (code, *_) in enumerate(rows) if code}
    if not failed:
        return [(first, second) for _, first, second in rows]
    rank = ranks.rank if failure is not None else min(failed)
    why = str(failure) if failure is not None else _in_words(failed[rank])
    raise CheckpointError(f"rank {rank} could not {what(rank)}: {why}. {outcome}") from failure


def _code(failure: Exception | None) -> int:
    """A failure as a number: 0 is none, a positive one is the system's."""
    if failure is None:
        return 0
    return (failure.errno if isinstance(failure, OSError) else None) or -1


def _in_words(code: int) -> str:
    return os.strerror(code) if code > 0 else "its own error says why"


def _check_step(step: int) -> None:
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**63:
        raise ConfigError(f"step must be a whole number from 0 to 2^63 - 1, got {step!r}")


def _await(condition: Callable[[], bool]) -> bool:
    """Whether a condition holds, now or soon: network file systems show new names late."""
    deadline = time.monotonic() + SEEN_WITHIN
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds


def _see(place: PartSet, seals: Sequence[Seal]) -> None:
    """Make sure that rank 0 sees what the others have written."""
    for rank, seal in enumerate(seals):
        if not _await(partial(place.is_there, rank, seal)):
            raise StateError(
                f"rank {rank} has written {place.part(rank)} ({seal.size} bytes), but rank 0 does not see it. {_SHARE}"
            )


def _told(ranks: Exchange, folder: Path) -> Iterator[PartSet]:
    """The sets that rank 0 sees, newest first; every rank takes them one by one, in step with the others."""
    sets: list[PartSet] | None = None if ranks.rank == 0 else []

    def following() -> tuple[int, int]:
        nonlocal sets
        sets = sets_in(folder) if sets is None else sets
        place = sets.pop(0) if sets else None
        return (place.serial, place.step) if place else (0, 0)

    while True:
        serial, step = _attempt(ranks, following, lambda rank: f"list {folder}", _NOT_LOADED)[0]
        if not serial:
            return
        yield PartSet(serial, step, folder)


def _read_together(
    ranks: Exchange, place: PartSet, read: Callable[[PartSet, Exchange], _Result]
) -> tuple[list[_Result], str | None]:
    """This rank's result, if every rank has one; otherwise why not."""
    results: list[_Result] = []

    def attempt() -> tuple[int, int]:
        try:
            results.append(read(place, ranks))
        except Damaged as damaged:
            return damaged.damage, damaged.rank
        except _OtherSize as other:
            return _OTHER_SIZE, other.size
        return _WHOLE, 0

    rows = _attempt(ranks, attempt, lambda rank: f"read its part of {place.path}", _NOT_LOADED)
    code, detail = next((row for row in rows if row[0] != _WHOLE), (_WHOLE, 0))
    if code == _OTHER_SIZE:
        raise StateError(
            f"{place.path} was saved by {detail} ranks, this group has {ranks.size}. Rotating.resume() loads such a "
            "checkpoint too: of rank 0, with the handles' states of all ranks merged. Load those with "
            'on_resize="redistribute"'
        )
    return results, None if code == _WHOLE else str(Damage(code)).format(part=place.part(detail).name)


def _remove(place: PartSet) -> None:
    """Delete a set that did not come about; what cannot be deleted now goes with the next save."""
    try:
        place.remove()
    except OSError as error:
        _warn(f"the unfinished checkpoint {place.path} could not be deleted: {error}")


def _warn(text: str) -> None:
    warnings.warn(text, CheckpointWarning, stacklevel=2)

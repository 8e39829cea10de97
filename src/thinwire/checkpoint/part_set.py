"""One checkpoint on the disk: a folder with a part for each rank and, written last, the manifest that seals them.

Each of its files is there wholly or not at all, also after a kill or a loss of power.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

from thinwire.errors import StateError

FORMAT = 1
_NAME = re.compile(r"(\d{8,})-step-(\d+)")
_BLOCK = 1 << 22


@dataclass(frozen=True)
class Seal:
    """What a file's bytes are known by: how many there are, and their CRC-32."""

    size: int
    crc: int


class Damage(IntEnum):
    """What can be wrong with a set; a number, so that ranks can tell each other."""

    UNSEALED = 1
    GARBLED = 2
    MISSING = 3
    CUT = 4
    CHANGED = 5
    UNREADABLE = 6

    def __str__(self) -> str:
        return {
            Damage.UNSEALED: "it has no manifest: the run ended while it was being written",
            Damage.GARBLED: "its manifest cannot be read",
            Damage.MISSING: "{part} is missing",
            Damage.CUT: "{part} does not have the length that the manifest gives",
            Damage.CHANGED: "{part} does not have the checksum that the manifest gives",
            Damage.UNREADABLE: "the disk does not give {part} back",
        }[self]


class Damaged(Exception):
    """A set that cannot be used; it stays within this package."""

    def __init__(self, damage: Damage, rank: int = 0) -> None:
        super().__init__(damage, rank)
        self.damage, self.rank = damage, rank


@dataclass(frozen=True, order=True)
class PartSet:
    """A checkpoint's place. Serial numbers say which is newer, because a run that goes back repeats its steps."""

    serial: int
    step: int
    folder: Path

    @property
    def path(self) -> Path:
        """The set's own folder."""
        return self.folder / f"{self.serial:08d}-step-{self.step}"

    def part(self, rank: int) -> Path:
        """Where a rank's part lies. Names are not read from the manifest: it cannot point elsewhere."""
        return self.path / f"rank{rank:05d}.pt"

    @property
    def manifest(self) -> Path:
        """What makes a set count: there once every part is."""
        return self.path / "manifest.json"

    def create(self) -> None:
        """Make the folder, which must be new."""
        self.path.mkdir()
        sync_folder(self.folder)

    def write(self, rank: int, state: Any) -> Seal:
        """Write a rank's part."""
        return write_part(self.part(rank), state)

    def seal(self, seals: Sequence[Seal]) -> None:
        """Write the manifest: from here on the set is whole."""
        text = json.dumps(
            {
                "format": FORMAT,
                "step": self.step,
                "world_size": len(seals),
                "parts": [{"size": seal.size, "crc32": seal.crc} for seal in seals],
            },
            indent=1,
        )
        write_durably(self.manifest, lambda sink: sink.write(text.encode()))

    def seals(self) -> tuple[Seal, ...]:
        """What the manifest says of each rank's part, in rank order."""
        try:
            text = self.manifest.read_bytes()
        except FileNotFoundError:
            raise Damaged(Damage.UNSEALED) from None
        try:
            manifest = json.loads(text)
        except ValueError:
            raise Damaged(Damage.GARBLED) from None
        self._check_format(manifest)
        try:
            return _seals(manifest, self.step)
        except ValueError:
            raise Damaged(Damage.GARBLED) from None

    def _check_format(self, manifest: Any) -> None:
        """A set of another thinwire is not damaged: it is neither passed over nor deleted."""
        match manifest:
            case {"format": int(other)} if other != FORMAT:
                raise StateError(f"{self.path} has format {other}, this thinwire reads format {FORMAT}")

    def check(self, rank: int, seal: Seal) -> None:
        """Read a part and hold it against its seal."""
        self.measure(rank, seal)
        try:
            found = seal_of(self.part(rank))
        except PermissionError:
            raise
        except OSError:
            raise Damaged(Damage.UNREADABLE, rank) from None
        if found != seal:
            raise Damaged(Damage.CHANGED, rank)

    def measure(self, rank: int, seal: Seal) -> None:
        """Whether a part is there in its full length, without reading it."""
        try:
            size = self.part(rank).stat().st_size
        except FileNotFoundError:
            raise Damaged(Damage.MISSING, rank) from None
        if size != seal.size:
            raise Damaged(Damage.CUT, rank)

    def is_there(self, rank: int, seal: Seal) -> bool:
        """Whether a part can be seen in its full length."""
        try:
            self.measure(rank, seal)
        except Damaged:
            return False
        return True

    def read(self, rank: int, seal: Seal, map_location: Any) -> Any:
        """A rank's part, checked before it is unpickled; only what `weights_only` allows."""
        self.check(rank, seal)
        return torch.load(self.part(rank), map_location=map_location, weights_only=True)

    def is_whole(self) -> bool:
        """Whether the manifest and all parts are there in full length."""
        try:
            seals = self.seals()
        except Damaged:
            return False
        return all(self.is_there(rank, seal) for rank, seal in enumerate(seals))

    def remove(self) -> None:
        """Delete the set, the manifest first: what a kill leaves of it does not count as a set."""
        self.manifest.unlink(missing_ok=True)
        shutil.rmtree(self.path)


def sets_in(folder: Path) -> list[PartSet]:
    """Every set in a folder, whole or not, newest first; other names are none of ours."""
    return sorted(_sets(folder), reverse=True) if folder.is_dir() else []


def _sets(folder: Path) -> Iterator[PartSet]:
    for path in folder.iterdir():
        name = _NAME.fullmatch(path.name)
        if name and path.is_dir():
            yield PartSet(int(name[1]), int(name[2]), folder)


def write_part(path: Path, state: Any) -> Seal:
    """Write a state. It must load again before it gets its name: a part that cannot be read is no part."""
    return write_durably(path, lambda sink: torch.save(state, sink), _proof)  # type: ignore[arg-type]


def _proof(path: Path) -> None:
    """That a file loads again. Mapped, not read: 1 ms for 200 MB."""
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError:
        odd = ", ".join(sorted(get_unsafe_globals_in_checkpoint(path))) or "something"
        raise StateError(
            f"the state holds {odd}, which torch.load(weights_only=True) does not give back. Save tensors, numbers, "
            "text, lists, tuples and dicts (torch.from_numpy makes an array a tensor), or allow the type with "
            "torch.serialization.add_safe_globals wherever you save and load"
        ) from None


def _seals(manifest: Any, step: int) -> tuple[Seal, ...]:
    match manifest:
        case {"format": int(), "step": int(saved), "world_size": int(size), "parts": [*parts]}:
            if saved == step and size == len(parts) > 0:
                return tuple(_seal(part) for part in parts)
    raise ValueError("not a manifest of this set")


def _seal(part: Any) -> Seal:
    match part:
        case {"size": int(size), "crc32": int(crc)}:
            return Seal(size, crc)
    raise ValueError("not a seal")


# --------------------------------------------------------------------------------------------------- durable files


class Sink:
    """A file that is being written, sealed as it grows."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.seal = file, Seal(0, 0)
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Append; the first failure is kept, because torch's writer hides it behind "unexpected pos 704 vs 598"."""
        try:
            self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        count = memoryview(data).nbytes
        self.seal = Seal(self.seal.size + count, zlib.crc32(data, self.seal.crc))
        return count

    def flush(self) -> None:
        """Leave it to the end: what counts is one `fsync` of the whole file."""


def write_durably(path: Path, write: Callable[[Sink], object], check: Callable[[Path], object] | None = None) -> Seal:
    """Write a temporary file beside `path`, bring it to the disk, check it, give it its name: in this order.

    A kill leaves the old file (or none) and perhaps a temporary one. The name is on the disk too when this returns.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        seal = _write_and_sync(temporary, write)
        if check is not None:
            check(temporary)
        os.replace(temporary, path)
        sync_folder(path.parent)
    except Exception:
        with contextlib.suppress(OSError):  # on a full disk the space is wanted back at once
            temporary.unlink(missing_ok=True)
        raise
    return seal


def _write_and_sync(path: Path, write: Callable[[Sink], object]) -> Seal:
    with open(path, "wb") as file:
        sink = Sink(file)
        try:
            write(sink)
        except RuntimeError as hidden:
            raise sink.error or hidden from None
        file.flush()
        os.fsync(file.fileno())
    return sink.seal


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems sync names by themselves
            raise
    finally:
        os.close(handle)


def seal_of(path: Path) -> Seal:
    """The seal of a file that is there: reads all of it."""
    size = crc = 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return Seal(size, crc)

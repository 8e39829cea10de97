"""A file that is there wholly or not at all, also after a kill or a loss of power."""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 22


@dataclass(frozen=True)
class Seal:
    """What a file's bytes are known by: how many there are, and their CRC-32."""

    size: int
    crc: int


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


def write_durably(path: Path, write: Callable[[Sink], None], check: Callable[[Path], object] | None = None) -> Seal:
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


def _write_and_sync(path: Path, write: Callable[[Sink], None]) -> Seal:
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

"""A destination: a file that a command will write, checked before the work, and written whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from thinwire.errors import ConfigError

FORCE = "--force writes over it"
RESUME = "--resume goes on with it, --force begins it anew"
"""What may be done about a record that is there, where a command can go on with it."""


def check_destination(path: Path, what: str, option: str, *, force: bool, remedy: str = FORCE) -> None:
    """Refuse, before any work, a path that cannot be written, or one that is taken and that `force` does not give up.

    An empty file is not taken: nothing is lost with it. The check changes nothing.
    """
    try:
        there = _status(path)
        _try_folder(path.parent)
    except OSError as error:
        raise _unwritable(path, what, option, error) from None
    if there is None:
        return
    if not (stat.S_ISREG(there.st_mode) or stat.S_ISLNK(there.st_mode)):
        raise ConfigError(f"the {what} {path} cannot be written: it is no plain file; give {option} another path")
    if there.st_size and not force:
        raise ConfigError(_taken(path, what, option, remedy))


def check_distinct(first: Path, second: Path, names: str) -> None:
    """Refuse two paths that are one file, which would be written over."""
    if first.resolve() == second.resolve():
        raise ConfigError(f"{names} are the same file, {first}; give them different paths")


def write_whole(text: str, path: Path, what: str, option: str) -> None:
    """Write a text to a temporary file beside `path`, and give it its name once all of it is on the disk.

    Whatever goes wrong, `path` holds what it held before. A symbolic link is replaced, and its target left alone.
    """
    temporary = _beside(path, "tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("x", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, what, option, error) from None


@contextmanager
def begun(record: Path, *, resume: bool) -> Iterator[None]:
    """A new, empty record to append to, or with `resume` the one that is there; if nothing is written, none is left.

    A file that stood there lies aside meanwhile: it comes back if nothing is written, and else is removed.
    """
    aside = None
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        if not resume and os.path.lexists(record):
            aside = record.rename(_beside(record, "old"))
        record.open("ab" if resume else "xb").close()
    except OSError as error:
        raise _unwritable(record, "record", "--out", error) from None
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            if not record.stat().st_size:
                record.unlink()
        if aside and not os.path.lexists(record):
            aside.rename(record)
        elif aside:
            aside.unlink()


def _status(path: Path) -> os.stat_result | None:
    """Of what is there, a link itself and not its target; None where nothing is."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _try_folder(folder: Path) -> None:
    """An OSError where no file can be made in the folder, or in the nearest above it that exists."""
    while not os.path.lexists(folder):
        folder = folder.parent
    with tempfile.TemporaryFile(dir=folder):
        pass


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f".thinwire-{uuid.uuid4().hex[:12]}.{ending}")


def _taken(path: Path, what: str, option: str, remedy: str) -> str:
    if path.is_symlink():
        return (
            f"the {what} {path} is a symbolic link to {path.readlink()}; --force puts a file in the link's place and "
            f"leaves what it points to alone, or give {option} another path"
        )
    return f"the {what} {path} exists already: {remedy}, or give {option} another path"


def _unwritable(path: Path, what: str, option: str, error: OSError) -> ConfigError:
    return ConfigError(f"the {what} {path} cannot be written: {error.strerror}; give {option} another path")

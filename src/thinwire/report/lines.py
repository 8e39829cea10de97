"""Lines: a file of JSON objects, one a line, that is whole up to its last line whatever ends the writing."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import final

from thinwire.errors import RecordError

BEGINNING = b'{"kind":'
"""How every line of ours begins. Nothing else is ever cut off: a file that is no record is left as it is."""


@final
class LineWriter:
    """Appends lines, each written at once so that the file can be watched while it grows.

    A line that does not fit (a full disk) is taken back, so that what stands before it remains a record.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._stream = path.open("ab", buffering=0)  # no buffer: nothing is left over to fail when it is closed
        except OSError as error:
            raise RecordError(f"record {path} cannot be written: {error.strerror}; give --out another path") from None

    @property
    def empty(self) -> bool:
        """Whether nothing is in the file yet."""
        return not self._size()

    def write(self, line: str) -> None:
        """Append one line; a `RecordError` where it cannot be written."""
        whole, rest = self._size(), memoryview((line + "\n").encode())
        try:
            while rest:
                rest = rest[self._stream.write(rest) :]
        except OSError as error:
            with suppress(OSError):
                self._stream.truncate(whole)
            raise RecordError(
                f"record {self._path} cannot be written any further: {error.strerror}; what stands in it is whole and "
                "can be read. Make room, or give --out another path, and run again"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _size(self) -> int:
        return os.fstat(self._stream.fileno()).st_size


def split_lines(content: bytes) -> tuple[list[bytes], bytes]:
    """The lines of a record, and what is left of one that was cut off while it was written.

    >>> split_lines(b'{"kind": "a"}\\n{"kind": "b"}')
    ([b'{"kind": "a"}', b'{"kind": "b"}'], b'')
    >>> split_lines(b'{"kind": "a"}\\n{"kin')
    ([b'{"kind": "a"}'], b'{"kin')
    """
    *lines, last = content.split(b"\n")
    if not last.strip():
        return lines, b""
    try:
        json.loads(last)
    except ValueError:
        return lines, last
    return [*lines, last], b""


def is_ours(torn: bytes) -> bool:
    """Whether the rest of a line that was cut off is the beginning of one of ours."""
    return torn.startswith(BEGINNING) or BEGINNING.startswith(torn)


def cut_torn_line_(path: Path) -> None:
    """Make a record end with a whole line, so that others can follow."""
    content = path.read_bytes()
    _, torn = split_lines(content)
    with path.open("r+b") as stream:
        if torn and is_ours(torn):
            stream.truncate(len(content) - len(torn))
        elif content and not content.endswith(b"\n"):
            stream.seek(0, os.SEEK_END)
            stream.write(b"\n")

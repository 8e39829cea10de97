"""Records of a paper's experiment: one line a run, written as it ends, behind a line that says where they come from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from thinwire.errors import RecordError
from thinwire.experiments.provenance import provenance

FORMAT = 1


class Outcome(Protocol):
    """What a run did."""

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""


Read = TypeVar("Read")


class Writer:
    """Appends runs to a record, each flushed at once: Ctrl-C keeps those that ended.

    The line that heads a record is written with its first run, so that what ends before leaves no file behind.
    """

    def __init__(self, path: Path, kind: str, command: Sequence[str], *, resume: bool = False) -> None:
        if path.is_file() and path.stat().st_size:
            _check_existing(path, kind, resume)
        self._path, self._kind, self._command = path, kind, command
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = path.open("a", encoding="utf-8")
        except OSError as error:
            raise RecordError(f"record {path} cannot be written: {error.strerror}; give another --out") from None

    def add(self, outcome: Outcome) -> None:
        if not self._stream.tell():
            self._write({"kind": self._kind, "format": FORMAT, "provenance": provenance(self._command)})
        self._write({"kind": "run", **outcome.plain()})

    def close(self) -> None:
        empty = not self._stream.tell()
        self._stream.close()
        if empty:
            self._path.unlink()

    def _write(self, line: dict[str, Any]) -> None:
        self._stream.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._stream.flush()


def read_runs(path: Path, kind: str, outcome: Callable[[dict[str, Any]], Read]) -> list[Read]:
    """The runs of a record of this kind; anything malformed is a `RecordError` with its line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"record {path} cannot be read: {error}") from None
    found = []
    for number, text in enumerate(lines, start=1):
        try:
            line = json.loads(text)
            if number == 1:
                _check_first(line, kind)
            else:
                line.pop("kind")
                found.append(outcome(line))
        except (ValueError, KeyError, TypeError) as problem:
            raise RecordError(
                f"record {path}, line {number}: not a run of `thinwire reproduce {kind}` ({problem}); "
                "delete the line, or give another --out"
            ) from None
    return found


def _check_existing(path: Path, kind: str, resume: bool) -> None:
    """Refuse to write to a file that is not to be gone on with, or is no record of this kind."""
    if not resume:
        raise RecordError(
            f"record {path} exists already: --resume goes on with it, another --out begins anew; nothing was written"
        )
    read_runs(path, kind, lambda line: line)


def _check_first(line: dict[str, Any], kind: str) -> None:
    if (line["kind"], line["format"]) != (kind, FORMAT):
        raise ValueError(f"kind {line['kind']}, format {line['format']}; expected {kind}, {FORMAT}")

"""A record: a file of JSON lines. A head says which experiment the runs are of and where they come from; runs follow.

It is whole up to its last line, whatever ends the writing. The first records of training have no head: they begin
with a `run` line, which tells the same.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, final

import torch

from thinwire.errors import RecordError, RecordWarning
from thinwire.report.destination import RESUME, begun, check_destination
from thinwire.report.page import Section
from thinwire.report.provenance import provenance

FORMAT = 1
"""Version of the record's format; a reader refuses any other."""
TRAINING = "training"
"""The experiment of `thinwire train`, `compare` and `demo`."""
KINDS = ("run", "step", "eval", "end")
"""Lines that are no head."""
BEGINNING = b'{"kind":'
"""How every line of ours begins. Nothing else is ever cut off: a file that is no record is left as it is."""
Read = TypeVar("Read")


@dataclass(frozen=True)
class Line:
    """One line of a record, and where it stands."""

    path: Path
    number: int
    content: dict[str, Any]

    def error(self, problem: str) -> RecordError:
        return _error(self.path, self.number, problem)

    def warn(self, what: str) -> None:
        _warn(self.path, self.number, what)


@dataclass(frozen=True)
class Record:
    """A record as it was read: the lines behind its head."""

    path: Path
    experiment: str
    provenance: Mapping[str, Any] | None
    """What its head tells; None where there is no head, and each run tells it."""
    lines: Sequence[Line]


def head(origin: Mapping[str, Any]) -> dict[str, Any]:
    """The first line of a record."""
    return {"kind": origin.get("experiment", TRAINING), "format": FORMAT, "provenance": origin}


def read_record(path: Path) -> Record:
    """The record at `path`; anything that is none is a `RecordError`.

    A last line that was cut off while it was written is left out with a `RecordWarning`.
    """
    lines = _read_lines(path)
    first = lines[0].content
    if first.get("format") != FORMAT and "format" in first:
        raise lines[0].error(
            f"format {first['format']}, but this thinwire reads format {FORMAT}; use the version that wrote it"
        )
    if first["kind"] in KINDS:
        return Record(path, _experiment_before_heads(first), None, lines)
    return Record(path, first["kind"], first.get("provenance"), lines[1:])


def _experiment_before_heads(run: Mapping[str, Any]) -> str:
    """`reproduce vgc` wrote what training writes: its command tells."""
    origin = run.get("provenance")
    command = origin.get("command", "") if isinstance(origin, dict) else ""
    return "vgc" if str(command).split()[1:3] == ["reproduce", "vgc"] else TRAINING


def _read_lines(path: Path) -> list[Line]:
    try:
        lines, torn = split_lines(path.read_bytes())
    except OSError as error:
        reason = error.strerror or error
        raise RecordError(f"record {path} cannot be read: {reason}; give a file that thinwire wrote") from None
    if torn and any(lines) and is_ours(torn):
        _warn(path, len(lines) + 1, "this line was cut off while it was written and is left out")
    elif torn:
        lines = [*lines, torn]
    found = [_line(path, number, raw) for number, raw in enumerate(lines, start=1) if raw.strip()]
    if not found:
        raise _error(path, 1, "the file is empty; the run never started, so run it again")
    return found


def _line(path: Path, number: int, raw: bytes) -> Line:
    try:
        content = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise _error(path, number, f"not UTF-8 text (byte {error.start}); give a file that thinwire wrote") from None
    except ValueError as error:
        raise _error(path, number, f"malformed: not a JSON object ({error}); give a file that thinwire wrote") from None
    if not isinstance(content, dict) or not isinstance(content.get("kind"), str):
        raise _error(path, number, f'malformed: an object with "kind" is expected, got {raw[:60]!r}')
    return Line(path, number, content)


def _error(path: Path, number: int, problem: str) -> RecordError:
    return RecordError(f"record {path}, line {number}: {problem}")


def _warn(path: Path, number: int, what: str) -> None:
    warnings.warn(f"record {path}, line {number}: {what}", RecordWarning, stacklevel=3)


# ------------------------------------------------------------------------------------------- records of one line a run


def one_line_each(experiment: str, run: Callable[[dict[str, Any]], Read]) -> Callable[[Sequence[Line]], list[Read]]:
    """A reader of runs that take one line each: `run` makes a run of what its line holds."""

    def read(lines: Sequence[Line]) -> list[Read]:
        return [_run(line, experiment, run) for line in lines]

    return read


def _run(line: Line, experiment: str, run: Callable[[dict[str, Any]], Read]) -> Read:
    content = {name: value for name, value in line.content.items() if name != "kind"}
    try:
        return run(content)
    except (ValueError, KeyError, TypeError) as problem:
        raise line.error(
            f"not a run of the experiment {experiment!r} ({problem!r}); delete the line, or give another record"
        ) from None


class Finished(Protocol):
    """A run that came to its end."""

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""


@final
class Writer:
    """Appends runs to a record, each written at once: Ctrl-C keeps those that ended.

    The line that heads a record is written with its first run, so that what ends before leaves no file behind.
    """

    def __init__(
        self, path: Path, experiment: str, command: Sequence[str], *, resume: bool = False, force: bool = False
    ) -> None:
        if not resume:
            check_destination(path, "record", "--out", force=force, remedy=RESUME)
        elif path.is_file() and path.stat().st_size:
            _check_existing(path, experiment)
        self._experiment, self._command = experiment, command
        with ExitStack() as stack:
            stack.enter_context(begun(path, resume=resume))
            self._lines = LineWriter(path)
            stack.callback(self._lines.close)
            self._open = stack.pop_all()

    def add(self, run: Finished) -> None:
        """Append a run."""
        if self._lines.empty:  # the head line names the device of the run that ended just now
            used = "cuda" if torch.cuda.is_initialized() else "cpu"  # type: ignore[no-untyped-call]
            self._write(head(provenance(self._command, used, self._experiment)))
        self._write({"kind": "run", **run.plain()})

    def close(self) -> None:
        """Close the file; one in which nothing was written is removed."""
        self._open.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._lines.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")))


def check_experiment(record: Record, experiment: str) -> Record:
    """The record; a `RecordError` where it is one of another experiment."""
    if record.experiment != experiment:
        problem = f"a record of the experiment {record.experiment!r}, and not of {experiment!r}; give another path"
        raise _error(record.path, 1, problem)
    return record


def _check_existing(path: Path, experiment: str) -> None:
    """Refuse to go on with a file that is no record of this experiment; let it end with a whole line."""
    with warnings.catch_warnings(action="ignore", category=RecordWarning):  # whoever took the runs was told
        check_experiment(read_record(path), experiment)
    cut_torn_line_(path)


# ----------------------------------------------------------------------------------------------------------- experiment


@dataclass(frozen=True)
class Experiment(Generic[Read]):
    """What `thinwire report` must know to draw a record whose head has this name."""

    name: str
    read: Callable[[Sequence[Line]], list[Read]]
    """The runs of a record, from the lines behind its head."""
    sections: Callable[[Sequence[Read]], list[Section]]
    """What a page shows of the runs."""

    def runs(self, path: Path) -> list[Read]:
        """The runs of the record at `path`, which must be one of this experiment."""
        return self.read(check_experiment(read_record(path), self.name).lines)


# ---------------------------------------------------------------------------------------------------------------- lines


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

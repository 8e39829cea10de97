"""Records of a paper's experiment: one line a run, written as it ends, behind a line that says where they come from."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, TypeVar

from thinwire.errors import RecordError, RecordWarning
from thinwire.training.destination import RESUME, begun, check_destination
from thinwire.training.lines import LineWriter, cut_torn_line_, is_ours, split_lines
from thinwire.training.provenance import provenance

FORMAT = 1


class Outcome(Protocol):
    """What a run did."""

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""


Read = TypeVar("Read")


class Writer:
    """Appends runs to a record, each written at once: Ctrl-C keeps those that ended.

    The line that heads a record is written with its first run, so that what ends before leaves no file behind.
    """

    def __init__(
        self, path: Path, kind: str, command: Sequence[str], *, resume: bool = False, force: bool = False
    ) -> None:
        if not resume:
            check_destination(path, "record", "--out", force=force, remedy=RESUME)
        elif path.is_file() and path.stat().st_size:
            _check_existing(path, kind)
        self._kind, self._command = kind, command
        with ExitStack() as stack:
            stack.enter_context(begun(path, resume=resume))
            self._lines = LineWriter(path)
            stack.callback(self._lines.close)
            self._open = stack.pop_all()

    def add(self, outcome: Outcome) -> None:
        if self._lines.empty:
            self._write({"kind": self._kind, "format": FORMAT, "provenance": provenance(self._command)})
        self._write({"kind": "run", **outcome.plain()})

    def close(self) -> None:
        self._open.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._lines.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")))


def read_runs(path: Path, kind: str, outcome: Callable[[dict[str, Any]], Read]) -> list[Read]:
    """The runs of a record of this kind; anything malformed is a `RecordError` with its line.

    A last line that was cut off while it was written is left out with a `RecordWarning`.
    """
    try:
        lines, torn = split_lines(path.read_bytes())
    except OSError as error:
        raise RecordError(f"record {path} cannot be read: {error}") from None
    if torn and is_ours(torn):
        what = f"record {path}, line {len(lines) + 1} was cut off while it was written and is left out"
        warnings.warn(what, RecordWarning, stacklevel=2)
    elif torn:
        lines.append(torn)
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


def _check_existing(path: Path, kind: str) -> None:
    """Refuse to go on with a file that is no record of this kind; let it end with a whole line."""
    with warnings.catch_warnings(action="ignore", category=RecordWarning):  # whoever took the runs was told
        read_runs(path, kind, lambda line: line)
    cut_torn_line_(path)


def _check_first(line: dict[str, Any], kind: str) -> None:
    if (line["kind"], line["format"]) != (kind, FORMAT):
        raise ValueError(f"kind {line['kind']}, format {line['format']}; expected {kind}, {FORMAT}")

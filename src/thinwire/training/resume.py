"""Resuming: a record that broke off keeps its finished runs, and training goes on with the others."""

from __future__ import annotations

import json
from pathlib import Path

from thinwire.errors import RecordError
from thinwire.training.lines import split_lines
from thinwire.training.records import RunRecord, read_records

BEGINNING = b'{"kind": "run"'
"""How the recorder begins a run. Nothing else is ever cut off: a file that is no record is left as it is."""


def finished_runs(record: Path) -> list[RunRecord]:
    """The runs that came to their end; what a broken-off one wrote after them is cut off the file."""
    if not record.is_file():
        return []
    content = record.read_bytes()
    end = _end_of_last_run(content)
    rest = content[end:]
    if rest.startswith(BEGINNING) or BEGINNING.startswith(rest):
        with record.open("r+b") as stream:
            stream.truncate(end)
    elif split_lines(rest)[1]:
        raise RecordError(f"record {record} ends with what is no line of a record, {rest[-60:]!r}; nothing was changed")
    runs = read_records([record]) if record.stat().st_size else []
    return [run for run in runs if not run.cut_off]


def _end_of_last_run(content: bytes) -> int:
    """How many bytes the runs with an `end` line take."""
    place = end = 0
    for line in content.splitlines(keepends=True):
        place += len(line)
        if line.endswith(b"\n") and _ends(line):
            end = place
    return end


def _ends(line: bytes) -> bool:
    try:
        content = json.loads(line)
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("kind") == "end"

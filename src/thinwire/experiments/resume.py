"""Resuming: a record that broke off keeps its finished runs, and training goes on with the others."""

from __future__ import annotations

import json
from pathlib import Path

from thinwire.experiments.records import RunRecord, read_records

BEGINNING = b'{"kind": "run"'
"""How the recorder begins a run. Nothing else is ever cut off: a file that is no record is left as it is."""


def finished_runs(record: Path) -> list[RunRecord]:
    """The runs that came to their end; what a broken-off one wrote after them is cut off the file."""
    if not record.is_file():
        return []
    content = record.read_bytes()
    end = _end_of_last_run(content)
    if content[end:].startswith(BEGINNING):
        with record.open("r+b") as stream:
            stream.truncate(end)
    return read_records([record]) if record.stat().st_size else []


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

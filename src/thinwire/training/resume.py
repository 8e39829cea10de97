"""Resuming: a record that broke off keeps its finished runs, and training goes on with the others."""

from __future__ import annotations

import json
from pathlib import Path

from thinwire.errors import RecordError
from thinwire.report.lines import split_lines
from thinwire.report.record import KINDS
from thinwire.training.records import RunRecord, read_records

BEGINNING, RUN = b'{"kind": "', b'{"kind": "run"'
"""How the recorder begins a line, and a run. Nothing else is ever cut off: what is no record is left as it is."""


def finished_runs(record: Path) -> list[RunRecord]:
    """The runs that came to their end; what a broken-off one wrote after them is cut off the file."""
    if not record.is_file():
        return []
    content = record.read_bytes()
    end = _end_of_last_run(content)
    rest = content[end:]
    if rest.startswith(RUN) or RUN.startswith(rest) or _is_torn_head(content):
        with record.open("r+b") as stream:
            stream.truncate(end)
    elif split_lines(rest)[1]:
        raise RecordError(f"record {record} ends with what is no line of a record, {rest[-60:]!r}; nothing was changed")
    runs = read_records([record]) if record.stat().st_size else []
    return [run for run in runs if not run.cut_off]


def _is_torn_head(content: bytes) -> bool:
    """Whether all that there is is the beginning of a record's first line."""
    return content.startswith(BEGINNING) and b"\n" not in content and split_lines(content)[1] == content


def _end_of_last_run(content: bytes) -> int:
    """How many bytes the head and the runs with an `end` line take."""
    place = end = 0
    for line in content.splitlines(keepends=True):
        first = place == 0
        place += len(line)
        if line.endswith(b"\n") and (kind := _kind(line)) and (kind == "end" or (first and kind not in KINDS)):
            end = place
    return end


def _kind(line: bytes) -> str | None:
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content.get("kind") if isinstance(content, dict) else None

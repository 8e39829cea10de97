"""Records of training: the lines of a run read back with strict checks, and what broke off cut off to go on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thinwire.errors import RecordError, ThinwireError
from thinwire.report.record_file import FORMAT, KINDS, Line, read_record, split_lines
from thinwire.training.config import RunConfig

BEGINNING, RUN = b'{"kind": "', b'{"kind": "run"'
"""How the recorder begins a line, and a run. Nothing else is ever cut off: what is no record is left as it is."""
CUT_OFF = "cut off"
"""The status of a run whose record has no `end` line."""

_NUMBER = (int, float)
_OPTIONAL = (int, float, type(None))

_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "run": {"format": (int,), "config": (dict,), "task": (dict,), "provenance": (dict,)},
    "step": {"step": (int,), "loss": _OPTIONAL, "sent_bytes": (int,), "seconds": _NUMBER},
    "eval": {"step": (int,), "values": (dict,), "sent_bytes": (int,), "seconds": _NUMBER},
    "end": {
        "status": (str,),
        "steps": (int,),
        "seconds": _NUMBER,
        "sent_bytes": (int,),
        "dense_fp32_bytes": (int,),
        "dense_fp16_bytes": (int,),
        "ratio_fp32": _OPTIONAL,
        "ratio_fp16": _OPTIONAL,
        "residual_ratio": _OPTIONAL,
        "values": (dict,),
    },
}
"""The fields of each kind of line and the types they may have."""

_TASK_FIELDS: dict[str, tuple[type, ...]] = {
    "metric": (str,),
    "percent": (bool,),
    "higher_is_better": (bool,),
    "parameters": (int,),
    "data": (dict,),
}


@dataclass(frozen=True)
class Point:
    """A moment of a run: what was measured after `step` steps."""

    step: int
    value: float | None
    """None where the number was not finite."""
    sent_bytes: int
    seconds: float


@dataclass(frozen=True)
class RunRecord:
    """One run as its record tells it."""

    config: RunConfig
    task: Mapping[str, Any]
    provenance: Mapping[str, Any]
    losses: tuple[Point, ...]
    """Training loss."""
    metrics: tuple[Point, ...]
    """The task's test metric."""
    end: Mapping[str, Any]
    """Its totals; of a run that was cut off, as far as they are known."""

    @property
    def cut_off(self) -> bool:
        """Whether the record breaks off within the run."""
        return bool(self.end["status"] == CUT_OFF)

    @property
    def metric(self) -> float | None:
        """The test metric at the end; None when the run did not get there."""
        value = self.end["values"].get(self.task["metric"])
        return None if value is None or self.end["status"] != "done" else float(value)


def read_records(paths: Iterable[Path]) -> list[RunRecord]:
    """All training runs of the files, in order; anything missing or malformed is a `RecordError`.

    What was written before a record was cut off is read, and a `RecordWarning` says where it breaks off.
    """
    return [run for path in paths for run in runs_of_lines(read_record(path).lines)]


def runs_of_lines(lines: Sequence[Line]) -> list[RunRecord]:
    """Cut the lines into runs: `run`, then `step` and `eval` in any number, then `end` unless the run was cut off."""
    return list(_runs(lines))


def _runs(lines: Iterable[Line]) -> Iterator[RunRecord]:
    current: list[Line] = []
    for line in lines:
        kind = _checked_kind(line)
        if kind != "run" and not current:
            raise line.error(f"a {kind!r} line outside of any run; a run begins with a 'run' line")
        if kind == "run" and current:
            yield _assemble_cut_off(current)
            current = []
        current.append(line)
        if kind == "end":
            yield _assemble(current)
            current = []
    if current:
        yield _assemble_cut_off(current)


def _checked_kind(line: Line) -> str:
    """What the line is; every field that such a line must have is there."""
    kind = str(line.content["kind"])
    if kind not in _FIELDS:
        found = json.dumps(line.content)[:60]
        raise line.error(f'malformed: an object with "kind" one of {", ".join(_FIELDS)} is expected, got {found}')
    if kind == "run" and "config" not in line.content:
        raise line.error("malformed: no training run, but one of another experiment, which `thinwire report` draws")
    if kind == "run" and line.content.get("format") != FORMAT:
        raise line.error(
            f"format {line.content.get('format')}, but this thinwire reads format {FORMAT}; "
            "use the version that wrote it"
        )
    _check_fields(line, line.content, _FIELDS[kind])
    return kind


def _assemble_cut_off(lines: Sequence[Line]) -> RunRecord:
    """A run without its `end` line, ended by what the last of its lines tells."""
    contents = [line.content for line in reversed(lines)]
    last: dict[str, Any] = next((content for content in contents if content["kind"] != "run"), {})
    values: dict[str, Any] = next((content["values"] for content in contents if content["kind"] == "eval"), {})
    known = {"steps": last.get("step", 0), "seconds": last.get("seconds", 0.0), "sent_bytes": last.get("sent_bytes", 0)}
    unknown = {name: None for name in _FIELDS["end"] if name not in ("status", "values", *known)}
    end = {"kind": "end", "status": CUT_OFF, **known, **unknown, "values": values}
    run = _assemble([*lines, replace(lines[-1], content=end)])
    who = f"the run that begins here, {run.config.method} with seed {run.config.seed}, has no end line"
    lines[0].warn(f"{who}: it was cut off at step {known['steps']} (line {lines[-1].number})")
    return run


def _check_fields(place: Line, content: Mapping[str, Any], fields: Mapping[str, tuple[type, ...]]) -> None:
    for name, types in fields.items():
        if name not in content:
            raise place.error(f"malformed: the field {name!r} is missing")
        value = content[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
            raise place.error(f"malformed: the field {name!r} must be {wanted}, got {json.dumps(value)[:60]}")


def _assemble(lines: Sequence[Line]) -> RunRecord:
    first, run = lines[0], lines[0].content
    _check_fields(first, run["task"], _TASK_FIELDS)
    metric = run["task"]["metric"]
    losses, metrics = [], []
    for line in lines[1:-1]:
        content = line.content
        if content["kind"] == "step":
            losses.append(_point(content, content["loss"]))
        else:
            _check_fields(line, content["values"], {metric: _OPTIONAL})
            metrics.append(_point(content, content["values"][metric]))
    config = _config(run["config"], first)
    return RunRecord(config, run["task"], run["provenance"], tuple(losses), tuple(metrics), lines[-1].content)


def _point(line: Mapping[str, Any], value: float | None) -> Point:
    return Point(line["step"], value, line["sent_bytes"], line["seconds"])


def _config(plain: Mapping[str, Any], place: Line) -> RunConfig:
    try:
        return RunConfig.recorded(plain)
    except (TypeError, ThinwireError) as error:
        raise place.error(f"malformed: its config is not one of this thinwire ({error})") from None


# ------------------------------------------------------------------------------------------------------------- resuming


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

"""Records: reading the JSON-lines file of a command back, with strict checks and line numbers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.errors import RecordError, RecordWarning, ThinwireError
from thinwire.training.config import RunConfig
from thinwire.training.lines import split_lines
from thinwire.training.recorder import FORMAT

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
    """All runs of the files, in order; anything missing or malformed is a `RecordError`.

    What was written before a record was cut off is read, and a `RecordWarning` says where it breaks off.
    """
    return [run for path in paths for run in _read_file(path)]


@dataclass(frozen=True)
class _Place:
    path: Path
    number: int

    def error(self, problem: str) -> RecordError:
        return RecordError(f"record {self.path}, line {self.number}: {problem}")


def _read_file(path: Path) -> list[RunRecord]:
    try:
        lines, torn = split_lines(path.read_bytes())
    except OSError as error:
        reason = error.strerror or error
        raise RecordError(f"record {path} cannot be read: {reason}; give a file that thinwire train wrote") from None
    if torn and any(lines):
        _warn(_Place(path, len(lines) + 1), "cut off while it was written, and left out")
    elif torn:
        lines = [*lines, torn]
    if not any(line.strip() for line in lines):
        raise RecordError(f"record {path}, line 1: the file is empty; the run never started, so run it again")
    return list(_runs(path, lines))


def _runs(path: Path, lines: Iterable[bytes]) -> Iterator[RunRecord]:
    """Cut the lines into runs: `run`, then `step` and `eval` in any number, then `end` unless the run was cut off."""
    current: list[tuple[_Place, dict[str, Any]]] = []
    for number, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        place = _Place(path, number)
        line = _line(raw, place)
        if line["kind"] != "run" and not current:
            raise place.error(f"a {line['kind']!r} line outside of any run; a run begins with a 'run' line")
        if line["kind"] == "run" and current:
            yield _assemble_cut_off(current)
            current = []
        current.append((place, line))
        if line["kind"] == "end":
            yield _assemble(current)
            current = []
    if current:
        yield _assemble_cut_off(current)


def _assemble_cut_off(lines: list[tuple[_Place, dict[str, Any]]]) -> RunRecord:
    """A run without its `end` line, ended by what the last of its lines tells."""
    last: dict[str, Any] = next((line for _, line in reversed(lines) if line["kind"] != "run"), {})
    values: dict[str, Any] = next((line["values"] for _, line in reversed(lines) if line["kind"] == "eval"), {})
    known = {"steps": last.get("step", 0), "seconds": last.get("seconds", 0.0), "sent_bytes": last.get("sent_bytes", 0)}
    unknown = {name: None for name in _FIELDS["end"] if name not in ("status", "values", *known)}
    run = _assemble([*lines, (lines[-1][0], {"kind": "end", "status": CUT_OFF, **known, **unknown, "values": values})])
    who = f"the run that begins here, {run.config.method} with seed {run.config.seed}, has no end line"
    _warn(lines[0][0], f"{who}: it was cut off at step {known['steps']} (line {lines[-1][0].number})")
    return run


def _warn(place: _Place, what: str) -> None:
    warnings.warn(f"record {place.path}, line {place.number}: {what}", RecordWarning, stacklevel=3)


def _line(raw: bytes, place: _Place) -> dict[str, Any]:
    try:
        line = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise place.error(f"not UTF-8 text (byte {error.start}); give a file that thinwire wrote") from None
    except ValueError as error:
        raise place.error(f"malformed: not a JSON object ({error})") from None
    if isinstance(line, dict) and line.get("kind") not in _FIELDS and "provenance" in line:
        raise place.error(
            f"a record of `thinwire reproduce {line['kind']}`, which draws its own page: repeat the command that wrote "
            f"it with --resume --out {place.path} --page page.html"
        )
    if not isinstance(line, dict) or line.get("kind") not in _FIELDS:
        raise place.error(f'malformed: an object with "kind" one of {", ".join(_FIELDS)} is expected, got {raw[:60]!r}')
    if line["kind"] == "run" and line.get("format") != FORMAT:
        raise place.error(
            f"format {line.get('format')}, but this thinwire reads format {FORMAT}; use the version that wrote it"
        )
    _check_fields(line, _FIELDS[line["kind"]], place)
    return line


def _check_fields(line: Mapping[str, Any], fields: Mapping[str, tuple[type, ...]], place: _Place) -> None:
    for name, types in fields.items():
        if name not in line:
            raise place.error(f"malformed: the field {name!r} is missing")
        value = line[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
            raise place.error(f"malformed: the field {name!r} must be {wanted}, got {json.dumps(value)[:60]}")


def _assemble(lines: list[tuple[_Place, dict[str, Any]]]) -> RunRecord:
    place, run = lines[0]
    _check_fields(run["task"], _TASK_FIELDS, place)
    metric = run["task"]["metric"]
    losses, metrics = [], []
    for at, line in lines[1:-1]:
        if line["kind"] == "step":
            losses.append(_point(line, line["loss"]))
        else:
            _check_fields(line["values"], {metric: _OPTIONAL}, at)
            metrics.append(_point(line, line["values"][metric]))
    config = _config(run["config"], place)
    return RunRecord(config, run["task"], run["provenance"], tuple(losses), tuple(metrics), lines[-1][1])


def _point(line: Mapping[str, Any], value: float | None) -> Point:
    return Point(line["step"], value, line["sent_bytes"], line["seconds"])


def _config(plain: Mapping[str, Any], place: _Place) -> RunConfig:
    try:
        return RunConfig(**plain)
    except (TypeError, ThinwireError) as error:
        raise place.error(f"malformed: its config is not one of this thinwire ({error})") from None

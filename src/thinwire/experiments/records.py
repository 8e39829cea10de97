"""Records: reading the JSON-lines file of a command back, with strict checks and line numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.errors import RecordError, ThinwireError
from thinwire.experiments.config import RunConfig
from thinwire.experiments.recorder import FORMAT

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

    @property
    def metric(self) -> float | None:
        """The test metric at the end; None when the run did not get there."""
        value = self.end["values"].get(self.task["metric"])
        return None if value is None or self.end["status"] != "done" else float(value)


def read_records(paths: Iterable[Path]) -> list[RunRecord]:
    """All runs of the files, in order; anything missing, truncated or malformed is a `RecordError`."""
    return [run for path in paths for run in _read_file(path)]


@dataclass(frozen=True)
class _Place:
    path: Path
    number: int

    def error(self, problem: str) -> RecordError:
        return RecordError(f"record {self.path}, line {self.number}: {problem}")


def _read_file(path: Path) -> list[RunRecord]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(
            f"record {path} is not UTF-8 text (byte {error.start}); give a file that thinwire wrote"
        ) from None
    except OSError as error:
        reason = error.strerror or error
        raise RecordError(f"record {path} cannot be read: {reason}; give a file that thinwire train wrote") from None
    if not text.strip():
        raise RecordError(f"record {path}, line 1: the file is empty; the run never started, so run it again")
    return list(_runs(path, text))


def _runs(path: Path, text: str) -> Iterator[RunRecord]:
    """Cut the lines into runs: `run`, then `step` and `eval` in any number, then `end`."""
    current: list[tuple[_Place, dict[str, Any]]] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        if not raw.strip():
            continue
        place = _Place(path, number)
        line = _line(raw, place, terminated=number <= text.count("\n"))
        if (line["kind"] == "run") == bool(current):
            raise place.error(_order_problem(line["kind"], current))
        current.append((place, line))
        if line["kind"] == "end":
            yield _assemble(current)
            current = []
    if current:
        first, last = current[0][0], current[-1][0]
        raise last.error(
            f"truncated: the run that begins at line {first.number} has no end line; "
            f"it was interrupted, so run it again or delete the lines from {first.number} on"
        )


def _order_problem(kind: str, current: list[tuple[_Place, dict[str, Any]]]) -> str:
    if kind == "run":
        return f"a new run begins, but the one of line {current[0][0].number} has no end line: it was interrupted"
    return f"a {kind!r} line outside of any run; a run begins with a 'run' line"


def _line(raw: str, place: _Place, terminated: bool) -> dict[str, Any]:
    try:
        line = json.loads(raw)
    except ValueError as error:
        what = "malformed" if terminated else "truncated"
        raise place.error(f"{what}: not a JSON object ({error})") from None
    if isinstance(line, dict) and line.get("kind") not in _FIELDS and "provenance" in line:
        raise place.error(
            f"a record of `thinwire reproduce {line['kind']}`, which draws its own page: repeat the command that wrote "
            f"it with --resume --out {place.path} --page page.html"
        )
    if not isinstance(line, dict) or line.get("kind") not in _FIELDS:
        raise place.error(f'malformed: an object with "kind" one of {", ".join(_FIELDS)} is expected, got {raw[:60]}')
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

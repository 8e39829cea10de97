"""The recorder writes a run's lines to the record as they happen; the tail passes on what another process writes."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, final

from thinwire.report.record_file import FORMAT, LineWriter, head
from thinwire.training.config import RunConfig
from thinwire.training.tasks import Task
from thinwire.training.totals import Totals

Content = Mapping[str, Any]
"""What a line holds."""
Listener = Callable[[Content], None]
POLL_SECONDS = 0.1


def _plain(value: Any) -> Any:
    """JSON knows no NaN and no infinity: they are written as null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


@final
class Recorder:
    """Appends one JSON object a line.

    The head comes first. A run is `run`, then `step` and `eval` lines, then `end`; runs follow each other.
    """

    def __init__(self, path: Path, provenance: Mapping[str, Any], listener: Listener | None = None) -> None:
        self._lines = LineWriter(path)
        self._provenance, self._listener = provenance, listener

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def _write(self, kind: str, **content: Any) -> None:
        if self._lines.empty:
            self._append(head(self._provenance))
        self._append({"kind": kind, **content})

    def _append(self, content: Content) -> None:
        line = _plain(content)
        self._lines.write(json.dumps(line, allow_nan=False))
        if self._listener:
            self._listener(line)

    def run(self, config: RunConfig, task: Task, parameters: int) -> None:
        """The first line of a run: all that is needed to repeat it."""
        about = {
            "metric": task.metric,
            "percent": task.percent,
            "higher_is_better": task.higher_is_better,
            "parameters": parameters,
            "data": task.facts(),
        }
        self._write("run", format=FORMAT, config=config.asdict(), task=about, provenance=self._provenance)

    def step(self, step: int, loss: float, sent_bytes: int, seconds: float) -> None:
        """Mean training loss over workers and over the steps since the last such line."""
        self._write("step", step=step, loss=loss, sent_bytes=sent_bytes, seconds=round(seconds, 6))

    def evaluation(self, step: int, values: Mapping[str, float], sent_bytes: int, seconds: float) -> None:
        """Figures on held-out data after `step` steps."""
        self._write("eval", step=step, values=values, sent_bytes=sent_bytes, seconds=round(seconds, 6))

    def end(
        self,
        status: str,
        steps: int,
        seconds: float,
        warm_up_seconds: float,
        traffic: Totals,
        values: Mapping[str, float],
    ) -> None:
        """The last line of a run: its totals and final figures; `seconds` does not hold those of the warm-up."""
        self._write(
            "end",
            status=status,
            steps=steps,
            seconds=round(seconds, 6),
            warm_up_seconds=round(warm_up_seconds, 6),
            **traffic.plain(),
            values=values,
        )


@final
class Tail:
    """A thread that calls `listener` with every line appended to `path` while the context is open."""

    def __init__(self, path: Path, listener: Listener) -> None:
        self._path, self._listener = path, listener
        self._offset = path.stat().st_size if path.exists() else 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Tail:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._read()

    def _follow(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self._read()

    def _read(self) -> None:
        """Pass on the complete lines that are new."""
        if not self._path.exists():
            return
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            block = stream.read()
        complete = block[: block.rfind(b"\n") + 1]
        self._offset += len(complete)
        for raw in complete.splitlines():
            self._listener(json.loads(raw))

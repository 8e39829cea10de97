"""The recorder: writes a run's lines to the JSON-lines record as they happen."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thinwire.report.lines import LineWriter
from thinwire.report.record import FORMAT, head
from thinwire.training.config import RunConfig
from thinwire.training.tasks import Task
from thinwire.training.totals import Totals

Line = Mapping[str, Any]
Listener = Callable[[Line], None]


def _plain(value: Any) -> Any:
    """JSON knows no NaN and no infinity: they are written as null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


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

    def _append(self, content: Line) -> None:
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
            sent_bytes=traffic.sent,
            dense_fp32_bytes=traffic.dense_fp32,
            dense_fp16_bytes=traffic.dense_fp16,
            ratio_fp32=traffic.ratio_fp32,
            ratio_fp16=traffic.ratio_fp16,
            residual_ratio=traffic.residual_ratio,
            ratio_elements=traffic.ratio_elements,
            ratio_message=traffic.ratio_message,
            ratio_effective=traffic.ratio_effective,
            values=values,
        )

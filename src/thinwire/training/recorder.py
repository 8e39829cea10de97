"""The recorder writes a run's lines to the record as they happen; the tail passes on what another process writes."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, final

from thinwire.exchange import allreduce_bytes
from thinwire.report.record_file import FORMAT, LineWriter, head
from thinwire.training.config import RunConfig
from thinwire.training.tasks import Task

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


@dataclass(frozen=True)
class Totals:
    """Totals of one worker over a run, in bytes that left it."""

    sent: int
    dense_fp32: int
    dense_fp16: int
    residual_ratio: float | None = None
    """Norm of what is remembered and not yet sent over the norm of the gradient, where a rule remembers."""
    ratio_elements: float | None = None
    """Parameters over numbers in a message; None where its format does not count them."""
    ratio_message: float | None = None
    """Bytes of all parameters in float32 over bytes of a message."""
    ratio_effective: float | None = None
    """How many times faster than a ring all-reduce, by the cost model of VGC's paper: 2 (n - 1) c / n^2 for gathered
    messages. What is all-reduced itself has 4 N over its bytes, 1 in float32: it is the measure and gathers nothing."""

    @classmethod
    def of_ledger(cls, totals: Mapping[str, float]) -> Totals:
        """From a ledger's summary."""
        return cls(
            sent=int(totals["sent_bytes"]),
            dense_fp32=int(totals["dense_fp32_bytes"]),
            dense_fp16=int(totals["dense_bf16_bytes"]),
            residual_ratio=float(totals["residual_ratio"]),
            **{name: totals.get(name) for name in ("ratio_elements", "ratio_message", "ratio_effective")},
        )

    @classmethod
    def of_allreduce(cls, bytes_per_step: int, numel: int, workers: int, steps: int) -> Totals:
        """From a peer that all-reduces `bytes_per_step` bytes of a model of `numel` parameters at every step."""
        return cls(
            sent=steps * allreduce_bytes(bytes_per_step, workers),
            dense_fp32=steps * allreduce_bytes(4 * numel, workers),
            dense_fp16=steps * allreduce_bytes(2 * numel, workers),
            ratio_elements=1.0,
            ratio_message=4 * numel / bytes_per_step,
            ratio_effective=4 * numel / bytes_per_step,
        )

    def plain(self) -> dict[str, float | None]:
        """As the last line of a run has them."""
        ratios = ("ratio_fp32", "ratio_fp16", "residual_ratio", "ratio_elements", "ratio_message", "ratio_effective")
        sizes = {f"{name}_bytes": getattr(self, name) for name in ("sent", "dense_fp32", "dense_fp16")}
        return sizes | {name: getattr(self, name) for name in ratios}

    @property
    def ratio_fp32(self) -> float | None:
        """How many times fewer bytes than float32 all-reduce; None when nothing was sent (one worker)."""
        return self.dense_fp32 / self.sent if self.sent else None

    @property
    def ratio_fp16(self) -> float | None:
        """How many times fewer bytes than float16 all-reduce."""
        return self.dense_fp16 / self.sent if self.sent else None


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

    def write(self, kind: str, **content: Any) -> None:
        """Append a line of this kind, behind the head."""
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
        self.write("run", format=FORMAT, config=config.asdict(), task=about, provenance=self._provenance)


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

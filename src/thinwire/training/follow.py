"""The tail: follows a record that another process is writing and passes its lines on."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import TracebackType
from typing import final

from thinwire.training.recorder import Listener

POLL_SECONDS = 0.1


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

"""Ctrl-C held back: it comes when a piece of work is done, and so finds nothing half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def held_back() -> Iterator[None]:
    """SIGINT waits for the end of the block. Only the main thread hears of it, and elsewhere nothing need be done."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[Any] = []
    signal.signal(signal.SIGINT, lambda *signals: held.append(signals))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(signal.SIGINT)

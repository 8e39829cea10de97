"""The lifeline: a named pipe by which workers notice that their launcher is gone, however it went.

The launcher holds the end for writing and never writes. The system closes it with the process, even on SIGKILL, and
whoever waits at the other end is woken. Torch's launcher gives workers a session of their own and nothing to inherit,
so that neither a signal to the terminal's group nor a plain pipe would reach them.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "lifeline"
ORPHANED = 3
"""The exit code of a worker whose launcher is gone; nobody is left to read it."""


@contextmanager
def lifeline(folder: Path) -> Iterator[None]:
    """Hold the pipe in `folder` open while the context is."""
    path = folder / NAME
    os.mkfifo(path, 0o600)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening to write would else wait for one
    writer = os.open(path, os.O_WRONLY)
    os.close(reader)
    try:
        yield
    finally:
        os.close(writer)


def end_with_launcher(folder: Path) -> None:
    """End this process as soon as the launcher that holds the pipe in `folder` is gone, or at once if it is."""
    pipe = os.open(folder / NAME, os.O_RDONLY | os.O_NONBLOCK)
    threading.Thread(target=_watch, args=(pipe,), daemon=True).start()


def _watch(pipe: int) -> None:
    try:
        os.read(pipe, 1)  # nothing: the launcher was gone before this end was opened, which select does not report
    except BlockingIOError:
        select.select([pipe], [], [])
    os._exit(ORPHANED)

"""How far the channels of a process have come: one value, replaced as a whole when a step is finished."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Progress:
    """What has been finished so far."""

    step: int = 0
    started: frozenset[str] = frozenset()
    """The parameters that were exchanged before."""
    step_sizes: Mapping[str, float] = field(default_factory=dict)
    """The step size with which each parameter was exchanged last."""
    turn: int = 0
    """A number for each step that was begun, finished or not: what moved in an earlier turn has settled."""


class Clock:
    """The present progress.

    `finish` is a single assignment. So whoever interrupts a step at any point, as a signal handler does, sees all of
    the last finished step and nothing of the present one; another thread does so while it holds the lock, in which
    nothing can begin to move and no step can finish.
    """

    def __init__(self) -> None:
        self.now = Progress()
        self.lock = threading.RLock()

    def finish(self, exchanged: Collection[str], step_sizes: Mapping[str, float]) -> None:
        """A step is done: these parameters were exchanged, with these step sizes."""
        now = self.now
        with self.lock:
            self.now = Progress(
                now.step + 1, now.started.union(exchanged), {**now.step_sizes, **step_sizes}, now.turn + 1
            )

    def abandon(self) -> None:
        """A step is given up, and all that moved in it is back in its place."""
        with self.lock:
            self.now = replace(self.now, turn=self.now.turn + 1)

    def __getstate__(self) -> Progress:
        return self.now

    def __setstate__(self, now: Progress) -> None:
        self.now, self.lock = now, threading.RLock()

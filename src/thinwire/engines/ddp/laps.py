"""Laps: where the seconds of a step go, by one clock that is read whenever one thing ends and the next begins."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable


class Laps:
    """Seconds by what they went for, and by bucket.

    >>> times = iter([0.0, 1.0, 1.5])
    >>> laps = Laps(lambda: next(times))
    >>> laps.lap("compute", 0), laps.lap("encode", 0)
    (None, None)
    >>> laps.of("compute", 1), laps.of("encode", 2)
    ((1.0,), (0.5, 0.0))
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._last = clock()
        self._begun = self._last
        self._spent: dict[tuple[str, int], float] = defaultdict(float)

    def lap(self, what: str, place: int = 0) -> None:
        """The seconds since the last lap went for this."""
        now = self.clock()
        self._spent[what, place] += now - self._last
        self._last = now

    def of(self, what: str, places: int) -> tuple[float, ...]:
        """What went for something, by bucket."""
        return tuple(self._spent.get((what, place), 0.0) for place in range(places))

    def since_restart(self) -> float:
        """Seconds from the last restart to the last lap."""
        return self._last - self._begun

    def restart(self, moment: float | None = None) -> None:
        """Begin a step anew, at the last lap or at a moment."""
        self._last = self._last if moment is None else moment
        self._begun = self._last
        self._spent.clear()


class NoLaps(Laps):
    """For who does not ask: reads no clock."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)

    def lap(self, what: str, place: int = 0) -> None:
        """Nothing."""

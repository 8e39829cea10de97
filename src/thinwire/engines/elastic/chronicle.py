"""Which steps a run has taken, and under which quorum each: by it workers see whether they are of one run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LONGEST = 1000
"""Changes of the quorum that are remembered: a worker that was away for longer takes its last step for not taken."""


@dataclass(frozen=True)
class Era:
    """Steps that were taken under one quorum, from the first to the last."""

    epoch: int
    first: int
    last: int


@dataclass(frozen=True)
class Chronicle:
    """The eras of a run, in order.

    >>> chronicle = Chronicle().taken(epoch=77, step=0).taken(77, 1).taken(31, 2)
    >>> chronicle.holds(77, 1), chronicle.holds(77, 2), len(chronicle.eras)
    (True, False, 2)
    """

    eras: tuple[Era, ...] = ()

    def taken(self, epoch: int, step: int) -> Chronicle:
        """With one step more."""
        *before, last = self.eras or (Era(epoch, step, step),)
        if last.epoch != epoch:
            before, last = [*before, last], Era(epoch, step, step)
        return Chronicle((*before, Era(epoch, last.first, step))[-LONGEST:])

    def holds(self, epoch: int, step: int) -> bool:
        """Whether the run has taken this step under this quorum."""
        return any(one.epoch == epoch and one.first <= step <= one.last for one in self.eras)

    @property
    def mark(self) -> int:
        """A number that two workers have in common only if they have taken the same last step."""
        last = self.eras[-1:]
        return mark_of([number for one in last for number in (one.epoch, one.last)])

    def numbers(self) -> list[list[int]]:
        """As it is copied to a newcomer."""
        return [[one.epoch, one.first, one.last] for one in self.eras]

    @staticmethod
    def of(numbers: Iterable[Sequence[int]]) -> Chronicle:
        """What `numbers` gave."""
        return Chronicle(tuple(Era(*map(int, three)) for three in numbers))


def mark_of(numbers: Iterable[int]) -> int:
    """A number of 62 bits that stands for these."""
    text = " ".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 2

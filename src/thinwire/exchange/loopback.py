"""n workers in one process: what one sends is handed to all, and counted as a real exchange would."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from thinwire.exchange.protocol import Traffic


class Loopback:
    """The ends of n workers, one for each.

    One thread may drive all ends, if it lets every end gather before it waits at one; or n threads one each.
    """

    def __init__(self, workers: int) -> None:
        self.ends = [LoopbackEnd(rank, workers, self) for rank in range(workers)]
        self._rounds: dict[tuple[int, int], Gathering] = {}
        self._arrived = threading.Condition()

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """A copy begins anew: nothing is under way between steps, and no lock can be copied."""
        return Loopback, (len(self.ends),)

    def cost(self, sizes: Sequence[int], *, fixed: bool) -> Traffic:
        """What each worker would pay to exchange messages of these sizes (one stands for n equal ones)."""
        mean, rest = divmod(sum(sizes), len(sizes))
        message = mean + rest / len(sizes) if rest else mean
        return Traffic.of_gather(message, max(sizes), len(self.ends), sizes_exchanged=not fixed)

    def post(self, place: tuple[int, int], rank: int, message: Tensor, *, fixed: bool) -> Gathering:
        """Put a worker's message to those of the other workers' gathers at the same place."""
        with self._arrived:
            gathering = self._rounds.setdefault(place, Gathering(self, self._arrived, {}, fixed))
            gathering.messages[rank] = message
            if gathering.complete:
                del self._rounds[place]
                self._arrived.notify_all()
        return gathering

    def drop_before(self, turn: int) -> None:
        """Forget gathers that were begun in an earlier turn and that nobody will complete."""
        with self._arrived:
            self._rounds = {place: gathering for place, gathering in self._rounds.items() if place[0] >= turn}


@dataclass(frozen=True)
class Gathering:
    """The messages of one gather, as far as they are there."""

    loopback: Loopback
    arrived: threading.Condition
    messages: dict[int, Tensor]
    fixed: bool

    @property
    def complete(self) -> bool:
        return len(self.messages) == len(self.loopback.ends)

    @property
    def traffic(self) -> Traffic:
        return self.loopback.cost([message.numel() for message in self.wait()], fixed=self.fixed)

    def wait(self) -> list[Tensor]:
        with self.arrived:
            self.arrived.wait_for(lambda: self.complete)
        return [self.messages[rank] for rank in range(len(self.messages))]


class LoopbackEnd:
    """One worker's end of a loopback: an `Exchange`."""

    def __init__(self, rank: int, size: int, loopback: Loopback) -> None:
        self.rank, self.size, self._loopback = rank, size, loopback
        self.turn = 0
        self._gathers = 0

    def begin(self, moment: str) -> None:
        """A new round: what was left of the one before is forgotten once all ends are here."""
        self.turn, self._gathers = self.turn + 1, 0
        self._loopback.drop_before(min(end.turn for end in self._loopback.ends))

    def gather(self, message: Tensor, *, fixed: bool, longest: int, what: str) -> Gathering:
        """Hand this message to all; nothing is copied."""
        self._gathers += 1
        return self._loopback.post((self.turn, self._gathers), self.rank, message, fixed=fixed)

    def everyone(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        """Every worker's numbers; waits, so that each worker needs a thread of its own."""
        mine = torch.tensor(numbers, dtype=torch.int64)
        gathered = self.gather(mine, fixed=True, longest=mine.nbytes, what=what).wait()
        return [cast(list[int], theirs.tolist()) for theirs in gathered]

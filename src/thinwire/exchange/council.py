"""All ranks of several sites, reached in two hops: counterparts between sites, then the members of a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from thinwire.exchange.protocol import Exchange, Incoming, Traffic


@dataclass(frozen=True)
class Here:
    """Messages that have arrived."""

    messages: Sequence[Tensor]
    traffic: Traffic

    def wait(self) -> Sequence[Tensor]:
        """The messages, in rank order."""
        return self.messages


@final
class Council:
    """An `Exchange` of all members of all sites, for what they decide together: rank = site · members + member.

    Each number crosses a link between sites once for each member of a site, whatever the number of members elsewhere.

    >>> from thinwire.exchange import Loopback
    >>> alone = Council(Loopback(1).ends[0], Loopback(1).ends[0])
    >>> alone.size, alone.everyone([4, 5], "numbers")
    (1, [[4, 5]])
    """

    def __init__(self, between: Exchange, inside: Exchange) -> None:
        self.between, self.inside = between, inside

    @property
    def rank(self) -> int:
        """This rank's number among all."""
        return self.between.rank * self.inside.size + self.inside.rank

    @property
    def size(self) -> int:
        """How many ranks there are on all sites."""
        return self.between.size * self.inside.size

    def begin(self, moment: str) -> None:
        """A round of collectives begins, here and there."""
        self.between.begin(moment)
        self.inside.begin(moment)

    def everyone(self, numbers: Sequence[int], what: str) -> list[list[int]]:
        """Every rank's few numbers, in rank order; waits for all."""
        count = len(numbers)
        mine = self.between.everyone(numbers, what)
        rows = self.inside.everyone([number for row in mine for number in row], what)
        return [row[site * count :][:count] for site in range(self.between.size) for row in rows]

    def gather(self, message: Tensor, *, fixed: bool, longest: int, what: str) -> Incoming:
        """Everyone's message; waits for all."""
        first = self.between.gather(message, fixed=fixed, longest=longest, what=what)
        mine = list(first.wait())
        hops = [self.inside.gather(row.contiguous(), fixed=fixed, longest=longest, what=what) for row in mine]
        messages = [row for hop in hops for row in hop.wait()]
        moved = sum(hop.traffic.sent for hop in (first, *hops))
        return Here(messages, Traffic(message.numel(), moved, moved))

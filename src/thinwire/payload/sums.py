"""Messages that are added up on their way: each rank adds up one share of the numbers, and tells the others the total.

    hop 1    rank i sends rank j the j-th of n shares of its numbers;   rank j adds up what it gets, in rank order
    hop 2    rank j sends all ranks the total of its share

Numbers of B bytes so cost a worker 2 (n - 1) / n B, as in a ring all-reduce, where a gather costs (n - 1) B. Both hops
are letters of dense numbers, checked as any other. A share is added up from zero in rank order: the total has the bits
that the sum of all ranks' messages has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, final

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.payload import Dense, Payload, Payloads, add_all_to
from thinwire.payload.letter import FINITE, Expected, letter_size, read, write


@dataclass(frozen=True, eq=False)
class Summand:
    """A payload all of whose numbers may be added up on their way."""

    payload: Payload
    numbers: Tensor
    flag: Tensor
    """The flag of its letter."""

    def share(self, ranks: int) -> int:
        """How many numbers a share has; the last ones are filled up with zeros."""
        return -(-self.numbers.numel() // ranks)

    def share_size(self, ranks: int) -> int:
        """Bytes of a letter that holds a share."""
        return letter_size(Dense(self.numbers.new_empty(self.share(ranks))))


@final
@dataclass(frozen=True, eq=False)
class Total(Payloads):
    """All ranks' payloads, of which only the sum is known: what `mean_into` needs."""

    payload: Payload
    ranks: int

    def __len__(self) -> int:
        return self.ranks

    def __getitem__(self, rank: object) -> NoReturn:
        raise TypeError("only the sum of all ranks' messages is known")

    def add_to(self, out: Tensor, alpha: float | Sequence[float] = 1.0) -> Tensor:
        """Of a vector of zeros and a plain sum, bit for bit what adding each would give."""
        assert alpha == 1.0
        return self.payload.add_to(out)


def write_shares(own: Summand, expected: Expected, rank: int, ranks: int) -> Tensor:
    """A letter for each rank, one a row."""
    share = own.share(ranks)
    numbers = torch.nn.functional.pad(own.numbers, (0, ranks * share - own.numbers.numel()))
    letters = [write([Dense(part)], expected.digest, own.flag, rank) for part in torch.split(numbers, share)]
    return torch.stack([letter.message for letter in letters])


def add_up(letters: Sequence[Tensor] | Tensor, own: Summand, expected: Expected) -> tuple[Sequence[int], Tensor]:
    """All ranks' flags, and the total of this rank's share: zeros where a flag is raised."""
    contents = read(letters, _of_shares(own, expected, len(letters)))
    total = own.numbers.new_zeros(own.share(len(letters)))
    return contents.flags, add_all_to(total, contents.payloads[0]) if contents.payloads else total


def write_total(total: Tensor, own: Summand, expected: Expected, rank: int) -> Tensor:
    """A letter that tells all ranks the total of this rank's share."""
    return write([Dense(total)], expected.digest, torch.full_like(own.flag, FINITE), rank).message


def read_total(letters: Sequence[Tensor] | Tensor, own: Summand, expected: Expected) -> Total:
    """The sum of all ranks' payloads."""
    ranks = len(letters)
    (shares,) = read(letters, _of_shares(own, expected, ranks)).payloads
    flat = torch.cat([share.summand for share in shares if share.summand is not None])
    return Total(own.payload.with_summand(flat[: own.numbers.numel()]), ranks)


def _of_shares(own: Summand, expected: Expected, ranks: int) -> Expected:
    layout = Layout.of([("a share", 0, (own.share(ranks),))])
    return replace(expected, parts=((layout, own.numbers.dtype),))

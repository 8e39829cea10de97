"""The keys and the layout of many workers whose vectors lie side by side.

Worker i's pieces are the i-th row of the joint layout. The index of a piece says in which row it stands, so that a
joint key gives each piece the numbers that its own worker's key has for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import Key
from thinwire.ops.keys import SHARED, words_of

T = TypeVar("T")
_INDEX_BITS = 32
_INDEX = (1 << _INDEX_BITS) - 1
_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class JointKey(Key):
    """The keys of the workers `ranks` at one step, which remembers what was drawn by it."""

    ranks: Sequence[int] = ()
    _drawn: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def at(self, piece: int) -> Key:
        """The key that the piece's own worker has for it; the shared one of all workers after `shared`."""
        joint = ~piece if piece < 0 else piece
        worker = self.worker if self.worker == SHARED else self.ranks[joint >> _INDEX_BITS]
        index = joint & _INDEX
        return Key(self.seed, self.step, worker, ~index if piece < 0 else index)

    def numbers(self, pieces: Iterable[int]) -> list[int]:
        return [number & _WORD for number in self.words(torch.tensor(list(pieces), dtype=torch.int64)).tolist()]

    def words(self, pieces: Tensor) -> Tensor:
        sign = pieces >> 63  # -1 for a piece ~i, which is i with every bit turned
        return words_of(self.seed, self.step, self.owners(pieces), ((pieces ^ sign) & _INDEX) ^ sign)

    def owners(self, pieces: Tensor) -> Tensor:
        if self.worker == SHARED:
            return torch.full_like(pieces, SHARED)
        return int64(self.ranks)[(pieces ^ (pieces >> 63)) >> _INDEX_BITS]

    def once(self, what: Hashable, draw: Callable[[], T]) -> T:
        if what not in self._drawn:
            self._drawn[what] = draw()
        found: T = self._drawn[what]
        return found


def joint_index(row: int, index: int) -> int:
    """The index of one worker's piece among the pieces of many workers.

    >>> JointKey(seed=3, step=5, ranks=[4, 6, 9]).at(joint_index(2, index=7)) == Key(seed=3, step=5, worker=9, piece=7)
    True
    """
    return row << _INDEX_BITS | index


def int64(numbers: Sequence[int]) -> Tensor:
    """Whole numbers as a tensor."""
    if isinstance(numbers, range):
        return torch.arange(numbers.start, numbers.stop, numbers.step, dtype=torch.int64)
    return torch.tensor(numbers, dtype=torch.int64)


@lru_cache(maxsize=8)
def joint_layout(layout: Layout, rows: int) -> Layout:
    """The pieces of so many workers one after the other, each with the index that its worker's keys are found by."""
    return Layout.of(
        [(piece.name, joint_index(row, piece.index), piece.shape) for row in range(rows) for piece in layout.pieces]
    )


@lru_cache(maxsize=64)
def first_rows(layout: Layout, rows: int, workers: int) -> Layout:
    """The first rows of the joint layout of all workers, whose pieces are not made anew: 8 bytes each where half of
    10,000 workers take part."""
    joint = joint_layout(layout, workers)
    return joint if rows == workers else Layout(joint.pieces[: rows * len(layout.pieces)])

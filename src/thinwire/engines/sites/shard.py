"""A shard: the part of a parameter that one member of a site holds, as torch's `fully_shard` cuts it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Shard:
    """Member j of m holds the indices from j·c to (j + 1)·c of one dimension, with c = ⌈n / m⌉; the last ones fewer.

    >>> [Shard((5, 3), 0, member, 3).shape for member in range(3)]
    [(2, 3), (2, 3), (1, 3)]
    >>> Shard((1,), 0, 1, 2).shape, Shard((1,), 0, 1, 2).padded
    ((0,), 1)
    """

    whole: tuple[int, ...]
    """The parameter's shape."""
    dim: int
    member: int
    members: int

    @property
    def chunk(self) -> int:
        """How many indices each member's place has room for."""
        return -(-self.whole[self.dim] // self.members)

    @property
    def start(self) -> int:
        """The first of this member's indices."""
        return min(self.member * self.chunk, self.whole[self.dim])

    @property
    def length(self) -> int:
        """How many indices this member holds."""
        return min(self.chunk, self.whole[self.dim] - self.start)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of this member's part."""
        return (*self.whole[: self.dim], self.length, *self.whole[self.dim + 1 :])

    @property
    def padded(self) -> int:
        """Numbers that each member's place has room for."""
        return math.prod((*self.whole[: self.dim], self.chunk, *self.whole[self.dim + 1 :]))

    def of(self, whole: Tensor, *, behind: int = 0) -> Tensor:
        """This member's part of a tensor that has the parameter's shape, behind so many other dimensions."""
        return whole.narrow(self.dim + behind, self.start, self.length)

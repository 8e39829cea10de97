"""The messages of many workers, held as one payload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import add_folded_, block_count, pack_bits, unpack_bits
from thinwire.payload.base import Payload
from thinwire.payload.dense import Dense, Empty
from thinwire.payload.nested import Flagged
from thinwire.payload.quantised import Levels, Powers, Signs
from thinwire.payload.sparse import Masked, Positioned, Sparse


@dataclass(frozen=True, eq=False)
class Stack(Sequence[Payload]):
    """n payloads of one layout: `joint` holds those of the workers `ranks` one after the other, the others are empty.

    As a sequence it gives each worker's own payload; `add_to` adds all of them in rank order, with the same result bit
    for bit, by one pass over the joint payload.
    """

    joint: Payload
    layout: Layout
    """Of one worker."""
    ranks: range | Sequence[int]
    """All of them where it is a range."""
    workers: int

    def __len__(self) -> int:
        return self.workers

    @overload
    def __getitem__(self, rank: int) -> Payload: ...
    @overload
    def __getitem__(self, rank: slice) -> Sequence[Payload]: ...
    def __getitem__(self, rank: int | slice) -> Payload | Sequence[Payload]:
        if isinstance(rank, slice):
            return [self[each] for each in range(*rank.indices(self.workers))]
        if not 0 <= rank < self.workers:
            raise IndexError(rank)
        row = rank if isinstance(self.ranks, range) else self._rows.get(rank)
        return Empty() if row is None else _part(self.joint, row, self.layout)

    def __iter__(self) -> Iterator[Payload]:
        return (self[rank] for rank in range(self.workers))

    @cached_property
    def _rows(self) -> dict[int, int]:
        return {rank: row for row, rank in enumerate(self.ranks)}

    def add_to(self, out: Tensor, alpha: float = 1.0) -> Tensor:
        """out += alpha * each worker's decoded payload, in rank order, in place."""
        joint = self.joint
        if isinstance(joint, Positioned):
            return add_folded_(out, joint.positions, joint.values.to(out.dtype), alpha)
        if isinstance(joint, Signs | Levels | Powers):
            for row in joint.add_to(self._zeros(out), alpha).view(-1, out.numel()):
                out.add_(row)
            return out
        for payload in self:
            payload.add_to(out, alpha)
        return out

    def _zeros(self, like: Tensor) -> Tensor:
        """A vector for each of the workers that send, side by side."""
        return like.new_zeros(len(self.ranks) * self.layout.numel)

    def add_each_to(self, out: Tensor, alphas: Sequence[float]) -> Tensor:
        """out += alpha * decoded for each worker's payload and its alpha, in rank order, in place."""
        joint = self.joint
        if isinstance(joint, Positioned):
            weights = torch.tensor([alphas[rank] for rank in self.ranks], dtype=out.dtype)
            values = joint.values.to(out.dtype) * weights[joint.positions // self.layout.numel]
            return add_folded_(out, joint.positions, values, 1.0)
        for payload, alpha in zip(self, alphas, strict=True):
            payload.add_to(out, alpha)
        return out


def _part(joint: Payload, row: int, layout: Layout) -> Payload:
    """What a joint payload says of the row-th worker's pieces."""
    pieces = slice(row * len(layout.pieces), (row + 1) * len(layout.pieces))
    if isinstance(joint, Dense):
        return Dense(joint.values[row * layout.numel : (row + 1) * layout.numel])
    if isinstance(joint, Flagged):
        return Flagged(joint.replaces[pieces], _part(joint.inner, row, layout))
    if isinstance(joint, Sparse):
        positions, values = _entries(joint, row, layout)
        return Sparse(positions, values, layout, joint.written, joint.counted)
    if isinstance(joint, Masked):
        return Masked(*_entries(joint, row, layout), layout, joint.counts[pieces], joint.written)
    if isinstance(joint, Signs | Levels | Powers):
        return _part_of_all(joint, row, layout)
    assert isinstance(joint, Empty)  # `Compressor.apart` is true of no other format
    return joint


def _part_of_all(joint: Signs | Levels | Powers, row: int, layout: Layout) -> Payload:
    """What a format that has a few bits for each number says of the row-th worker's."""
    d = layout.numel
    if isinstance(joint, Powers):
        return Powers(joint.codes[row * d : (row + 1) * d], _cut(joint.negative, row * d, d))
    blocks = block_count(layout, joint.block)
    own = slice(row * blocks, (row + 1) * blocks)
    if isinstance(joint, Signs):
        return Signs(_cut(joint.negative, row * d, d), joint.scales[own], layout, joint.block)
    bits = d * (joint.levels.bit_length() + 1)
    return Levels(_cut(joint.codes, row * bits, bits), joint.norms[own], layout, joint.levels, joint.block)


def _cut(packed: Tensor, first: int, count: int) -> Tensor:
    """So many bits from the `first` one on, packed anew."""
    aside = first % 8
    return pack_bits(unpack_bits(packed[first // 8 : (first + count + 7) // 8], aside + count)[aside:].contiguous())


def _entries(joint: Positioned, row: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """The row-th worker's positions and values."""
    start = row * layout.numel
    first, last = np.searchsorted(joint.positions.numpy(), (start, start + layout.numel))
    return joint.positions[first:last] - start, joint.values[first:last]

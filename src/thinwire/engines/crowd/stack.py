"""The messages of many workers, held as one payload and cut up where one worker's own is wanted."""

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
from thinwire.payload import (
    Dense,
    Empty,
    Flagged,
    Levels,
    Masked,
    Payload,
    Payloads,
    Positioned,
    Powers,
    Signs,
    Sparse,
    add_one_by_one,
)


@dataclass(frozen=True, eq=False)
class Stack(Payloads):
    """n payloads of one layout: `joint` holds those of the workers `ranks` one after the other, the others are empty.

    As a sequence it gives each worker's own payload; `add_to` takes one pass over the joint one.
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

    def add_to(self, out: Tensor, alpha: float | Sequence[float] = 1.0) -> Tensor:
        if isinstance(self.joint, Positioned):
            return self._fold(self.joint, out, alpha)
        if isinstance(self.joint, Signs | Levels | Powers) and isinstance(alpha, int | float):
            side_by_side = out.new_zeros(len(self.ranks) * self.layout.numel)
            for row in self.joint.add_to(side_by_side, alpha).view(-1, out.numel()):
                out.add_(row)
            return out
        return add_one_by_one(out, self, alpha)

    def _fold(self, joint: Positioned, out: Tensor, alpha: float | Sequence[float]) -> Tensor:
        """One pass over all workers' numbers, each at its position within its row."""
        values = joint.values.to(out.dtype)
        if isinstance(alpha, int | float):
            return add_folded_(out, joint.positions, values, alpha)
        weights = torch.tensor([alpha[rank] for rank in self.ranks], dtype=out.dtype)
        return add_folded_(out, joint.positions, values * weights[joint.positions // self.layout.numel], 1.0)


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
    assert isinstance(joint, Empty)  # `Compressor.piecewise` is true of no other format
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

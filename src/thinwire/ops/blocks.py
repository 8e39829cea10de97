"""The blocks that a layout's pieces are cut into: how many, how long, and one number a block for its entries."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from thinwire.layout import Layout, Piece

WHOLE = (1 << 32) - 1
"""A block length that no piece exceeds: one block for each piece."""


def of_filled(numbers: Tensor, layout: Layout) -> Tensor:
    """Those of one number a piece whose piece holds anything."""
    filled = [i for i, piece in enumerate(layout.pieces) if piece.numel]
    return numbers if len(filled) == len(layout.pieces) else numbers[filled]


def piece_of(positions: Tensor, layout: Layout) -> Tensor:
    """For each position, the place of the piece that owns it."""
    return torch.searchsorted(piece_ends(layout, positions.device), positions, right=True)


def shares_of(positions: Tensor, layout: Layout, dtype: torch.dtype) -> Tensor:
    """Which share of each piece the ascending positions are; zero of an empty one. A GPU is not waited for."""
    ends = piece_ends(layout, positions.device)
    counts, lengths = (torch.diff(t, prepend=t.new_zeros(1)) for t in (torch.searchsorted(positions, ends), ends))
    return counts.to(dtype) / lengths.clamp_(min=1)


@lru_cache(maxsize=256)
def piece_ends(layout: Layout, device: torch.device) -> Tensor:
    """Where the pieces end; kept, because bringing it to a GPU makes the host wait. Not to be written to."""
    return torch.tensor([p.offset + p.numel for p in layout.pieces], dtype=torch.int64, device=device)


@lru_cache(maxsize=256)
def on_device(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A few numbers, kept: without making the host wait, and none are brought where a step is recorded."""
    tensor = torch.tensor(numbers, dtype=dtype)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


@lru_cache(maxsize=64)
def piece_indices(layout: Layout) -> Tensor:
    """The index of each piece, which its keys are found by; kept for layouts of many workers. Not to be written to."""
    return torch.tensor([piece.index for piece in layout.pieces], dtype=torch.int64)


@lru_cache(maxsize=256)
def one_piece(numel: int) -> Layout:
    """A vector as one piece."""
    return Layout((Piece("*", 0, 0, (numel,)),))


def block_count(layout: Layout, block: int) -> int:
    """The number of consecutive blocks of at most `block` entries that the pieces are cut into."""
    return sum(-(-piece.numel // block) for piece in layout.pieces)


@lru_cache(maxsize=64)
def block_lengths(layout: Layout, block: int, device: torch.device) -> Tensor:
    """Each block's number of entries; kept, because bringing it to a GPU makes the host wait. Not to be written to."""
    counts = torch.tensor([-(-piece.numel // block) for piece in layout.pieces], dtype=torch.int64)
    lengths = torch.full((int(counts.sum()),), min(block, max(1, layout.numel)), dtype=torch.int64)
    filled = counts > 0
    sizes = torch.tensor([piece.numel for piece in layout.pieces], dtype=torch.int64)[filled]
    lengths[counts.cumsum(0)[filled] - 1] = sizes - (counts[filled] - 1) * block
    return lengths.to(device)


def spread(scales: Tensor, layout: Layout, block: int) -> Tensor:
    """Each block's number, repeated for each of its entries."""
    return scales.repeat_interleave(block_lengths(layout, block, scales.device), output_size=layout.numel)


def level_factors(norms: Tensor, levels: int) -> Tensor:
    """levels / norm, rounded as every back-end must: the reciprocal, then the product. Infinite for a norm of zero."""
    return norms.reciprocal() * levels


NO_VALUE = -(1 << 15)
"""The exponent of a group without any non-zero value."""
LOWEST, HIGHEST = -149, 127
"""Exponents of a float32."""


def exponents(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """floor(log2 max|v|) of each of `count` groups of values, as int16; NO_VALUE where none is non-zero."""
    largest = torch.zeros(count, dtype=values.dtype, device=values.device)
    return floor_log2(largest.scatter_reduce_(0, groups, values.abs(), "amax"))


def floor_log2(magnitudes: Tensor) -> Tensor:
    """floor(log2 m) as int16; NO_VALUE of zero."""
    exponent = torch.frexp(magnitudes).exponent.to(torch.int16) - 1
    return torch.where(magnitudes > 0, exponent, torch.full_like(exponent, NO_VALUE))


def power(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """2^exponent, exactly: built from the bits of a float64 (torch.ldexp would go through float32)."""
    return ((exponent.to(torch.int64).clamp(-1022, 1023) + 1023) << 52).view(torch.float64).to(dtype)

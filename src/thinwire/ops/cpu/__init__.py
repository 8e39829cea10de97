"""The CPU back-end: numba kernels on torch's memory, on as many threads as torch uses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops.cpu import wire
from thinwire.ops.cpu.above import above
from thinwire.ops.cpu.draw import drawn
from thinwire.ops.cpu.exponents import exponent_codes as exponent_codes
from thinwire.ops.cpu.exponents import exponent_values as exponent_values
from thinwire.ops.cpu.exponents import nearest_powers as nearest_powers
from thinwire.ops.cpu.exponents import without_zeros as without_zeros
from thinwire.ops.cpu.fields import pack_bits as pack_bits
from thinwire.ops.cpu.fields import pack_codes as pack_codes
from thinwire.ops.cpu.fields import unpack_bits as unpack_bits
from thinwire.ops.cpu.fields import unpack_codes as unpack_codes
from thinwire.ops.cpu.norms import block_norms as block_norms
from thinwire.ops.cpu.quantise import add_levels_ as add_levels_
from thinwire.ops.cpu.quantise import add_powers_ as add_powers_
from thinwire.ops.cpu.quantise import add_signs_ as add_signs_
from thinwire.ops.cpu.quantise import level_codes as level_codes
from thinwire.ops.cpu.quantise import levels_within as levels_within
from thinwire.ops.cpu.quantise import negative_bits as negative_bits
from thinwire.ops.cpu.quantise import power_codes as power_codes
from thinwire.ops.cpu.select import largest
from thinwire.ops.cpu.sweep import DIFFERENCE, MEMORY, PLAIN
from thinwire.ops.cpu.threads import in_parallel
from thinwire.ops.cpu.variance import variance_ as variance_
from thinwire.ops.cpu.variance import variance_strom_ as variance_strom_


def topk(x: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """See `reference.topk`."""
    return largest(PLAIN, x, x, layout, counts, None)


def memory_topk_(
    error: Tensor, value: Tensor, layout: Layout, counts: Sequence[int], ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """See `reference.memory_topk_`."""
    return largest(MEMORY, error, value, layout, counts, ratios)


def difference_topk_(local: Tensor, target: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """See `reference.difference_topk_`."""
    return largest(DIFFERENCE, local, target, layout, counts, None)


def threshold(x: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """See `reference.threshold`."""
    return above(PLAIN, x, x, None, tau, None)


def memory_threshold_(
    error: Tensor, value: Tensor, layout: Layout, tau: float, ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """See `reference.memory_threshold_`."""
    return above(MEMORY, error, value, (layout, ratios) if ratios else None, tau, None)


def difference_threshold_(local: Tensor, target: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """See `reference.difference_threshold_`."""
    return above(DIFFERENCE, local, target, None, tau, None)


def strom(x: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """See `reference.strom`."""
    return above(PLAIN, x, x, None, tau, tau)


def memory_strom_(
    error: Tensor, value: Tensor, layout: Layout, tau: float, ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """See `reference.memory_strom_`."""
    return above(MEMORY, error, value, (layout, ratios) if ratios else None, tau, tau)


def difference_strom_(local: Tensor, target: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """See `reference.difference_strom_`."""
    return above(DIFFERENCE, local, target, None, tau, tau)


def randk_indices(key: int, numel: int, k: int, device: torch.device) -> Tensor:
    """See `reference.randk_indices`."""
    return torch.arange(numel) if k >= numel else drawn(key, numel, k)


def pack_positions(positions: Tensor, width: int, length: int) -> tuple[Tensor, Tensor]:
    """See `reference.pack_positions`."""
    low = torch.empty((positions.numel() * width + 7) // 8, dtype=torch.uint8)
    bitmap = torch.zeros((length + 7) // 8, dtype=torch.uint8)
    wire.pack(positions.numpy(), width, low.numpy(), bitmap.numpy())
    return low, bitmap


def unpack_positions(
    low: Tensor, bitmap: Tensor, width: int, length: int, count: int, bound: int
) -> tuple[Tensor, int, bool]:
    """See `reference.unpack_positions`."""
    positions = torch.zeros(count, dtype=torch.int64)
    marks, ascending = wire.unpack(low.numpy(), bitmap.numpy(), width, length, positions.numpy())
    sound = ascending and (count == 0 or int(positions[-1]) < bound)
    if (marks != count or not sound) and length << width > bound:  # no position can be larger
        positions.clamp_(max=bound - 1)
    return positions, marks, sound


def add_at_(out: Tensor, positions: Tensor, values: Tensor, alpha: float) -> Tensor:
    """See `reference.add_at_`."""
    wire.add(out.numpy(), positions.numpy(), values.numpy(), out.numpy().dtype.type(alpha))
    return out


def add_each_at_(out: Tensor, positions: Sequence[Tensor], values: Sequence[Tensor], alpha: float) -> Tensor:
    """See `reference.add_each_at_`: every thread adds all of them, in their order, to its share of the output."""
    array = out.numpy()
    lists = [(places.numpy(), entries.numpy()) for places, entries in zip(positions, values, strict=True)]

    def add(_: int, begin: int, end: int) -> None:
        for places, entries in lists:
            mine = slice(*np.searchsorted(places, (begin, end)))
            wire.add(array, places[mine], entries[mine], array.dtype.type(alpha))

    in_parallel(add, out.numel())
    return out

"""The CPU back-end: numba kernels on torch's memory, on as many threads as torch uses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import reference
from thinwire.ops.cpu.above import above
from thinwire.ops.cpu.draw import drawn
from thinwire.ops.cpu.draws import randk_positions as randk_positions
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
from thinwire.ops.cpu.quantise import levels_above_zero as levels_above_zero
from thinwire.ops.cpu.quantise import levels_within as levels_within
from thinwire.ops.cpu.quantise import negative_bits as negative_bits
from thinwire.ops.cpu.quantise import power_codes as power_codes
from thinwire.ops.cpu.rows import row_products as row_products
from thinwire.ops.cpu.rows import row_sums as row_sums
from thinwire.ops.cpu.rows import row_sums_at as row_sums_at
from thinwire.ops.cpu.select import largest
from thinwire.ops.cpu.sweep import DIFFERENCE, MEMORY, PLAIN
from thinwire.ops.cpu.threads import SMALLEST_SHARE
from thinwire.ops.cpu.variance import variance_ as variance_
from thinwire.ops.cpu.variance import variance_strom_ as variance_strom_
from thinwire.ops.cpu.wire import add_at_ as add_at_
from thinwire.ops.cpu.wire import add_each_at_ as add_each_at_
from thinwire.ops.cpu.wire import add_folded_ as add_folded_
from thinwire.ops.cpu.wire import pack_positions as pack_positions
from thinwire.ops.cpu.wire import positions_of_sums_ as positions_of_sums_
from thinwire.ops.cpu.wire import sums_of_gaps as sums_of_gaps
from thinwire.ops.cpu.wire import unpack_positions as unpack_positions


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


CLEAR = torch.tensor(-1)
"""No piece, made once: a new one takes 2 microseconds."""


def first_nonfinite(x: Tensor, layout: Layout) -> Tensor:
    """See `reference.first_nonfinite`: a short vector is cleared by its product with itself, in 5 microseconds where
    torch's sum takes 20; one that is too large for it is looked at again."""
    short = x.numel() <= SMALLEST_SHARE and x.dtype in (torch.float32, torch.float64)
    if short and math.isfinite(x.dot(x).item()):
        return CLEAR
    return reference.first_nonfinite(x, layout)

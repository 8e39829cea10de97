"""The GPU back-end: Triton kernels on float32 (and on bytes); whatever else is left to the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import reference
from thinwire.ops.blocks import one_piece
from thinwire.ops.cuda import correlate, exponents, variance, wire
from thinwire.ops.cuda.above import positions_above
from thinwire.ops.cuda.draw import randk_indices as randk_indices
from thinwire.ops.cuda.draw import randk_positions as randk_positions
from thinwire.ops.cuda.exponents import exponent_values as exponent_values
from thinwire.ops.cuda.quantise import add_levels_ as add_levels_
from thinwire.ops.cuda.quantise import add_powers_ as add_powers_
from thinwire.ops.cuda.quantise import add_signs_ as add_signs_
from thinwire.ops.cuda.quantise import block_norms as block_norms
from thinwire.ops.cuda.quantise import level_codes as level_codes
from thinwire.ops.cuda.quantise import levels_above_zero as levels_above_zero
from thinwire.ops.cuda.quantise import levels_within as levels_within
from thinwire.ops.cuda.quantise import negative_bits as negative_bits
from thinwire.ops.cuda.quantise import pack_bits as pack_bits
from thinwire.ops.cuda.quantise import pack_codes as pack_codes
from thinwire.ops.cuda.quantise import power_codes as power_codes
from thinwire.ops.cuda.quantise import unpack_bits as unpack_bits
from thinwire.ops.cuda.quantise import unpack_codes as unpack_codes
from thinwire.ops.cuda.select import DIFFERENCE, MEMORY, PLAIN, select
from thinwire.ops.cuda.wire import checksum as checksum
from thinwire.ops.cuda.wire import pack_positions as pack_positions
from thinwire.ops.cuda.wire import unpack_positions as unpack_positions
from thinwire.ops.precision import Product

P = ParamSpec("P")
R = TypeVar("R")


def _float32_in_one_stretch(kernel: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """Leave every other type, and tensors with gaps, to the reference's function of the same name."""

    @wraps(kernel)
    def served(first: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        dense = all(each.is_contiguous() for each in (first, *args) if isinstance(each, Tensor))
        if first.dtype == torch.float32 and dense:
            return kernel(first, *args, **kwargs)
        by_reference: R = getattr(reference, kernel.__name__)(first, *args, **kwargs)
        return by_reference

    return served


@_float32_in_one_stretch
def topk(x: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """See `reference.topk`."""
    return select(PLAIN, x, x, layout, counts, None)


@_float32_in_one_stretch
def memory_topk_(
    error: Tensor, value: Tensor, layout: Layout, counts: Sequence[int], ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """See `reference.memory_topk_`."""
    return select(MEMORY, error, value, layout, counts, ratios)


@_float32_in_one_stretch
def difference_topk_(local: Tensor, target: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """See `reference.difference_topk_`."""
    return select(DIFFERENCE, local, target, layout, counts, None)


@_float32_in_one_stretch
def threshold(x: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """See `reference.threshold`."""
    positions = positions_above(PLAIN, x, x, one_piece(x.numel()), tau, None)
    return positions, x[positions]


@_float32_in_one_stretch
def memory_threshold_(
    error: Tensor, value: Tensor, layout: Layout, tau: float, ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """See `reference.memory_threshold_`."""
    positions = positions_above(MEMORY, error, value, layout, tau, ratios)
    values = error[positions]
    error[positions] -= values
    return positions, values


@_float32_in_one_stretch
def difference_threshold_(local: Tensor, target: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """See `reference.difference_threshold_`."""
    positions = positions_above(DIFFERENCE, local, target, one_piece(local.numel()), tau, None)
    values = target[positions] - local[positions]
    local[positions] += values
    return positions, values


@_float32_in_one_stretch
def strom(x: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """See `reference.strom`."""
    positions, values = threshold(x, tau)
    return positions, _signs(values, tau)


@_float32_in_one_stretch
def memory_strom_(
    error: Tensor, value: Tensor, layout: Layout, tau: float, ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """See `reference.memory_strom_`."""
    positions = positions_above(MEMORY, error, value, layout, tau, ratios)
    values = _signs(error[positions], tau)
    error[positions] -= values
    return positions, values


@_float32_in_one_stretch
def difference_strom_(local: Tensor, target: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """See `reference.difference_strom_`."""
    positions = positions_above(DIFFERENCE, local, target, one_piece(local.numel()), tau, None)
    values = _signs(target[positions] - local[positions], tau)
    local[positions] += values
    return positions, values


def _signs(x: Tensor, tau: float) -> Tensor:
    return x.sign() * float(torch.tensor(tau, dtype=torch.float64).to(x.dtype))


def correlation_squares_(
    out: Tensor,
    beta: int,
    image: Tensor,
    delta: Tensor,
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    product: Product = "convolution",
) -> None:
    """See `reference.correlation_squares_`."""
    plane = len(stride) <= 2 and out.dtype == torch.float32 and out.is_contiguous()
    served = correlate.correlation_squares_ if plane else reference.correlation_squares_
    served(out, beta, image, delta, stride, dilation, groups, product)


@_float32_in_one_stretch
def variance_(
    total: Tensor, squares: Tensor, value: Tensor, moment: Tensor, layout: Layout, alphas: Tensor, zeta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.variance_`."""
    return variance.variance_(total, squares, value, moment, layout, alphas, zeta)


@_float32_in_one_stretch
def variance_strom_(
    total: Tensor,
    squares: Tensor,
    value: Tensor,
    moment: Tensor,
    layout: Layout,
    alphas: Tensor,
    zeta: float,
    tau: float,
) -> tuple[Tensor, Tensor]:
    """See `reference.variance_strom_`."""
    return variance.variance_strom_(total, squares, value, moment, layout, alphas, zeta, tau)


@_float32_in_one_stretch
def nearest_powers(values: Tensor, positions: Tensor, layout: Layout) -> Tensor:
    """See `reference.nearest_powers`."""
    return exponents.nearest_powers(values, positions, layout)


@_float32_in_one_stretch
def exponent_codes(powers: Tensor, positions: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """See `reference.exponent_codes`."""
    return exponents.exponent_codes(powers, positions, layout)


@_float32_in_one_stretch
def add_at_(out: Tensor, positions: Tensor, values: Tensor, alpha: float) -> Tensor:
    """See `reference.add_at_`."""
    return wire.add_at_(out, positions, values, alpha)


@_float32_in_one_stretch
def add_each_at_(out: Tensor, positions: Sequence[Tensor], values: Sequence[Tensor], alpha: float) -> Tensor:
    """See `reference.add_each_at_`."""
    return wire.add_each_at_(out, positions, values, alpha)


def first_nonfinite(x: Tensor, layout: Layout) -> Tensor:
    """See `reference.first_nonfinite`."""
    return reference.first_nonfinite(x, layout) if x.dtype == torch.float64 else wire.first_nonfinite(x, layout)

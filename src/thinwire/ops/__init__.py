"""Kernels behind typed functions: what the methods call, whichever back-end does the work.

`reference` is the definition of each operation, in plain torch. A faster back-end may take its place only where it
gives the same integers, and the same floats or a stated bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import reference
from thinwire.ops.backends import backend as backend
from thinwire.ops.backends import implementation
from thinwire.ops.blocks import block_count as block_count
from thinwire.ops.blocks import block_lengths as block_lengths
from thinwire.ops.blocks import piece_indices as piece_indices
from thinwire.ops.keys import JointKey as JointKey
from thinwire.ops.keys import Key as Key
from thinwire.ops.keys import first_uniforms as first_uniforms
from thinwire.ops.keys import joint_index as joint_index
from thinwire.ops.keys import random_bits as random_bits
from thinwire.ops.keys import uniform as uniform
from thinwire.ops.precision import Product as Product
from thinwire.ops.precision import product_epsilon as product_epsilon
from thinwire.ops.precision import product_precision as product_precision
from thinwire.ops.reference import large_indices as large_indices
from thinwire.ops.reference import natural_exponents as natural_exponents
from thinwire.ops.reference import qsgd_levels as qsgd_levels


def pack_positions(positions: Tensor, width: int, length: int) -> tuple[Tensor, Tensor]:
    """Ascending positions as Elias-Fano words: `width` low bits each, and a map of `length` bits, as bytes."""
    return implementation(reference.pack_positions, positions.device.type)(positions, width, length)


def unpack_positions(
    low: Tensor, bitmap: Tensor, width: int, length: int, count: int, bound: int
) -> tuple[Tensor, int | Tensor, bool | Tensor]:
    """`count` positions, the number of marks in the map, and whether the positions ascend and stay below `bound`.

    Unless both are right, the positions mean nothing, but still lie in 0..bound-1. On a GPU several codes of one shape
    can be given at once, one in each row; all that is returned then has rows too.
    """
    return implementation(reference.unpack_positions, low.device.type)(low, bitmap, width, length, count, bound)


def sums_of_gaps(positions: Tensor, width: int) -> Tensor:
    """What Elias-Fano is given to code gaps: low parts of the gaps, and above them the sums of their high parts."""
    return implementation(reference.sums_of_gaps, positions.device.type)(positions, width)


def positions_of_sums_(sums: Tensor, width: int) -> Tensor:
    """The positions whose `sums_of_gaps` these are, in their place."""
    return implementation(reference.positions_of_sums_, sums.device.type)(sums, width)


def first_nonfinite(x: Tensor, layout: Layout) -> Tensor:
    """The place of the first piece that holds NaN or infinity, or -1, as a tensor without dimensions."""
    return implementation(reference.first_nonfinite, x.device.type)(x, layout)


def checksum(message: Tensor) -> Tensor:
    """zlib's CRC-32 of the bytes, as a tensor of four bytes; of each row where there are several."""
    return implementation(reference.checksum, message.device.type)(message)


def add_at_(out: Tensor, positions: Tensor, values: Tensor, alpha: float) -> Tensor:
    """out[positions] += alpha * values, for positions that differ from each other."""
    return implementation(reference.add_at_, out.device.type)(out, positions, values, alpha)


def add_each_at_(out: Tensor, positions: Sequence[Tensor], values: Sequence[Tensor], alpha: float) -> Tensor:
    """`add_at_` of several ascending positions and their values, one after the other."""
    return implementation(reference.add_each_at_, out.device.type)(out, positions, values, alpha)


def add_folded_(out: Tensor, positions: Tensor, values: Tensor, alpha: float) -> Tensor:
    """out[positions % numel] += alpha * values, one after the other in their (ascending) order."""
    return implementation(reference.add_folded_, out.device.type)(out, positions, values, alpha)


def row_products(pointers: Tensor, columns: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """A x for a CSR matrix A, each row added up from left to right; `values` has one for each entry or one for all."""
    return implementation(reference.row_products, x.device.type)(pointers, columns, values, x)


def row_sums(pointers: Tensor, columns: Tensor, values: Tensor, weights: Tensor, offsets: Tensor, width: int) -> Tensor:
    """sum_j weights[j] A[j] over the rows offsets[i] <= j < offsets[i + 1] of a CSR matrix with `width` columns, for
    every i, dense; added up in the order of the rows. `values` has one for each entry or one for all."""
    run = implementation(reference.row_sums, weights.device.type)
    return run(pointers, columns, values, weights, offsets, width)


def row_sums_at(
    pointers: Tensor, columns: Tensor, values: Tensor, weights: Tensor, offsets: Tensor, width: int, places: Tensor
) -> Tensor:
    """Some numbers of `row_sums`: those at the ascending places of its rows laid side by side."""
    run = implementation(reference.row_sums_at, weights.device.type)
    return run(pointers, columns, values, weights, offsets, width, places)


def topk(x: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The counts[i] entries of largest magnitude of piece i: ascending positions, and values; ties to the lower."""
    return implementation(reference.topk, x.device.type)(x, layout, counts)


def memory_topk_(
    error: Tensor, value: Tensor, layout: Layout, counts: Sequence[int], ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """error <- ratio * error + value, and its top-k taken out of it."""
    return implementation(reference.memory_topk_, error.device.type)(error, value, layout, counts, ratios)


def difference_topk_(local: Tensor, target: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The top-k of target - local, added to local."""
    return implementation(reference.difference_topk_, local.device.type)(local, target, layout, counts)


def threshold(x: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """The entries with |x| >= tau: ascending positions, and values."""
    return implementation(reference.threshold, x.device.type)(x, tau)


def memory_threshold_(
    error: Tensor, value: Tensor, layout: Layout, tau: float, ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """error <- ratio * error + value, and what reaches tau taken out of it."""
    return implementation(reference.memory_threshold_, error.device.type)(error, value, layout, tau, ratios)


def difference_threshold_(local: Tensor, target: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """What of target - local reaches tau, added to local."""
    return implementation(reference.difference_threshold_, local.device.type)(local, target, tau)


def strom(x: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """sign(x) * tau for the entries with |x| >= tau: ascending positions, and values."""
    return implementation(reference.strom, x.device.type)(x, tau)


def memory_strom_(
    error: Tensor, value: Tensor, layout: Layout, tau: float, ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """error <- ratio * error + value, and sign(error) * tau taken out of what reaches tau."""
    return implementation(reference.memory_strom_, error.device.type)(error, value, layout, tau, ratios)


def difference_strom_(local: Tensor, target: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """sign(target - local) * tau where the difference reaches tau, added to local."""
    return implementation(reference.difference_strom_, local.device.type)(local, target, tau)


def variance_(
    total: Tensor, squares: Tensor, value: Tensor, moment: Tensor, layout: Layout, alphas: Tensor, zeta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """VGC's step: r <- r + g, v <- v + q; r and v taken out where r^2 > alpha v, elsewhere v <- zeta v."""
    run = implementation(reference.variance_, total.device.type)
    return run(total, squares, value, moment, layout, alphas, zeta)


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
    """The hybrid's step: r <- r + g, v <- v + q; sign(r) tau taken out where r^2 > alpha v and |r| > tau."""
    run = implementation(reference.variance_strom_, total.device.type)
    return run(total, squares, value, moment, layout, alphas, zeta, tau)


def randk_indices(key: int, numel: int, k: int, device: torch.device) -> Tensor:
    """Ascending indices of k entries drawn uniformly without replacement."""
    return implementation(reference.randk_indices, device.type)(key, numel, k, device)


def randk_positions(layout: Layout, counts: Sequence[int], keys: Tensor, device: torch.device) -> Tensor:
    """Ascending positions of counts[i] entries of piece i, drawn by keys[i] as `randk_indices` does."""
    return implementation(reference.randk_positions, device.type)(layout, counts, keys, device)


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
    """out <- beta out + the sum of squared per-sample weight gradients of a convolution over a padded image.

    `product`: whose gradients they are, and so which of torch's settings the precision of float32 products follows.
    """
    run = implementation(reference.correlation_squares_, out.device.type)
    run(out, beta, image, delta, stride, dilation, groups, product)


def block_norms(x: Tensor, layout: Layout, block: int, order: int) -> Tensor:
    """L1 or L2 norms of the consecutive blocks of at most `block` entries that each piece is cut into."""
    return implementation(reference.block_norms, x.device.type)(x, layout, block, order)


def negative_bits(x: Tensor) -> Tensor:
    """Which entries are below zero, as bits."""
    return implementation(reference.negative_bits, x.device.type)(x)


def add_signs_(out: Tensor, negative: Tensor, scales: Tensor, layout: Layout, block: int, alpha: float) -> Tensor:
    """out += alpha * scale of the block, or -= it where the entry's bit is set."""
    return implementation(reference.add_signs_, out.device.type)(out, negative, scales, layout, block, alpha)


def level_codes(x: Tensor, norms: Tensor, layout: Layout, block: int, levels: int, keys: Sequence[int]) -> Tensor:
    """QSGD's stochastic level and sign of each entry, packed; a norm for each block, a key for each piece."""
    return implementation(reference.level_codes, x.device.type)(x, norms, layout, block, levels, keys)


def add_levels_(
    out: Tensor, packed: Tensor, norms: Tensor, layout: Layout, block: int, levels: int, alpha: float
) -> Tensor:
    """out += (norm * (alpha / levels)) * level with the block's norm, or -= it where the sign bit is set."""
    return implementation(reference.add_levels_, out.device.type)(out, packed, norms, layout, block, levels, alpha)


def levels_within(packed: Tensor, count: int, levels: int) -> Tensor:
    """Whether no level of `count` packed codes exceeds `levels`, as a tensor without dimensions."""
    return implementation(reference.levels_within, packed.device.type)(packed, count, levels)


def levels_above_zero(packed: Tensor, count: int, levels: int) -> Tensor:
    """How many of `count` packed codes have a level that is not zero, as a tensor without dimensions."""
    return implementation(reference.levels_above_zero, packed.device.type)(packed, count, levels)


def power_codes(x: Tensor, layout: Layout, keys: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Each entry's stochastic exponent as a byte, and the bits of the negative ones; a key for each piece."""
    return implementation(reference.power_codes, x.device.type)(x, layout, keys)


def add_powers_(out: Tensor, codes: Tensor, negative: Tensor, alpha: float) -> Tensor:
    """out += alpha * 2^(code - 127), or -= it where the entry's bit is set."""
    return implementation(reference.add_powers_, out.device.type)(out, codes, negative, alpha)


def nearest_powers(values: Tensor, positions: Tensor, layout: Layout) -> Tensor:
    """Each value as the nearer power of two, at most seven below the largest of its piece; zero where it is less."""
    return implementation(reference.nearest_powers, values.device.type)(values, positions, layout)


def without_zeros(positions: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The values that are not zero, and their positions."""
    return implementation(reference.without_zeros, values.device.type)(positions, values)


def exponent_codes(powers: Tensor, positions: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Each piece's largest exponent, and 4 bits for each power of two: how far it lies below that, and its sign."""
    return implementation(reference.exponent_codes, powers.device.type)(powers, positions, layout)


def exponent_values(
    exponent: Tensor, packed: Tensor, positions: Tensor, layout: Layout, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The powers of `exponent_codes`, whether no piece without exponent has any, and whether each exponent is right."""
    run = implementation(reference.exponent_values, packed.device.type)
    return run(exponent, packed, positions, layout, dtype)


def pack_bits(bits: Tensor) -> Tensor:
    """A vector of booleans as bytes, lowest bit first, padded with zeros."""
    return implementation(reference.pack_bits, bits.device.type)(bits)


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """The first `count` booleans of packed bytes."""
    return implementation(reference.unpack_bits, packed.device.type)(packed, count)


def pack_codes(codes: Tensor, width: int) -> Tensor:
    """Non-negative integers below 2^width as consecutive `width`-bit fields."""
    return implementation(reference.pack_codes, codes.device.type)(codes, width)


def unpack_codes(packed: Tensor, width: int, count: int) -> Tensor:
    """`count` integers from consecutive `width`-bit fields."""
    return implementation(reference.unpack_codes, packed.device.type)(packed, width, count)

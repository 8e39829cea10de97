"""Kernels behind typed functions: what the methods call, whichever back-end does the work.

`reference` is the definition of each operation, in plain torch. A faster back-end may take its place only where it
gives the same integers, and the same floats or a stated bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops.backends import backend as backend
from thinwire.ops.backends import implementation
from thinwire.ops.keys import Key as Key
from thinwire.ops.keys import random_bits as random_bits
from thinwire.ops.keys import uniform as uniform
from thinwire.ops.reference import block_norms as block_norms
from thinwire.ops.reference import large_indices as large_indices
from thinwire.ops.reference import natural_exponents as natural_exponents
from thinwire.ops.reference import pack_bits as pack_bits
from thinwire.ops.reference import pack_codes as pack_codes
from thinwire.ops.reference import qsgd_levels as qsgd_levels
from thinwire.ops.reference import unpack_bits as unpack_bits
from thinwire.ops.reference import unpack_codes as unpack_codes


def pack_positions(positions: Tensor, width: int, length: int) -> tuple[Tensor, Tensor]:
    """Ascending positions as Elias-Fano bytes: `width` low bits each, and a map of `length` bits."""
    return implementation("pack_positions", positions.device.type)(positions, width, length)  # type: ignore[no-any-return]


def unpack_positions(
    low: Tensor, bitmap: Tensor, width: int, length: int, count: int, bound: int
) -> tuple[Tensor, int | Tensor, bool | Tensor]:
    """`count` positions, the number of marks in the map, and whether the positions ascend and stay below `bound`.

    Unless both are right, the positions mean nothing, but still lie in 0..bound-1. On a GPU several codes of one shape
    can be given at once, one in each row; all that is returned then has rows too.
    """
    return implementation("unpack_positions", low.device.type)(low, bitmap, width, length, count, bound)  # type: ignore[no-any-return]


def first_nonfinite(x: Tensor, layout: Layout) -> Tensor:
    """The place of the first piece that holds NaN or infinity, or -1, as a tensor without dimensions."""
    return implementation("first_nonfinite", x.device.type)(x, layout)  # type: ignore[no-any-return]


def checksum(message: Tensor) -> Tensor:
    """zlib's CRC-32 of the bytes, as a tensor of four bytes; of each row where there are several."""
    return implementation("checksum", message.device.type)(message)  # type: ignore[no-any-return]


def add_at_(out: Tensor, positions: Tensor, values: Tensor, alpha: float) -> Tensor:
    """out[positions] += alpha * values, for positions that differ from each other."""
    return implementation("add_at_", out.device.type)(out, positions, values, alpha)  # type: ignore[no-any-return]


def add_each_at_(out: Tensor, positions: Sequence[Tensor], values: Sequence[Tensor], alpha: float) -> Tensor:
    """`add_at_` of several ascending positions and their values, one after the other."""
    return implementation("add_each_at_", out.device.type)(out, positions, values, alpha)  # type: ignore[no-any-return]


def topk(x: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The counts[i] entries of largest magnitude of piece i: ascending positions, and values; ties to the lower."""
    return implementation("topk", x.device.type)(x, layout, counts)  # type: ignore[no-any-return]


def memory_topk_(
    error: Tensor, value: Tensor, layout: Layout, counts: Sequence[int], ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """error <- ratio * error + value, and its top-k taken out of it."""
    return implementation("memory_topk_", error.device.type)(error, value, layout, counts, ratios)  # type: ignore[no-any-return]


def difference_topk_(local: Tensor, target: Tensor, layout: Layout, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The top-k of target - local, added to local."""
    return implementation("difference_topk_", local.device.type)(local, target, layout, counts)  # type: ignore[no-any-return]


def threshold(x: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """The entries with |x| >= tau: ascending positions, and values."""
    return implementation("threshold", x.device.type)(x, tau)  # type: ignore[no-any-return]


def memory_threshold_(
    error: Tensor, value: Tensor, layout: Layout, tau: float, ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """error <- ratio * error + value, and what reaches tau taken out of it."""
    return implementation("memory_threshold_", error.device.type)(error, value, layout, tau, ratios)  # type: ignore[no-any-return]


def difference_threshold_(local: Tensor, target: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """What of target - local reaches tau, added to local."""
    return implementation("difference_threshold_", local.device.type)(local, target, tau)  # type: ignore[no-any-return]


def strom(x: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """sign(x) * tau for the entries with |x| >= tau: ascending positions, and values."""
    return implementation("strom", x.device.type)(x, tau)  # type: ignore[no-any-return]


def memory_strom_(
    error: Tensor, value: Tensor, layout: Layout, tau: float, ratios: Sequence[float] | None
) -> tuple[Tensor, Tensor]:
    """error <- ratio * error + value, and sign(error) * tau taken out of what reaches tau."""
    return implementation("memory_strom_", error.device.type)(error, value, layout, tau, ratios)  # type: ignore[no-any-return]


def difference_strom_(local: Tensor, target: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """sign(target - local) * tau where the difference reaches tau, added to local."""
    return implementation("difference_strom_", local.device.type)(local, target, tau)  # type: ignore[no-any-return]


def randk_indices(key: int, numel: int, k: int, device: torch.device) -> Tensor:
    """Ascending indices of k entries drawn uniformly without replacement."""
    return implementation("randk_indices", device.type)(key, numel, k, device)  # type: ignore[no-any-return]

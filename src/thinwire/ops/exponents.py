"""Exponents of two: the largest of each piece's values, and exact powers."""

from __future__ import annotations

import torch
from torch import Tensor

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

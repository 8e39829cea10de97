"""Counting bits in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def popcount(x):
    """Bits set in each word of 32."""
    x = x.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)

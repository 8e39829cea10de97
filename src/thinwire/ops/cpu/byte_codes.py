"""A byte a number and a scale a block, as a memory is kept in 8 bits, to and from float, compiled by numba.

A share of the work is a number of whole blocks, whose numbers a thread reads twice, the second time from its cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import reference
from thinwire.ops.cpu.block_norms import Pieces, keys_of, pieces_of
from thinwire.ops.cpu.compiler import compiled
from thinwire.ops.cpu.quantise import draw
from thinwire.ops.cpu.threads import in_parallel

_SERVED = (torch.float32, torch.float64)


@compiled
def _largest(x: Any) -> Any:  # pragma: no cover
    """max|x|, or NaN where not all are finite."""
    largest, odd = x.dtype.type(0), False
    for i in range(x.size):
        magnitude = abs(x[i])
        largest = magnitude if magnitude > largest else largest
        odd |= not np.isfinite(magnitude)
    return x.dtype.type(np.nan) if odd else largest


@compiled
def _code(x: Any, scale: Any, draws: Any, grain: Any, codes: Any) -> None:  # pragma: no cover
    number = x.dtype.type
    for i in range(x.size):
        y = abs(x[i]) / scale * number(127)
        level = np.int32(y)
        level += np.int32(number(draws[i]) * grain < y - number(level))
        codes[i] = -level if x[i] < number(0) else level


@compiled
def _encode(
    x: Any, pieces: Pieces, keys: Any, grain: Any, draws: Any, codes: Any, scales: Any, begin: int, end: int
) -> None:  # pragma: no cover
    shift = np.uint64(40 if draws.itemsize == 4 else 11)
    for b in range(begin, end):
        p = np.searchsorted(pieces.firsts, b, side="right") - 1
        start = pieces.starts[p] + (b - pieces.firsts[p]) * pieces.block
        stop = min(start + pieces.block, pieces.stops[p])
        scales[b] = _largest(x[start:stop])
        if scales[b] > 0:
            draw(keys[p], start - pieces.starts[p], shift, draws[: stop - start])
            _code(x[start:stop], scales[b], draws, grain, codes[start:stop])
        else:
            codes[start:stop] = 0


@compiled
def _decode(codes: Any, scales: Any, pieces: Pieces, out: Any, begin: int, end: int) -> None:  # pragma: no cover
    number = out.dtype.type
    for b in range(begin, end):
        p = np.searchsorted(pieces.firsts, b, side="right") - 1
        start = pieces.starts[p] + (b - pieces.firsts[p]) * pieces.block
        for i in range(start, min(start + pieces.block, pieces.stops[p])):
            out[i] = scales[b] * (number(codes[i]) / number(127))


def byte_codes(x: Tensor, layout: Layout, block: int, keys: Sequence[int] | None) -> tuple[Tensor, Tensor]:
    """See `reference.byte_codes`; rounding to the nearer, which no step asks for, is left to it."""
    if keys is None or not (x.dtype in _SERVED and x.is_contiguous()):
        return reference.byte_codes(x, layout, block, keys)
    pieces, words, source = pieces_of(layout, block), keys_of(layout, keys), x.numpy()
    count, numel = _blocks(pieces), max(1, x.numel())
    codes, scales = torch.empty(x.numel(), dtype=torch.int8), torch.empty(count, dtype=x.dtype)
    target, largest, number = codes.numpy(), scales.numpy(), source.dtype.type
    kind, grain = (np.uint32, 2.0**-24) if x.dtype == torch.float32 else (np.uint64, 2.0**-53)

    def encode(_: int, begin: int, end: int) -> None:
        share = count * begin // numel, count * end // numel
        draws = np.empty(min(block, numel), kind)
        _encode(source, pieces, words, number(grain), draws, target, largest, *share)

    in_parallel(encode, x.numel())
    return codes, scales


def byte_values(codes: Tensor, scales: Tensor, layout: Layout, block: int) -> Tensor:
    """See `reference.byte_values`."""
    if not (scales.dtype in _SERVED and codes.is_contiguous() and scales.is_contiguous()):
        return reference.byte_values(codes, scales, layout, block)
    pieces, out, numel = pieces_of(layout, block), torch.empty(codes.numel(), dtype=scales.dtype), codes.numel()
    source, largest, target, count = codes.numpy(), scales.numpy(), out.numpy(), _blocks(pieces)
    in_parallel(
        lambda _, begin, end: _decode(
            source, largest, pieces, target, count * begin // max(1, numel), count * end // max(1, numel)
        ),
        numel,
    )
    return out


def _blocks(pieces: Pieces) -> int:
    """How many there are."""
    return int((-(-(pieces.stops - pieces.starts) // pieces.block)).sum())

"""Bits of a run's messages, by three ways to count: the paper's, an honest one, and thinwire's own messages."""

from __future__ import annotations

import math
from typing import Any

import torch

from thinwire import QSGD, Identity, RandK, TopK, parse
from thinwire.channel import Channel, Given
from thinwire.feedback import MemSGD, Plain
from thinwire.linear import Samples
from thinwire.ops import backend

MESSAGES = 8
"""Whose mean length counts."""


def paper_bits(rule: str, d: int, entries: float | None) -> float:
    """Of a message as the paper's notebook counts; `entries` is of a sparse row, None where rows are dense.

    Sparsifiers: 64 a coordinate. SGD: 64 for each number that is not zero. QSGD with s = 2^b levels: the least of
    (b + 1) d, of Elias' bound 3 s (s + √d) + 32, and of b + 1 + 32 for each number that is not zero.

    >>> [round(paper_bits(f"plain(qsgd({s}, 2000))", 2000, None)) for s in (4, 16, 256)]
    [617, 2947, 18000]
    >>> [round(paper_bits(f"plain(qsgd({s}, 47236))", 47_236, 70)) for s in (4, 16, 256)]
    [2450, 2590, 2870]
    """
    match compressor := _compressor(rule):
        case TopK(count=count) | RandK(count=count):
            assert count is not None
            return 64 * count
        case QSGD(levels=s):
            b = math.log2(s)
            elias = 3 * s * (s + math.sqrt(d)) + 32
            return min((b + 1) * d, elias, *([] if entries is None else [(b + 33) * entries]))
    assert isinstance(compressor, Identity)
    return 64 * (d if entries is None else entries)


def honest_bits(rule: str, d: int, sparse: bool, steps: int, written: int) -> float:
    """Of so many messages with so many numbers other than zero in all, and of x₀, which is 32 d.

    A position takes ⌈log₂ d⌉ bits, a number 32, and no position where all d are sent. QSGD: 32 for each norm, and the
    less of a sign and a level of 0 … s for all d, and of sign, level of 1 … s and position for those that are not zero.

    >>> honest_bits("memsgd(topk(count=1))", 2000, False, 10, 10) - 32 * 2000
    430
    """
    start, position = 32 * d, math.ceil(math.log2(d))
    match _compressor(rule):
        case QSGD(levels=s):
            every = steps * d * (1 + math.ceil(math.log2(s + 1)))
            return start + 32 * steps + min(every, written * (1 + math.ceil(math.log2(s)) + position))
        case Identity() if not sparse:
            return start + 32 * d * steps
    return start + written * (32 + position)


def wire_bits(rule: str, samples: Samples) -> float:
    """Of a message as thinwire packs it, with its envelope: the mean over the gradients of a few samples at x = 0."""
    first = samples.rows[:MESSAGES]
    gradients = torch.from_numpy(first if samples.dense else first.toarray())
    with backend("reference"):  # eight messages are not worth the time that kernels take to compile
        return 8 * sum(_message(rule, gradient).numel() for gradient in gradients) / len(gradients)


def _message(rule: str, gradient: torch.Tensor) -> torch.Tensor:
    channel = Channel(parse(rule), {"x": gradient}, rank=0, size=1)
    return channel.send(channel.layout(["x"]), Given(gradient, step_sizes={"x": 1.0})).message


def _compressor(rule: str) -> Any:
    parsed = parse(rule)
    assert isinstance(parsed, MemSGD | Plain)
    return parsed.compressor

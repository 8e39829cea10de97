"""The wire format: bits for each number kept against the entropy and other codes, and the time to pack and unpack."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from thinwire import Key, Layout, TopK
from thinwire.compressors.density import kept
from thinwire.experiments.bench.timing import side_by_side
from thinwire.payload import Payload, Reader, pack_payload, unpack_payload

MESSAGES = 4
"""How many workers' messages are unpacked and added."""
VALUE_BITS = 32


@dataclass(frozen=True)
class WireRow:
    """One density: bits a position, ours and others', and milliseconds."""

    density: float
    entropy: float
    ours: float
    int32: float
    int64: float
    chunks_of_4096: float
    memory_step_ms: float
    pack_ms: float
    unpack_and_add_ms: float

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "over_entropy": self.ours / self.entropy}


def bench_wire(numel: int, densities: Sequence[float], repeats: int) -> Iterator[WireRow]:
    """Messages of the largest `density * numel` of normal numbers."""
    layout = Layout.of([("x", 0, (numel,))])
    x = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    for density in densities:
        yield _row(layout, x, density, repeats)


def _row(layout: Layout, x: torch.Tensor, density: float, repeats: int) -> WireRow:
    numel, k = layout.numel, kept(layout.numel, density, None)
    compressor, memory, out = TopK(density), torch.zeros_like(x), torch.zeros_like(x)
    payload = compressor(x, layout, Key())
    message = pack_payload(payload)
    contenders = {
        "step": lambda: compressor.take_(memory, x, None, layout, Key()),
        "pack": lambda: pack_payload(payload),
        "unpack": lambda: [_unpack(message, layout).add_to(out) for _ in range(MESSAGES)],
    }
    timed = side_by_side(contenders, memory.zero_, repeats)
    return WireRow(
        density,
        entropy=_log2_binomial(numel, k) / k,
        ours=8 * message.numel() / k - VALUE_BITS,
        int32=32.0,
        int64=64.0,
        chunks_of_4096=12 + 12 * numel / 4096 / k,  # a 12-bit place in each chunk, and a count for each chunk
        memory_step_ms=timed["step"].median,
        pack_ms=timed["pack"].median,
        unpack_and_add_ms=timed["unpack"].median,
    )


def _unpack(message: torch.Tensor, layout: Layout) -> Payload:
    return unpack_payload(Reader(message), layout, Key(), torch.float32)


def _log2_binomial(n: int, k: int) -> float:
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)

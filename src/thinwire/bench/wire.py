"""The wire format: bits for each number kept against the entropy and other codes, and the time to pack and unpack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from thinwire import Key, Layout, TopK
from thinwire.bench.codes import OURS, Absent, Code, codes, nbytes
from thinwire.bench.inputs import draw
from thinwire.bench.timing import Timing, side_by_side
from thinwire.compressors.density import kept
from thinwire.payload import Payload, Reader, add_all_to, pack_payload, unpack_payload

MESSAGES = 4
"""How many workers' messages are unpacked and added."""
VALUE_BITS = 32


@dataclass(frozen=True)
class CodeResult:
    """One code for the positions: bits a position, and milliseconds for the whole set; None where it was not run."""

    name: str
    bits: float | None = None
    encode: Timing | None = None
    decode: Timing | None = None
    missing: str | None = None
    """The package that would be needed."""


@dataclass(frozen=True)
class WireRow:
    """One density: bits a position, ours and others', and milliseconds."""

    density: float
    numel: int
    kept: int
    entropy: float
    ours: float
    value_bits: int
    memory_step_ms: float
    pack_ms: float
    unpack_and_add_ms: float
    codes: tuple[CodeResult, ...]

    @property
    def pack_over_step(self) -> float:
        """The time to pack a message, as a multiple of the memory's step beside it."""
        return self.pack_ms / self.memory_step_ms

    @property
    def unpack_and_add_over_step(self) -> float:
        """The time to unpack and add the messages, as a multiple of the memory's step beside it."""
        return self.unpack_and_add_ms / self.memory_step_ms

    def plain(self) -> dict[str, Any]:
        ratios = ("pack_over_step", "unpack_and_add_over_step")
        return {
            **asdict(self),
            "over_entropy": self.ours / self.entropy,
            **{name: getattr(self, name) for name in ratios},
        }


def bench_wire(numel: int, densities: Sequence[float], repeats: int) -> Iterator[WireRow]:
    """Messages of the largest `density * numel` of normal numbers."""
    layout = Layout.of([("x", 0, (numel,))])
    x = draw("normal", numel, MESSAGES, torch.device("cpu"))
    for density in densities:
        yield _row(layout, x, density, repeats)


def _row(layout: Layout, x: torch.Tensor, density: float, repeats: int) -> WireRow:
    numel, k = layout.numel, kept(layout.numel, density, None)
    compressor, memory, out = TopK(density), torch.zeros_like(x), torch.zeros_like(x)
    vectors = (draw("normal", numel, seed, x.device) for seed in range(MESSAGES))
    payloads = [compressor(vector, layout, Key()) for vector in vectors]
    payload, messages = payloads[0], [pack_payload(one) for one in payloads]
    contenders: dict[str, Callable[[], object]] = {
        "step": lambda: compressor.take_(memory, x, None, layout, Key()),
        "pack": lambda: pack_payload(payload),
        "unpack": lambda: add_all_to(out, [_unpack(message, layout) for message in messages]),
    }
    # numpy fills on one thread: torch would leave its own threads spinning on the cores for some milliseconds
    timed = side_by_side(contenders, partial(memory.numpy().fill, 0.0), repeats)
    return WireRow(
        density,
        numel,
        k,
        entropy=_log2_binomial(numel, k) / k,
        ours=8 * messages[0].numel() / k - VALUE_BITS,
        value_bits=VALUE_BITS,
        memory_step_ms=timed["step"].median,
        pack_ms=timed["pack"].median,
        unpack_and_add_ms=timed["unpack"].median,
        codes=tuple(_compare(payload.positions.numpy(), numel, repeats)),
    )


def _unpack(message: torch.Tensor, layout: Layout) -> Payload:
    return unpack_payload(Reader(message), layout, Key(), torch.float32)


def _compare(positions: Any, numel: int, repeats: int) -> Iterator[CodeResult]:
    """Every code over the same positions, each made sure to give them back, all timed in turns."""
    every = codes(positions, numel)
    present = [code for code in every if isinstance(code, Code)]
    packed = {code.name: code.encode() for code in present}
    for code in present:
        assert np.array_equal(code.decode(packed[code.name]), positions), f"{code.name} lost positions"
    encode = side_by_side({code.name: code.encode for code in present}, lambda: None, repeats)
    decoders = {code.name: partial(code.decode, packed[code.name]) for code in present}
    decode = side_by_side(decoders, lambda: None, repeats)
    for one in every:
        if isinstance(one, Absent):
            yield CodeResult(one.name, missing=one.package)
        else:
            bits = 8 * nbytes(packed[one.name]) / positions.size
            yield CodeResult(one.name, bits, encode[one.name], decode[one.name])
    # a 12-bit place in each chunk of 4,096, and a count for each chunk
    yield CodeResult("12 bits in chunks", 12 + 12 * numel / 4096 / positions.size)


def better_than_ours(row: WireRow) -> list[str]:
    """The codes that take fewer bits than ours for the positions alone, with how much of ours they take."""
    ours = next(code.bits for code in row.codes if code.name == OURS)
    assert ours is not None
    return [f"{c.name} ({c.bits / ours:.1%} of ours)" for c in row.codes if c.bits is not None and c.bits < ours]


def _log2_binomial(n: int, k: int) -> float:
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)

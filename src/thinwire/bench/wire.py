"""The wire format: bits for each number kept against the entropy and other codes, and the time to pack and unpack."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from rich.table import Table

from thinwire import Key, Layout, TopK
from thinwire.bench.contests import draw
from thinwire.bench.grid import Measured, grid
from thinwire.bench.timing import Timing, side_by_side
from thinwire.compressors.density import kept
from thinwire.extras import require
from thinwire.payload import Payload, Reader, add_all_to, pack_payload, unpack_payload
from thinwire.payload.message import join
from thinwire.payload.positions import pack_positions, unpack_positions
from thinwire.training.formatting import NOTHING

OURS = "thinwire"
MESSAGES = 4
"""How many workers' messages are unpacked and added."""
VALUE_BITS = 32


# ---------------------------------------------------------------------------------------- codes for ascending positions


@dataclass(frozen=True)
class PositionCode:
    """A way to write positions: `encode` makes the bytes, `decode` the ascending int64 positions again."""

    name: str
    encode: Callable[[], Any]
    decode: Callable[[Any], Any]


@dataclass(frozen=True)
class Absent:
    """A code whose package is not installed."""

    name: str
    package: str


def codes(positions: Any, numel: int) -> list[PositionCode | Absent]:
    """Every code over one set of ascending int64 positions below `numel`."""
    tensor = torch.from_numpy(positions)
    plain = [
        PositionCode(
            OURS,
            lambda: join(pack_positions(tensor, numel), tensor.device),
            lambda packed: unpack_positions(Reader(packed), numel, positions.size).numpy(),
        ),
        PositionCode("int32", lambda: positions.astype(np.int32), lambda packed: packed.astype(np.int64)),
        PositionCode("int64", positions.copy, lambda packed: packed.copy()),
        PositionCode(
            "zlib 1, bytes of gaps",
            lambda: zlib.compress(_planes(positions), 1),
            lambda packed: _from_planes(zlib.decompress(packed)),
        ),
    ]
    return [*plain, *_zstandard(positions), *_roaring(positions, numel)]


def _gaps(positions: Any) -> Any:
    """How many numbers are passed over before each position."""
    return (np.diff(positions, prepend=-1) - 1).astype(np.uint32)


def _positions(gaps: Any) -> Any:
    return np.cumsum(gaps.astype(np.int64) + 1) - 1


def _planes(positions: Any) -> bytes:
    """All lowest bytes of the gaps, then all second bytes, …: equal things stand together, for a general compressor."""
    return bytes(_gaps(positions).view(np.uint8).reshape(-1, 4).T.tobytes())


def _from_planes(planes: bytes) -> Any:
    columns = np.frombuffer(planes, np.uint8).reshape(4, -1)
    return _positions(np.ascontiguousarray(columns.T).view(np.uint32).ravel())


def _zstandard(positions: Any) -> list[PositionCode | Absent]:
    names = ["zstd 3, int32 gaps", *(f"zstd {level}, bytes of gaps" for level in (1, 3, 9))]
    if find_spec("zstandard") is None:
        return [Absent(name, "zstandard") for name in names]
    zstandard = require("zstandard", "bench", "the comparison with zstd")
    undo = zstandard.ZstdDecompressor().decompress
    whole = PositionCode(
        names[0],
        lambda: zstandard.ZstdCompressor(level=3).compress(_gaps(positions).tobytes()),
        lambda packed: _positions(np.frombuffer(undo(packed), np.uint32)),
    )
    planes = [
        PositionCode(
            name,
            partial(_compressed_planes, zstandard.ZstdCompressor(level=level), positions),
            lambda packed: _from_planes(undo(packed)),
        )
        for name, level in zip(names[1:], (1, 3, 9), strict=True)
    ]
    return [whole, *planes]


def _compressed_planes(compressor: Any, positions: Any) -> bytes:
    return bytes(compressor.compress(_planes(positions)))


def _roaring(positions: Any, numel: int) -> list[PositionCode | Absent]:
    name = "roaring bitmap"
    if find_spec("pyroaring") is None:
        return [Absent(name, "pyroaring")]
    pyroaring = require("pyroaring", "bench", "the comparison with roaring bitmaps")
    wide = numel > 1 << 32
    kind, integer = (pyroaring.BitMap64, np.uint64) if wide else (pyroaring.BitMap, np.uint32)

    def encode() -> bytes:
        bitmap = kind(positions.astype(integer))
        bitmap.run_optimize()
        return bytes(bitmap.serialize())

    return [PositionCode(name, encode, lambda packed: np.asarray(kind.deserialize(packed).to_array(), np.int64))]


def nbytes(packed: Any) -> int:
    """The length of what a code made."""
    return len(packed) if isinstance(packed, bytes) else int(packed.nbytes)


# ----------------------------------------------------------------------------------------------------- what is measured


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
class WireRow(Measured):
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

    def plain(self) -> dict[str, Any]:
        return super().plain() | {
            "over_entropy": self.ours / self.entropy,
            "pack_over_step": self.pack_ms / self.memory_step_ms,
            "unpack_and_add_over_step": self.unpack_and_add_ms / self.memory_step_ms,
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
    present = [code for code in every if isinstance(code, PositionCode)]
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


# ----------------------------------------------------------------------------------------------------------- the tables


def size_table(rows: Sequence[WireRow]) -> Table:
    """Bits a position: the entropy, then every code, one column a density."""
    entropy = ["entropy, log2 C(n, k) / k", *(f"{row.entropy:.2f}" for row in rows)]
    codes = _code_cells(rows, lambda code: NOTHING if code.bits is None else f"{code.bits:.2f}")
    return grid(_head("bits a position", rows), [entropy, *codes])


def time_table(rows: Sequence[WireRow]) -> Table:
    """Milliseconds to encode and to decode the positions, one column a density."""
    cells = _code_cells(rows, lambda code: f"{_milliseconds(code.encode)} / {_milliseconds(code.decode)}")
    return grid(_head("ms to encode / decode", rows), cells)


def message_table(rows: Sequence[WireRow]) -> Table:
    """A whole message with its values, one row a density."""
    bits = ("bits a number", "entropy + value", "x that", "int32 + value", "int64 + value")
    times = ("top-k step", "pack", f"unpack and add {MESSAGES}", "x step")
    return grid(("kept", *bits, *times), map(_message_cells, rows))


def _message_cells(row: WireRow) -> list[str]:
    ours, least = row.ours + row.value_bits, row.entropy + row.value_bits
    bits = [f"{ours:.2f}", f"{least:.2f}", f"{ours / least:.3f}", *(f"{w + row.value_bits}" for w in (32, 64))]
    times = [f"{t:.1f} ms" for t in (row.memory_step_ms, row.pack_ms, row.unpack_and_add_ms)]
    return [f"{row.density:g}", *bits, *times, f"{row.unpack_and_add_ms / row.memory_step_ms:.2f}"]


def _head(first: str, rows: Sequence[WireRow]) -> list[str]:
    return [first, *(f"{row.density:g} kept" for row in rows)]


def _code_cells(rows: Sequence[WireRow], cell: Callable[[CodeResult], str]) -> Iterator[list[str]]:
    for same in zip(*(row.codes for row in rows), strict=True):
        yield [same[0].name, *(f"needs {code.missing}" if code.missing else cell(code) for code in same)]


def _milliseconds(timing: Timing | None) -> str:
    if timing is None:
        return NOTHING
    return f"{timing.median:.1f}" if timing.median >= 1 else f"{timing.median:.2f}"

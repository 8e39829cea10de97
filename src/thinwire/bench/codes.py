"""Codes for ascending positions: ours, plain integers, and what well-kept libraries offer."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from thinwire.extras import require
from thinwire.payload.message import Reader, join
from thinwire.payload.positions import pack_positions, unpack_positions

OURS = "thinwire"


@dataclass(frozen=True)
class Code:
    """A way to write positions: `encode` makes the bytes, `decode` the ascending int64 positions again."""

    name: str
    encode: Callable[[], Any]
    decode: Callable[[Any], Any]


@dataclass(frozen=True)
class Absent:
    """A code whose package is not installed."""

    name: str
    package: str


def codes(positions: Any, numel: int) -> list[Code | Absent]:
    """Every code over one set of ascending int64 positions below `numel`."""
    tensor = torch.from_numpy(positions)
    plain = [
        Code(OURS, partial(_ours, tensor, numel), lambda packed: _our_positions(packed, numel, positions.size)),
        Code("int32", lambda: positions.astype(np.int32), lambda packed: packed.astype(np.int64)),
        Code("int64", positions.copy, lambda packed: packed.copy()),
        Code("zlib 1, bytes of gaps", lambda: zlib.compress(_planes(positions), 1), _from_zlib),
    ]
    return [*plain, *_zstandard(positions), *_roaring(positions, numel)]


def _ours(positions: torch.Tensor, numel: int) -> torch.Tensor:
    return join(pack_positions(positions, numel), positions.device)


def _our_positions(packed: torch.Tensor, numel: int, count: int) -> Any:
    return unpack_positions(Reader(packed), numel, count).numpy()


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


def _from_zlib(packed: bytes) -> Any:
    return _from_planes(zlib.decompress(packed))


def _zstandard(positions: Any) -> list[Code | Absent]:
    names = ["zstd 3, int32 gaps", *(f"zstd {level}, bytes of gaps" for level in (1, 3, 9))]
    if find_spec("zstandard") is None:
        return [Absent(name, "zstandard") for name in names]
    zstandard = require("zstandard", "bench", "the comparison with zstd")
    undo = zstandard.ZstdDecompressor().decompress
    whole = Code(
        names[0],
        lambda: zstandard.ZstdCompressor(level=3).compress(_gaps(positions).tobytes()),
        lambda packed: _positions(np.frombuffer(undo(packed), np.uint32)),
    )
    planes = [
        Code(
            name,
            partial(_compressed_planes, zstandard.ZstdCompressor(level=level), positions),
            lambda packed: _from_planes(undo(packed)),
        )
        for name, level in zip(names[1:], (1, 3, 9), strict=True)
    ]
    return [whole, *planes]


def _compressed_planes(compressor: Any, positions: Any) -> bytes:
    return bytes(compressor.compress(_planes(positions)))


def _roaring(positions: Any, numel: int) -> list[Code | Absent]:
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

    return [Code(name, encode, lambda packed: np.asarray(kind.deserialize(packed).to_array(), np.int64))]


def nbytes(packed: Any) -> int:
    """The length of what a code made."""
    return len(packed) if isinstance(packed, bytes) else int(packed.nbytes)

"""A message in chunks: what every rank writes alike as `bytes`, the rest as tensors of bytes.

On a CPU numpy copies them, on one thread: torch would leave its own threads spinning for 4 to 9 ms after a megabyte
(libgomp's default), on the cores where packing, unpacking and the next bucket's selection are at work.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

Chunk = bytes | Tensor
"""Fixed fields (tags, counts, lengths) or packed numbers. Where a payload's size is fixed, its fields are the same on
every rank: a receiver on a GPU then knows them without waiting for the message."""


def fields(layout: str, *values: Any) -> bytes:
    """Fixed fields, in `struct` notation, little-endian."""
    return struct.pack("<" + layout, *values)


def raw(values: Tensor) -> Tensor:
    """A tensor's own bytes."""
    return values.contiguous().view(torch.uint8)


def size(chunks: Sequence[Chunk]) -> int:
    """The length of a message in bytes: every chunk begins at a whole word of four."""
    lengths = (len(chunk) if isinstance(chunk, bytes) else chunk.numel() for chunk in chunks)
    return sum(length + -length % 4 for length in lengths)


def join(chunks: Sequence[Chunk], device: torch.device) -> Tensor:
    """The chunks as one message on a device, each filled up with zeros to whole words of four bytes."""
    parts = [part for chunk in chunks for part in _filled_up(chunk, device) if part.numel()]
    if device.type == "cpu":
        return torch.from_numpy(np.concatenate([np.empty(0, np.uint8), *(part.numpy() for part in parts)]))
    if all(part.numel() % 4 == 0 == part.storage_offset() % 4 for part in parts):
        words = [part.view(torch.int32) for part in parts]  # a GPU copies words four times as fast as bytes
        return torch.cat([torch.empty(0, dtype=torch.int32, device=device), *words]).view(torch.uint8)
    return torch.cat(parts)


def copy(part: Tensor) -> Tensor:
    """Bytes of a message as a tensor of their own."""
    if part.device.type != "cpu":
        return part.clone()
    own = torch.empty_like(part, memory_format=torch.contiguous_format)
    own.numpy()[...] = part.numpy()
    return own


def _filled_up(chunk: Chunk, device: torch.device) -> list[Tensor]:
    if isinstance(chunk, Tensor):
        return [chunk.to(device), _zeros(device)[: -chunk.numel() % 4]] if chunk.numel() % 4 else [chunk.to(device)]
    return [_on_device(chunk, device)] if chunk else []


@lru_cache(maxsize=1024)
def _on_device(chunk: bytes, device: torch.device) -> Tensor:
    """Fields as a tensor; kept, because most of them are the same at every step."""
    tensor = torch.frombuffer(bytearray(chunk + bytes(-len(chunk) % 4)), dtype=torch.uint8)
    # a copy from pinned memory does not make the host wait for the GPU
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


@lru_cache(maxsize=16)
def _zeros(device: torch.device) -> Tensor:
    return torch.zeros(4, dtype=torch.uint8, device=device)

"""A message in chunks: what every rank writes alike as `bytes`, the rest as tensors of bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

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
    """The length of a message in bytes."""
    return sum(len(chunk) if isinstance(chunk, bytes) else chunk.numel() for chunk in chunks)


def padding(chunks: Sequence[Chunk]) -> bytes:
    """Zeros that fill up the last word of four bytes: words at their natural places are read faster."""
    return bytes(-size(chunks) % 4)


def join(chunks: Sequence[Chunk], device: torch.device) -> Tensor:
    """The chunks as one message on a device."""
    tensors = [_on_device(chunk, device) if isinstance(chunk, bytes) else chunk.to(device) for chunk in chunks]
    return torch.cat(tensors) if tensors else torch.empty(0, dtype=torch.uint8, device=device)


def _on_device(chunk: bytes, device: torch.device) -> Tensor:
    if not chunk:
        return torch.empty(0, dtype=torch.uint8, device=device)
    tensor = torch.frombuffer(bytearray(chunk), dtype=torch.uint8)
    # a copy from pinned memory does not make the host wait for the GPU
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)

"""A cursor over a received message that never reads past its end."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from thinwire.errors import WireError


class Reader:
    """Takes fields off the front of a message; a short or over-long message is a `WireError`."""

    def __init__(self, message: Tensor) -> None:
        self.message = message
        self.place = 0

    def take(self, nbytes: int) -> Tensor:
        """The next `nbytes` bytes."""
        left = self.message.numel() - self.place
        if not 0 <= nbytes <= left:
            raise WireError(
                f"message ends too early: {nbytes} more bytes expected at byte {self.place}, {left} are left"
            )
        self.place += nbytes
        return self.message[self.place - nbytes : self.place]

    def fields(self, layout: str) -> tuple[Any, ...]:
        """The next fixed fields, in `struct` notation, little-endian."""
        return struct.unpack("<" + layout, bytes(self.take(struct.calcsize("<" + layout)).tolist()))

    def numbers(self, count: int, dtype: torch.dtype) -> Tensor:
        """The next `count` numbers of `dtype`."""
        return self.take(count * dtype.itemsize).clone().view(dtype)

    def finish(self) -> None:
        """Check that nothing is left over."""
        if self.place != self.message.numel():
            raise WireError(f"message is too long: {self.message.numel() - self.place} bytes after its end")


def raw(values: Tensor) -> Tensor:
    """A tensor's own bytes."""
    return values.contiguous().view(torch.uint8)


def head(layout: str, *values: Any, device: torch.device) -> Tensor:
    """Fixed fields as bytes, in `struct` notation, little-endian."""
    return torch.frombuffer(bytearray(struct.pack("<" + layout, *values)), dtype=torch.uint8).to(device)

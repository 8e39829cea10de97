"""A cursor over a received message that never reads past its end."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from thinwire.errors import WireError


class Reader:
    """Takes fields off the front of a message; whatever is wrong with it is a `WireError`."""

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

    def bits(self, count: int) -> Tensor:
        """The bytes of the next `count` bits; those left over in the last byte must be zero."""
        packed = self.take((count + 7) // 8)
        if count % 8:
            self.require((packed[-1:] >> count % 8 == 0).all(), "bits beyond the last number of a message are not zero")
        return packed

    def require(self, holds: bool | Tensor, problem: str, *details: object) -> None:
        """What must hold of the message's contents; `problem` is formatted with the details."""
        if not holds:
            raise WireError(problem.format(*details))

    def finish(self) -> None:
        """Check that nothing is left over."""
        if self.place != self.message.numel():
            raise WireError(f"message is too long: {self.message.numel() - self.place} bytes after its end")


class LateReader(Reader):
    """Reads a message on a GPU without waiting for it, by the fields of a message of one's own of the same shape.

    Whether the fields agree, and whatever else must hold, is noted on the GPU: `sound` is for one look at the end of
    the step. Until then nothing that was read may be trusted, only used within bounds.
    """

    def __init__(self, message: Tensor, own: Tensor, fields: Sequence[bytes]) -> None:
        super().__init__(message)
        if message.numel() != own.numel():
            raise WireError(f"message has {message.numel()} bytes where this rank's own has {own.numel()}")
        self._own, self._fields = own, iter(fields)
        self._checks: list[Tensor] = []
        self._spans: list[tuple[int, int]] = []

    def fields(self, layout: str) -> tuple[Any, ...]:
        mine = next(self._fields)
        self._spans.append((self.place, len(mine)))
        self.take(len(mine))
        return struct.unpack("<" + layout, mine)

    def require(self, holds: bool | Tensor, problem: str, *details: object) -> None:
        if isinstance(holds, Tensor):
            self._checks.append(holds)
        else:
            super().require(holds, problem, *details)

    def sound(self) -> Tensor:
        """Whether all that had to hold did hold, as one boolean on the GPU."""
        places = _places(tuple(self._spans), self.message.device)
        alike = (self.message[places] == self._own[places]).all()
        return torch.stack([alike, *self._checks]).all()


@lru_cache(maxsize=256)
def _places(spans: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    """The byte numbers of all spans; kept, because bringing them to a GPU makes the host wait."""
    return torch.tensor([start + i for start, length in spans for i in range(length)], dtype=torch.int64, device=device)

"""A cursor over a received message that never reads past its end."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from thinwire.errors import WireError

T = TypeVar("T")


class Reader:
    """Takes fields off the front of a message; whatever is wrong with it is a `WireError`."""

    def __init__(self, message: Tensor) -> None:
        self.message = message
        self.place = 0

    @property
    def messages(self) -> Tensor:
        """All that is read: one message, or one row for each rank."""
        return self.message

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

    def require(self, holds: bool | Tensor, problem: str, *details: object) -> None:
        """What must hold of the message's contents; `problem` is formatted with the details."""
        if not holds:
            raise WireError(problem.format(*details))

    def finish(self) -> None:
        """Check that nothing is left over but the zeros that fill up the last word of four bytes."""
        left = self.message.numel() - self.place
        if left > 3:
            raise WireError(f"message is too long: {left} bytes after its end")
        self.require((self.take(left) == 0).all(), "message ends in bytes that are not zero")


class LateReader(Reader):
    """Reads the messages of all ranks at once, on a GPU, without waiting for them, by a message of one's own.

    What is taken has one row for each rank. Fields are those of one's own message; whether the others agree, and
    whatever else must hold, is noted on the GPU: `sound` is for one look at the end of the step. Until then nothing
    that was read may be trusted, only used within bounds.
    """

    def __init__(self, messages: Tensor, own: Tensor, fields: Sequence[bytes]) -> None:
        if messages.shape[1:] != own.shape:
            raise WireError(f"messages have {messages.shape[1]} bytes where this rank's own has {own.numel()}")
        super().__init__(own)
        self._messages, self._fields = messages, fields
        self._next = 0
        self._spans: list[tuple[int, int]] = []
        self._checks: list[Tensor] = []

    @property
    def messages(self) -> Tensor:
        return self._messages

    def take(self, nbytes: int) -> Tensor:
        super().take(nbytes)
        return self._messages[:, self.place - nbytes : self.place]

    def fields(self, layout: str) -> tuple[Any, ...]:
        mine = self._fields[self._next]
        self._next += 1
        self._spans.append((self.place, len(mine)))
        self.take(len(mine))
        return struct.unpack("<" + layout, mine)

    def numbers(self, count: int, dtype: torch.dtype) -> Tensor:
        return self.take(count * dtype.itemsize).clone(memory_format=torch.contiguous_format).view(dtype)

    def require(self, holds: bool | Tensor, problem: str, *details: object) -> None:
        if isinstance(holds, Tensor):
            self._checks.append(holds.expand(len(self._messages)))
        else:
            super().require(holds, problem, *details)

    def each(self, read: Callable[[Reader], T]) -> list[T]:
        """What `read` takes off each rank's message, one after the other."""
        rows = [_Row(message, self.place, self._fields, self._next) for message in self._messages]
        found = [read(row) for row in rows]
        self.place, self._next = rows[0].place, rows[0].next
        self._spans += rows[0].spans
        self._checks += [torch.stack(checks) for checks in zip(*(row.checks for row in rows), strict=True)]
        return found

    def sound(self) -> Tensor:
        """For each rank whether all that had to hold did hold."""
        places = _places(tuple(self._spans), self.message.device)
        alike = (self._messages[:, places] == self.message[places]).all(1)
        return torch.stack([alike, *self._checks]).all(0)


class _Row(Reader):
    """One rank's message among those that a `LateReader` reads."""

    def __init__(self, message: Tensor, place: int, fields: Sequence[bytes], following: int) -> None:
        super().__init__(message)
        self.place, self.next, self._fields = place, following, fields
        self.spans: list[tuple[int, int]] = []
        self.checks: list[Tensor] = []

    def fields(self, layout: str) -> tuple[Any, ...]:
        mine = self._fields[self.next]
        self.next += 1
        self.spans.append((self.place, len(mine)))
        self.take(len(mine))
        return struct.unpack("<" + layout, mine)

    def require(self, holds: bool | Tensor, problem: str, *details: object) -> None:
        if isinstance(holds, Tensor):
            self.checks.append(holds.reshape(()))
        else:
            super().require(holds, problem, *details)


@lru_cache(maxsize=256)
def _places(spans: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    """The byte numbers of all spans; kept, because bringing them to a GPU makes the host wait."""
    return torch.tensor([start + i for start, length in spans for i in range(length)], dtype=torch.int64, device=device)

"""The bytes of a message: written in chunks, read by a cursor that never goes past their end.

A chunk is `bytes` where every rank writes the same, else a tensor of bytes. On a CPU Python copies them, on one thread:
torch would leave its own threads spinning for 4 to 9 ms after a megabyte (libgomp's default), on the cores where
packing, unpacking and the next bucket's selection are at work.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from thinwire.errors import WireError

T = TypeVar("T")
Chunk = bytes | Tensor
"""Fixed fields (tags, counts, lengths) or packed numbers. Where a payload's size is fixed, its fields are the same on
every rank: a receiver on a GPU then knows them without waiting for the message."""
Span = tuple[int, int, int]
"""Bytes that every rank writes alike: where they begin, how many they are, and which of their bits count."""
_NOT_ZERO = "bytes that fill up a word of a message are not zero"


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
    if device.type == "cpu":
        filled = [part for chunk in chunks for part in (_plain(chunk), bytes(-len(chunk) % 4))]
        return _as_tensor(bytearray().join(filled))
    parts = [part for chunk in chunks for part in _filled_up(chunk, device) if part.numel()]
    if all(part.numel() % 4 == 0 == part.storage_offset() % 4 for part in parts):
        words = [part.view(torch.int32) for part in parts]  # a GPU copies words four times as fast as bytes
        return torch.cat([torch.empty(0, dtype=torch.int32, device=device), *words]).view(torch.uint8)
    return torch.cat(parts)


def _plain(chunk: Chunk) -> Any:
    """A chunk as Python copies it, in a tenth of the time that torch takes for a short one."""
    return chunk if isinstance(chunk, bytes) else chunk.cpu().contiguous().numpy()


def _as_tensor(message: bytearray) -> Tensor:
    return torch.frombuffer(message, dtype=torch.uint8) if message else torch.empty(0, dtype=torch.uint8)


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


class Reader:
    """Takes fields off the front of a message; whatever is wrong with it is a `WireError`."""

    def __init__(self, message: Tensor) -> None:
        self.message = message
        self.place = 0

    @property
    def messages(self) -> Tensor:
        """All that is read: one message, or one row for each rank."""
        return self.message

    @cached_property
    def _host(self) -> memoryview:
        """The message where Python reads a field in 0.3 µs; off a tensor it takes ten times as long."""
        array: Any = self.message.cpu().numpy()
        return memoryview(array)

    def take(self, nbytes: int) -> Tensor:
        """The next `nbytes` bytes; zeros fill up the last word of four."""
        part = self._words(nbytes)
        if nbytes % 4:
            self.require(self._are_zero(part, nbytes), _NOT_ZERO)
        return part[..., :nbytes]

    def _are_zero(self, part: Tensor, start: int) -> bool | Tensor:
        """Whether the bytes from `start` on, of what was taken last, are zero; on a GPU nobody waits to know."""
        if part.is_cuda:
            return (part[..., start:] == 0).all(-1)
        return not any(self._host[self.place - part.shape[-1] + start : self.place])

    def _words(self, nbytes: int) -> Tensor:
        """As many whole words of four bytes as hold `nbytes`."""
        return self.messages[..., self._skip(nbytes) : self.place]

    def _skip(self, nbytes: int) -> int:
        """Go on by as many whole words of four bytes as hold `nbytes`; where they begin."""
        left = self.message.numel() - self.place
        if not 0 <= nbytes <= left - -nbytes % 4:
            raise WireError(
                f"message ends too early: {nbytes} more bytes expected at byte {self.place}, {left} are left"
            )
        start, self.place = self.place, self.place + nbytes + -nbytes % 4
        return start

    def fields(self, layout: str) -> tuple[Any, ...]:
        """The next fixed fields, in `struct` notation, little-endian."""
        size = struct.calcsize("<" + layout)
        start = self._skip(size)
        if size % 4:
            self.require(not any(self._host[start + size : self.place]), _NOT_ZERO)
        return struct.unpack_from("<" + layout, self._host, start)

    def numbers(self, count: int, dtype: torch.dtype) -> Tensor:
        """The next `count` numbers of `dtype`."""
        return copy(self.take(count * dtype.itemsize)).view(dtype)

    def bits(self, count: int) -> Tensor:
        """The words that hold the next `count` bits; those left over must be zero."""
        size = (count + 7) // 8
        packed = self._words(size)
        if count % 8:
            last = packed[..., size - 1] if packed.is_cuda else self._host[self.place - packed.shape[-1] + size - 1]
            self.require(last >> count % 8 == 0, "bits beyond the last number of a message are not zero")
        if size % 4:
            self.require(self._are_zero(packed, size), _NOT_ZERO)
        return packed

    def require(self, holds: bool | Tensor, problem: str, *details: object) -> None:
        """What must hold of the message's contents; `problem` is formatted with the details."""
        if not holds:
            raise WireError(problem.format(*details))

    def finish(self) -> None:
        """Check that nothing is left over."""
        if self.place != self.message.numel():
            raise WireError(f"message is too long: {self.message.numel() - self.place} bytes after its end")


class _ByOwnFields(Reader):
    """Takes the fields of one's own message for another's, and notes what must hold in place of waiting for it."""

    def __init__(self, message: Tensor, fields: Sequence[bytes], following: int) -> None:
        super().__init__(message)
        self._fields, self.next = fields, following
        self.spans: list[Span] = []
        self.checks: list[Tensor] = []

    def fields(self, layout: str) -> tuple[Any, ...]:
        mine = self._fields[self.next]
        self.next += 1
        self.spans.append((self._skip(len(mine)), len(mine) + -len(mine) % 4, 255))
        return struct.unpack("<" + layout, mine)


class LateReader(_ByOwnFields):
    """Reads the messages of all ranks at once, by a message of one's own: on a GPU without waiting for them.

    What is taken has one row for each rank. Fields are those of one's own message; whether the others agree, and
    whatever else must hold, is noted: `sound` is for one look, on a GPU at the end of the step. Until then nothing
    that was read may be trusted, only used within bounds.
    """

    def __init__(
        self, messages: Tensor, own: Tensor, fields: Sequence[bytes], place: int = 0, following: int = 0
    ) -> None:
        if messages.shape[1:] != own.shape:
            raise WireError(f"messages have {messages.shape[1]} bytes where this rank's own has {own.numel()}")
        super().__init__(own, fields, following)
        self._messages, self.place = messages, place

    @property
    def messages(self) -> Tensor:
        return self._messages

    def take(self, nbytes: int) -> Tensor:
        part = self._words(nbytes)
        self.spans.append((self.place - -nbytes % 4, -nbytes % 4, 255))
        return part[:, :nbytes] if nbytes % 4 else part

    def bits(self, count: int) -> Tensor:
        part = self._words((count + 7) // 8)
        over, filling = int(count % 8 > 0), -((count + 7) // 8) % 4
        self.spans.append((self.place - part.shape[1] + count // 8, over, 255 << count % 8 & 255))
        self.spans.append((self.place - filling, filling, 255))
        return part

    def numbers(self, count: int, dtype: torch.dtype) -> Tensor:
        part = self.take(count * dtype.itemsize)
        if not count:  # torch does not view nothing as another type
            return part.to(dtype)
        starts = (part.storage_offset(), part.data_ptr(), part.stride(0))
        in_place = not any(start % dtype.itemsize for start in starts)
        return (part if in_place else part.clone(memory_format=torch.contiguous_format)).view(dtype)

    def require(self, holds: bool | Tensor, problem: str, *details: object) -> None:
        if isinstance(holds, Tensor):
            self.checks.append(holds.expand(len(self._messages)))
        else:  # of one's own fields
            super().require(holds, problem, *details)

    def each(self, read: Callable[[Reader], T]) -> list[T]:
        """What `read` takes off each rank's message, one after the other."""
        rows = [_Row(message, self.place, self._fields, self.next) for message in self._messages]
        found = [read(row) for row in rows]
        self.place, self.next = rows[0].place, rows[0].next
        self.spans += rows[0].spans
        self.checks += [torch.stack(checks) for checks in zip(*(row.checks for row in rows), strict=True)]
        return found

    def sound(self) -> Tensor:
        """For each rank whether all that had to hold did hold.

        Fields, and the zeros that fill up words, are compared with those of one's own message.
        """
        places, masks = _bytes_of(tuple(self.spans), self.message.device)
        if not self.message.is_cuda:  # by numpy: 6 microseconds in place of 30
            rows, own, where = self._messages.numpy(), self.message.numpy(), places.numpy()
            right = ~((rows[:, where] ^ own[where]) & masks.numpy()).any(1)
            return functools.reduce(torch.Tensor.logical_and, self.checks, torch.from_numpy(right))
        alike = (self._messages.index_select(1, places) ^ self.message.index_select(0, places)) & masks == 0
        return torch.cat([alike, *(check.unsqueeze(1) for check in self.checks)], 1).all(1)


class _Row(_ByOwnFields):
    """One rank's message among those that a `LateReader` reads."""

    def __init__(self, message: Tensor, place: int, fields: Sequence[bytes], following: int) -> None:
        super().__init__(message, fields, following)
        self.place = place

    def require(self, holds: bool | Tensor, problem: str, *details: object) -> None:
        if isinstance(holds, Tensor) or not self.message.is_cuda:
            self.checks.append(torch.as_tensor(holds).reshape(()))
        else:  # of one's own fields
            super().require(holds, problem, *details)


@lru_cache(maxsize=256)
def _bytes_of(spans: tuple[Span, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The places of all bytes in spans, and which of their bits count.

    Kept: copying to a GPU makes the host wait.
    """
    every = [(start + i, mask) for start, number, mask in spans for i in range(number)]
    places, masks = zip(*every, strict=True) if every else ((), ())
    return (
        torch.tensor(places, dtype=torch.int64, device=device),
        torch.tensor(masks, dtype=torch.uint8, device=device),
    )

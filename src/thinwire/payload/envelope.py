"""What stands before every message: version, checksum, digest, and a flag for gradients that are not finite.

byte 0   version and three zero bytes
     4   CRC-32 of all that follows (zlib's), plus the sender's rank modulo 2^32
     8   digest of method, parameters, seed, step and whatever else ranks must have in common
    12   the flag: place of the first piece that is not finite, or -1
    16   the body; every field and every row of numbers begins at a whole word of four bytes
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.ops import checksum
from thinwire.payload.message import Chunk, Reader, fields, join, raw, size

VERSION = 3
BODY = 16
"""Where the body begins."""
FINITE = -1
"""The flag of a message whose gradient was finite."""
DAMAGED = (
    "message was damaged on its way, or is another rank's: its checksum is wrong. No rank takes the step; if it comes "
    "again, look at the network and the memory of both ranks"
)
CHECKED = 8
"""Where the bytes begin that the checksum covers."""


def seal(body: Sequence[Chunk], digest: int, flag: Tensor, rank: int) -> Tensor:
    """The body behind its envelope, on the flag's device."""
    start: list[Chunk] = [fields("I", VERSION), fields("I", 0), fields("I", digest), raw(flag.to(torch.int32).view(1))]
    return sign_(join([*start, *body], flag.device), rank)


def sign_(message: Tensor, rank: int) -> Tensor:
    """Write the checksum of a message that this rank sends."""
    found = checksum(message[CHECKED:])
    message[4:CHECKED] = (found.view(torch.int32) + rank).view(torch.uint8) if rank else found
    return message


def sealed_size(body: Sequence[Chunk]) -> int:
    """The length of a sealed message in bytes."""
    return BODY + size(body)


def fields_of(body: Sequence[Chunk], digest: int) -> tuple[bytes, ...]:
    """The fields of a sealed message that every rank writes alike, in the order they are read."""
    return (fields("I", VERSION), fields("I", digest), *(chunk for chunk in body if isinstance(chunk, bytes)))


def open_version(reader: Reader) -> int:
    """The version a message is written in; all else waits until it is known to be ours."""
    return int(reader.fields("I")[0])


def open_rest(reader: Reader, ranks: int | Tensor) -> tuple[int, Tensor]:
    """Digest and flag of a message (or of all ranks' messages) whose checksum is right, and is of this rank."""
    stored = reader.numbers(1, torch.int32)
    intact = stored == checksum(reader.messages[..., CHECKED:]).view(torch.int32) + ranks
    reader.require(intact.squeeze(-1), DAMAGED)
    return int(reader.fields("I")[0]), reader.numbers(1, torch.int32).squeeze(-1)

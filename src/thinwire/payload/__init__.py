"""Message formats: each decodes itself, and packs to exactly the bytes that travel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import Key, add_each_at_
from thinwire.payload.base import FORMATS as FORMATS
from thinwire.payload.base import Payload as Payload
from thinwire.payload.base import payload_format
from thinwire.payload.dense import Dense as Dense
from thinwire.payload.dense import Empty as Empty
from thinwire.payload.message import Chunk, fields, join
from thinwire.payload.message import LateReader as LateReader
from thinwire.payload.message import Reader as Reader
from thinwire.payload.nested import Flagged as Flagged
from thinwire.payload.nested import Partial as Partial
from thinwire.payload.nested import Sum as Sum
from thinwire.payload.quantised import Levels as Levels
from thinwire.payload.quantised import Powers as Powers
from thinwire.payload.quantised import Signs as Signs
from thinwire.payload.sparse import Masked as Masked
from thinwire.payload.sparse import Positioned as Positioned
from thinwire.payload.sparse import Sparse as Sparse
from thinwire.payload.sparse import SparseWords as SparseWords
from thinwire.payload.stack import Stack as Stack


def chunks_of(payload: Payload) -> list[Chunk]:
    """A payload behind its format's tag, chunk by chunk."""
    return [fields("B", payload.tag), *payload.pack()]


def pack_payload(payload: Payload) -> Tensor:
    """A payload behind its format's tag, as one message."""
    chunks = chunks_of(payload)
    return join(chunks, next((chunk.device for chunk in chunks if isinstance(chunk, Tensor)), torch.device("cpu")))


def unpack_payload(reader: Reader, layout: Layout, key: Key, dtype: torch.dtype) -> Payload:
    """The payload that `pack_payload` wrote for this layout and key."""
    return payload_format(*reader.fields("B")).unpack(reader, layout, key, dtype)


def unpack_payloads(reader: LateReader, layout: Layout, key: Key, dtype: torch.dtype) -> Sequence[Payload]:
    """Every rank's payload, where all have the same fields."""
    return payload_format(*reader.fields("B")).unpack_all(reader, layout, key, dtype)


def add_all_to(out: Tensor, payloads: Sequence[Payload], alpha: float = 1.0) -> Tensor:
    """out += alpha * each decoded payload, in their order, in place."""
    if isinstance(payloads, Stack):
        return payloads.add_to(out, alpha)
    payloads = [payload for payload in payloads if not isinstance(payload, Empty)]
    placed = [payload for payload in payloads if isinstance(payload, Positioned)]
    if placed and len(placed) == len(payloads):
        return add_each_at_(out, [p.positions for p in placed], [p.values.to(out.dtype) for p in placed], alpha)
    for payload in payloads:
        payload.add_to(out, alpha)
    return out


def add_each_to(out: Tensor, payloads: Sequence[Payload], alphas: Sequence[float]) -> Tensor:
    """out += alpha * decoded for each payload and its alpha, in their order, in place."""
    if isinstance(payloads, Stack):
        return payloads.add_each_to(out, alphas)
    for payload, alpha in zip(payloads, alphas, strict=True):
        payload.add_to(out, alpha)
    return out

"""Message formats: each decodes itself, and packs to exactly the bytes that travel.

    tags 0, 1        Empty, Dense                      dense.py
    tags 2, 3, 8     Sparse, Masked, SparseWords       sparse.py
    tag 12           WholeRows                         sparse.py
    tags 4, 5, 6     Signs, Levels, Powers             quantised.py
    tags 7, 9-11     Flagged, Sum, Partial, Beside     nested.py

`letter.py` says which bytes stand around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.ops import Key, add_each_at_
from thinwire.payload.base import FORMATS as FORMATS
from thinwire.payload.base import Payload as Payload
from thinwire.payload.base import Payloads as Payloads
from thinwire.payload.base import payload_format
from thinwire.payload.dense import Dense as Dense
from thinwire.payload.dense import Empty as Empty
from thinwire.payload.message import Chunk, fields, join
from thinwire.payload.message import LateReader as LateReader
from thinwire.payload.message import Reader as Reader
from thinwire.payload.nested import Beside as Beside
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
from thinwire.payload.sparse import WholeRows as WholeRows
from thinwire.payload.sparse import rows_of as rows_of


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


def add_all_to(out: Tensor, payloads: Sequence[Payload], alpha: float | Sequence[float] = 1.0) -> Tensor:
    """out += alpha * each decoded payload, in their order, in place; alpha is one number, or one for each."""
    if isinstance(payloads, Payloads):
        return payloads.add_to(out, alpha)
    placed = placed_in(payloads, out.dtype)
    if placed is not None and isinstance(alpha, int | float):
        return add_each_at_(out, *placed, alpha)
    return add_one_by_one(out, payloads, alpha)


def placed_in(payloads: Sequence[Payload], dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]] | None:
    """The positions and the values of payloads that are nothing else, but for empty ones; None where some are."""
    if isinstance(payloads, Payloads):
        return None
    placed = [payload for payload in payloads if isinstance(payload, Positioned)]
    silent = sum(isinstance(payload, Empty) for payload in payloads)
    if not placed or len(placed) + silent < len(payloads):
        return None
    return [payload.positions for payload in placed], [payload.values.to(dtype) for payload in placed]


def add_one_by_one(out: Tensor, payloads: Sequence[Payload], alpha: float | Sequence[float]) -> Tensor:
    """`add_all_to` without a pass over several payloads at once."""
    alphas = repeat(alpha, len(payloads)) if isinstance(alpha, int | float) else alpha
    for payload, own in zip(payloads, alphas, strict=True):
        payload.add_to(out, own)
    return out

"""Whole: what a worker says of a bucket where its rules leave nothing out, and only the mean of it is wanted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.layout import Layout
from thinwire.payload import Beside, Dense, Payload
from thinwire.step import Part


@dataclass(frozen=True)
class Whole:
    """Numbers that may be averaged over ranks as they are, and what makes payloads of the means."""

    numbers: Tensor
    """Of all parts, one behind the other."""
    beside: Tensor | None
    """Second moments that are exchanged beside them."""
    payloads: tuple[Payload, ...]
    layout: Layout
    parts: tuple[Part, ...]
    scale: float
    held: frozenset[str]
    """Parameters about which nothing could be said."""

    @staticmethod
    def of(
        payloads: Sequence[Payload],
        layout: Layout,
        parts: tuple[Part, ...],
        scale: float,
        held: frozenset[str],
        spoilt: str | None,
    ) -> Whole:
        """Of dense payloads, whose numbers are theirs alone; NaN in place of a parameter's whose gradient is spoilt."""
        numbers = _numbers(payloads)
        if spoilt is not None:
            _spoil_(numbers, parts, spoilt)
        beside = [payload.beside.to(numbers.dtype) for payload in payloads if isinstance(payload, Beside)]
        return Whole(numbers, torch.cat(beside) if beside else None, tuple(payloads), layout, parts, scale, held)

    def of_means(self, numbers: Tensor, beside: Tensor | None) -> list[Payload]:
        """The payloads that would say what all ranks say on average."""
        split = [Dense(part) for part in torch.split(numbers, [part.layout.numel for part in self.parts])]
        if beside is None:
            return list(split)
        told = iter(torch.split(beside, [p.beside.numel() for p in self.payloads if isinstance(p, Beside)]))
        return [
            Beside(next(told), inner) if isinstance(payload, Beside) else inner
            for payload, inner in zip(self.payloads, split, strict=True)
        ]


def _numbers(payloads: Sequence[Payload]) -> Tensor:
    """The numbers of dense payloads, one behind the other."""
    inner = [payload.inner if isinstance(payload, Beside) else payload for payload in payloads]
    vectors = [payload.values for payload in inner if isinstance(payload, Dense)]
    assert len(vectors) == len(payloads)
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors) if vectors else torch.empty(0)


def _spoil_(numbers: Tensor, parts: Sequence[Part], name: str) -> None:
    """NaN in place of one parameter's numbers; of all, where it takes no part."""
    start, found = 0, False
    for part in parts:
        for piece in part.layout.pieces:
            if piece.name == name:
                numbers[start + piece.offset : start + piece.offset + piece.numel], found = math.nan, True
        start += part.layout.numel
    if not found:
        numbers.fill_(math.nan)

"""One bucket of DDP's: its exchange under way, and its gradients in logical order, whatever their order in memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.futures import Future

from thinwire.channel import Outgoing
from thinwire.exchange import Incoming
from thinwire.layout import Layout, Piece


class Arrival:
    """One bucket's exchange under way, and the future that DDP waits for."""

    def __init__(self, sent: Outgoing, flat: Tensor, gradient: Tensor, order: MemoryOrder) -> None:
        self.sent, self.gradient = sent, gradient
        self._flat, self._order = flat, order
        self.incoming: Incoming | None = None
        """What the other ranks send; None where nothing could be gathered."""
        self.result: Future[Tensor] = Future(devices=[flat.device] if flat.is_cuda else None)

    def deliver(self, taken: bool, factor: float) -> None:
        """Give DDP the exchanged gradient, times a factor: NaN where the step is not taken."""
        if not taken:
            self._flat.fill_(float("nan"))
        else:
            self._order.write_(self._flat, self.gradient)
            if factor != 1.0:
                self._flat.mul_(factor)
        self.result.set_result(self._flat)


class MemoryOrder:
    """DDP's buckets hold each gradient in the order of its parameter's memory: `channels_last` and transposed
    parameters lie there in another order than `reshape(-1)` gives. All else here (states, second moments, random keys,
    saved files, other engines) counts in logical order, so these are copied there and back.
    """

    def __init__(self, layout: Layout, parameters: Mapping[str, Tensor]) -> None:
        self._layout = layout
        self._odd = [(piece, strides) for piece in layout.pieces if (strides := _strides(parameters[piece.name]))]

    def logical(self, flat: Tensor) -> Tensor:
        """The bucket in logical order: the very buffer where that is its own."""
        if not self._odd:
            return flat
        ordered = flat.clone()
        for piece, strides in self._odd:
            ordered[piece.part] = _view(flat, piece, strides).reshape(-1)
        return ordered

    def write_(self, flat: Tensor, ordered: Tensor) -> Tensor:
        """Write numbers in logical order into the bucket."""
        if ordered is not flat:
            flat.copy_(ordered)
            for piece, strides in self._odd:
                _view(flat, piece, strides).copy_(ordered[piece.part].view(piece.shape))
        return flat


def _strides(parameter: Tensor) -> tuple[int, ...] | None:
    """The strides of a parameter that DDP keeps in memory order, where that is not the logical one.

    DDP does so where a parameter's memory has neither gaps nor overlaps; else it takes the logical order.
    """
    dense = bool(torch.ops.aten.is_non_overlapping_and_dense(parameter))
    return None if parameter.is_contiguous() or not dense else tuple(parameter.stride())


def _view(flat: Tensor, piece: Piece, strides: tuple[int, ...]) -> Tensor:
    return torch.as_strided(flat, piece.shape, strides, flat.storage_offset() + piece.offset)

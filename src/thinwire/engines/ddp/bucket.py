"""What belongs to one bucket of DDP's: its order in memory, its second moments, and its exchange under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.futures import Future

from thinwire.channel import Channel
from thinwire.errors import AttachError, MomentError
from thinwire.exchange import Exchange, Incoming
from thinwire.feedback import Need
from thinwire.hub import Answer
from thinwire.layout import Layout, Piece
from thinwire.outgoing import Outgoing

if TYPE_CHECKING:
    from thinwire.moments import Moments

UNKNOWN = 1 << 62
"""The number of terms of a parameter that a rank did not use."""


class Delivery:
    """What DDP gets for one bucket, and the future that it waits for."""

    def __init__(self, flat: Tensor, gradient: Tensor, order: MemoryOrder) -> None:
        self.gradient = gradient
        """In logical order: what is exchanged, and then what came of it."""
        self._flat, self._order = flat, order
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


class Arrival:
    """The messages about one bucket, under way."""

    def __init__(self, sent: Outgoing, gradient: Tensor, place: int) -> None:
        self.sent, self.gradient, self.place = sent, gradient, place
        self.what = f"bucket {place}"
        self.incoming: Incoming | None = None
        """What the other ranks send; None where nothing could be gathered."""
        self.in_shares = False
        """Whether that is shares of what they have to say, to be added up here."""
        self.passed_on = False
        """Whether they were, and it is the totals of all shares that come."""
        self.flags: Sequence[int] | None = None
        """Every rank's flag, where messages were added up on their way."""
        self.answer: Answer | None = None
        """What this rank has told everyone as the owner of its shares."""


class MemoryOrder:
    """DDP's buckets hold each gradient in the order of its parameter's memory: `channels_last` and transposed
    parameters lie there in another order than `reshape(-1)` gives. All else here (states, second moments, random keys,
    saved files, other engines) counts in logical order, so these are copied there and back.
    """

    def __init__(self, layout: Layout, parameters: Mapping[str, Tensor]) -> None:
        self._layout = layout
        self._odd = [(piece, strides) for piece in layout.pieces if (strides := _strides(parameters[piece.name]))]

    @property
    def is_logical(self) -> bool:
        """Whether the bucket lies in logical order itself."""
        return not self._odd

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


class SecondMoments:
    """q for those parameters whose rule needs it."""

    def __init__(self, channel: Channel, moments: Moments, parameters: Mapping[str, Tensor]) -> None:
        self._channel, self._moments = channel, moments
        self._needed = {name for name, rule in channel.rules.items() if Need.MOMENTS in rule.needs}
        for name in sorted(self._needed):
            if not moments.watches(name, parameters[name]):
                raise AttachError(
                    f"{channel.rules[name]} needs the second moment of parameter {name!r}, which is not watched: call "
                    "thinwire.moments.watch on this very model once all its parameters are trained"
                )
        moments.leave_errors()

    def take(self, layout: Layout, scale: float, errors: list[MomentError]) -> Tensor | None:
        """q of a bucket in unscaled units, zero where no rule needs it; None where none does. Then it is cleared.

        Where it could not be computed it is NaN, which every rank will refuse, and the error is added to `errors`.
        """
        if not self._needed_of(layout):
            return None
        return torch.cat([self._pop(piece.name, scale, errors) for piece in layout.pieces])

    def terms(self, layout: Layout) -> dict[str, int]:
        """How many gradients were squared for each parameter that needs it and was never exchanged before."""
        return {name: self._terms(name) for name in self._fresh(layout)}

    def check_terms(self, layout: Layout, terms: Mapping[str, int], exchange: Exchange) -> None:
        """Refuse, on all ranks alike, a batch that is too small on any of them; asked once for each parameter."""
        fresh = self._fresh(layout)
        if fresh:
            rows = exchange.everyone([terms.get(name, UNKNOWN) for name in fresh], "the sizes of batches")
            for name, every in zip(fresh, zip(*rows, strict=True), strict=True):
                self._channel.rules[name].admit_terms(name, min(every))

    def clear(self) -> None:
        """Forget what no bucket asked for."""
        self._moments.clear()

    def _needed_of(self, layout: Layout) -> list[str]:
        return [piece.name for piece in layout.pieces if piece.name in self._needed]

    def _fresh(self, layout: Layout) -> list[str]:
        return [name for name in self._needed_of(layout) if name not in self._channel.started]

    def _terms(self, name: str) -> int:
        try:
            return self._moments.terms(name) or UNKNOWN
        except MomentError:  # `take` meets it again
            return UNKNOWN

    def _pop(self, name: str, scale: float, errors: list[MomentError]) -> Tensor:
        filler = 0.0
        if name in self._needed:
            try:
                return self._moments.pop(name, scale).reshape(-1)
            except MomentError as error:
                errors.append(MomentError(f"rank {self._channel.rank}: {error}"))
                filler = float("nan")
        info = self._channel.parameters[name]
        return torch.full((info.numel,), filler, dtype=info.state_dtype, device=info.device)

"""The second moments of a bucket's parameters, taken from a watched model as DDP hands over its buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.errors import AttachError, MomentError
from thinwire.exchange import Exchange
from thinwire.feedback import Need
from thinwire.layout import Layout

if TYPE_CHECKING:
    from thinwire.moments import Moments

UNKNOWN = 1 << 62
"""The number of terms of a parameter that a rank did not use."""


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

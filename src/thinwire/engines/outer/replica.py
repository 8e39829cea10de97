"""One worker of outer steps: its parameters, its end of the rule for each fragment, and what it has in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.engines.needs import check_agreement, check_need
from thinwire.engines.outer.point import Fragment, OuterPoint, Parameters, cut
from thinwire.engines.outer.schedule import Outer
from thinwire.errors import ConfigError
from thinwire.feedback import Need
from thinwire.outgoing import Given, Outgoing

BEYOND_OUTER_STEPS = {
    Need.MOMENTS: "an outer step sees how far parameters moved, not the gradients of samples",
    Need.PREVIOUS: "an outer step sees how far parameters moved, and nothing of an earlier point",
    Need.FULL: "an outer step sees how far parameters moved, not gradients of all samples",
    Need.BROADCAST: "here every worker takes the outer step for itself and no model is sent",
}
"""What a window of steps cannot give, and why."""


@dataclass(frozen=True)
class Flight:
    """A fragment's exchange that is under way."""

    left: Sequence[Tensor]
    """θ_i when it was sent."""
    sent: Sequence[Outgoing]


class Replica:
    """One worker.

    Its window of a fragment begins at the outer point as the parameters hold it. With a delay, or with alpha, it begins
    at `starts`: where the worker would stand now had it not moved since its last message.
    """

    def __init__(
        self, outer: Outer, parameters: Parameters, *, rank: int, size: int, seed: int, beside: Replica | None = None
    ) -> None:
        if outer.fragments > len(parameters):
            raise ConfigError(
                f"outer steps: {outer.fragments} fragments of {len(parameters)} parameters, none of which is divided: "
                f"use at most fragments={len(parameters)}"
            )
        self.outer, self.parameters, self.lr = outer, parameters, outer.lr
        parts = cut(parameters, outer.fragments)
        besides: list[Channel | None] = [None] * len(parts) if beside is None else [*beside.channels]
        self.channels: list[Channel] = [
            Channel(outer.rule, part, rank=rank, size=size, seed=seed + f, beside=besides[f])
            for f, part in enumerate(parts)
        ]
        for channel in self.channels:
            for need, reason in BEYOND_OUTER_STEPS.items():
                check_need(channel, need, False, f"{reason}. Use memsgd, ef21, ef21sgdm or plain")
            check_agreement(channel, False, "workers that take outer steps")
        fragments = [Fragment(channel) for channel in self.channels]
        self.points: list[OuterPoint] = (
            [OuterPoint(fragment, parameters, outer.momentum) for fragment in fragments]
            if beside is None
            else beside.points
        )
        self._starts = [fragment.flats(parameters) for fragment in fragments] if outer.keeps_starts else None
        self.flights: dict[int, Flight] = {}

    @property
    def rank(self) -> int:
        """Its number among the workers."""
        return self.channels[0].rank

    def left(self, f: int) -> Sequence[Tensor]:
        """θ_i when the fragment was sent, if it is in flight; else zeros, by which a state's shapes are known."""
        flight = self.flights.get(f)
        return [torch.zeros_like(flat) for flat in self.points[f].flats] if flight is None else flight.left

    def starts(self, f: int) -> list[Tensor]:
        """Where the worker's window of a fragment begins."""
        return self.points[f].rounded() if self._starts is None else self._starts[f]

    def moves(self, f: int, left: Sequence[Tensor]) -> list[Tensor]:
        """Δ_i: how far the worker has come from its start when it is at `left`."""
        return [start - here for start, here in zip(self.starts(f), left, strict=True)]

    def send(self, f: int, mark: int, *, measure: bool, left: Sequence[Tensor] | None = None) -> Flight:
        """The worker's letters about a fragment, as it stands or as it stood at `left`."""
        channel, fragment = self.channels[f], self.points[f].fragment
        left = fragment.flats(self.parameters) if left is None else left
        sizes = dict.fromkeys(channel.parameters, self.lr)
        sent = [
            channel.send(layout, Given(move, step_sizes=sizes, measure=measure, mark=mark))
            for layout, move in zip(fragment.layouts, self.moves(f, left), strict=True)
        ]
        self.flights[f] = Flight(left, sent)
        return self.flights[f]

    def land_(self, f: int) -> None:
        """θ_i <- alpha θ_i + (1 - alpha) θ, once the outer point has stepped; what was moved meanwhile stays unsent."""
        fragment, flight = self.points[f].fragment, self.flights.pop(f)
        here = fragment.flats(self.parameters)
        merged = self.points[f].flats
        if self.outer.alpha:
            merged = [torch.lerp(point, own, self.outer.alpha) for point, own in zip(merged, here, strict=True)]
        fragment.write_(merged, self.parameters)
        if self._starts is not None:
            pairs = zip(fragment.rounded(merged), flight.left, here, strict=True)
            self._starts[f] = [there + (left - own) for there, left, own in pairs]

    def settle_(self, f: int) -> None:
        """θ_i <- θ, whatever the worker has done: its window begins anew there."""
        fragment = self.points[f].fragment
        self.flights.pop(f, None)
        fragment.write_(self.points[f].flats, self.parameters)
        if self._starts is not None:
            self._starts[f] = fragment.flats(self.parameters)

    def owes(self, f: int, debts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All that a worker has moved and not said, as flat updates by parameter: lr Δ_i and its memory's debts."""
        fragment = self.points[f].fragment
        moves = fragment.views(self.moves(f, fragment.flats(self.parameters)))
        updates = {name: move.reshape(-1) * self.lr for name, move in moves.items()}
        return {name: update + debts[name] if name in debts else update for name, update in updates.items()}

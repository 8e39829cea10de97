"""Which rank owns which numbers of a model, where a server's work is shared out among the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from thinwire.layout import Layout, Piece

LEAST = 1024
"""Numbers of a parameter that are not cut any further: at a density of 1 % ten are sent of them."""
GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Owners:
    """n ranks that share out every parameter: contiguous shares, as equal as can be, each of `least` numbers or more.

    A parameter is cut alike whatever bucket it stands in. Where it has fewer shares than there are ranks, the first of
    its owners follows from its place in the model, evenly spread.

    >>> owners = Owners(2, least=2)
    >>> owners.share((5,), 0, 0), owners.share((5,), 0, 1), owners.share((3,), 1, 0)
    (slice(0, 2, None), slice(2, 5, None), None)
    """

    ranks: int
    least: int = LEAST

    def __str__(self) -> str:
        return f"a server, in shares of {self.least} numbers or more"

    def count(self, numel: int) -> int:
        """How many shares a parameter of so many numbers has."""
        return max(1, min(self.ranks, numel // self.least))

    def bounds(self, numel: int) -> list[int]:
        """Where its shares begin, and where the last one ends."""
        count = self.count(numel)
        return [numel * place // count for place in range(count + 1)]

    def lengths(self, numel: int) -> set[int]:
        """How long its shares are."""
        bounds = self.bounds(numel)
        return {stop - start for start, stop in pairwise(bounds)}

    def owner(self, index: int, place: int) -> int:
        """Who owns a share of the parameter with this place in the model."""
        return (int(index * GOLDEN % 1 * self.ranks) + place) % self.ranks

    def share(self, shape: Sequence[int], index: int, rank: int) -> slice | None:
        """A rank's own share of a parameter; None where it has none."""
        numel = torch.Size(shape).numel()
        place = (rank - self.owner(index, 0)) % self.ranks
        bounds = self.bounds(numel)
        return slice(bounds[place], bounds[place + 1]) if place < len(bounds) - 1 else None

    def cut(self, layout: Layout) -> Cut:
        """A layout cut into its shares; kept, for each step asks for it."""
        return _cut(self, layout)


@dataclass(frozen=True, eq=False)
class Cut:
    """A layout cut into shares; there is one of each."""

    whole: Layout
    """Every share as a piece of the same buffer, in its order; their indices are all different."""
    owners: tuple[int, ...]
    """Whose each of them is."""
    parts: tuple[Layout, ...]
    """Each rank's own shares side by side, in the same order."""
    sources: tuple[int, ...]
    """For each share the place of its piece in the layout that was cut."""

    def of_shares(self, numbers: Sequence[float] | None) -> tuple[float, ...] | None:
        """What is given for each piece of that layout, for each of the shares."""
        return None if numbers is None else tuple(numbers[source] for source in self.sources)

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """For each rank which of the shares are its own."""
        return tuple(
            tuple(place for place, owner in enumerate(self.owners) if owner == rank) for rank in range(len(self.parts))
        )

    def take(self, flat: Tensor) -> list[Tensor]:
        """Each rank's own numbers of a buffer."""
        views = torch.split(flat, [piece.numel for piece in self.whole.pieces])
        return [torch.cat([flat[:0], *(views[place] for place in own)]) for own in self.places]

    def put_(self, flat: Tensor, rank: int, part: Tensor) -> None:
        """Write a rank's own numbers into a buffer."""
        for place, own in zip(self.places[rank], self.parts[rank].pieces, strict=True):
            flat[self.whole.pieces[place].part] = part[own.part]

    def home(self, rank: int, positions: Tensor) -> Tensor:
        """Where ascending positions among a rank's own numbers lie in the buffer."""
        bounds, shifts = _own_tables(self, rank, positions.device)
        counts = torch.diff(torch.searchsorted(positions, bounds))
        return positions - torch.repeat_interleave(shifts, counts, output_size=positions.numel())

    def split(self, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each rank which of some ascending positions are its own, and where they lie among its own numbers."""
        starts, shifts = _tables(self, positions.device)
        edges = torch.searchsorted(positions, starts)
        counts = torch.diff(edges, append=edges.new_tensor([positions.numel()]))
        moved = positions + torch.repeat_interleave(shifts, counts, output_size=positions.numel())
        runs = torch.split(torch.arange(positions.numel(), device=positions.device), counts.tolist())
        chosen = [torch.cat([positions[:0], *(runs[place] for place in own)]) for own in self.places]
        return [(own, moved[own]) for own in chosen]


@lru_cache(maxsize=1024)
def _cut(owners: Owners, layout: Layout) -> Cut:
    pieces: list[Piece] = []
    whose: list[int] = []
    sources: list[int] = []
    for source, piece in enumerate(layout.pieces):
        bounds = owners.bounds(piece.numel)
        for place, (start, stop) in enumerate(pairwise(bounds)):
            index = piece.index * owners.ranks + place
            pieces.append(Piece(piece.name, index, piece.offset + start, (stop - start,)))
            whose.append(owners.owner(piece.index, place))
            sources.append(source)
    parts = tuple(
        Layout.of([(p.name, p.index, p.shape) for p, owner in zip(pieces, whose, strict=True) if owner == rank])
        for rank in range(owners.ranks)
    )
    return Cut(Layout(tuple(pieces)), tuple(whose), parts, tuple(sources))


@lru_cache(maxsize=1024)
def _tables(cut: Cut, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each share begins in the buffer, and how far it moves to its place among its owner's."""
    shifts = [0] * len(cut.owners)
    for places, part in zip(cut.places, cut.parts, strict=True):
        for place, own in zip(places, part.pieces, strict=True):
            shifts[place] = own.offset - cut.whole.pieces[place].offset
    starts = [piece.offset for piece in cut.whole.pieces]
    return torch.tensor(starts, device=device), torch.tensor(shifts, device=device)


@lru_cache(maxsize=1024)
def _own_tables(cut: Cut, rank: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each of a rank's shares begins among its own, and the last one ends; and how far they moved there."""
    own = cut.parts[rank]
    bounds = torch.tensor([*(piece.offset for piece in own.pieces), own.numel], device=device)
    _, shifts = _tables(cut, device)
    return bounds, shifts[list(cut.places[rank])]

"""The palette: colours that stay apart for colour-blind eyes, and line styles that do so without colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.training.config import TORCH_METHODS
from thinwire.training.summary import Row

# Okabe and Ito (2008), without yellow and black: both vanish on one of the two backgrounds.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("solid", "dash", "dot", "dashdot")
NEUTRAL = "var(--neutral)"
"""torch's own methods are drawn in the page's grey: they are the ground that ours stand on."""


@dataclass(frozen=True)
class Look:
    """How a line is drawn."""

    colour: str
    dash: str = DASHES[0]

    @property
    def peer(self) -> bool:
        """Whether it is one of torch's own methods."""
        return self.colour == NEUTRAL


def look(place: int) -> Look:
    """Of the line in this place: every colour in one dash, then every colour in the next."""
    return Look(COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)])


def styles(rows: Sequence[Row]) -> list[Look]:
    """A look for each row: colours for ours, dashes for torch's own."""
    ours, peers = iter(range(len(rows))), iter(range(len(rows)))
    return [
        Look(NEUTRAL, DASHES[(1 + next(peers)) % len(DASHES)])
        if row.config.method in TORCH_METHODS
        else look(next(ours))
        for row in rows
    ]

"""The palette: colours that stay apart for colour-blind eyes, and line styles that do so without colour."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.experiments.peers import PEERS
from thinwire.experiments.summary import Row

# Okabe and Ito (2008), without yellow and black: both vanish on one of the two backgrounds.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("solid", "dash", "dot", "dashdot")
NEUTRAL = "neutral"
"""torch's own methods are drawn in the page's grey: they are the ground that ours stand on."""


def styles(rows: Sequence[Row]) -> list[dict[str, str]]:
    """A colour and a dash for each row."""
    ours = peers = 0
    result = []
    for row in rows:
        if row.config.method in PEERS:
            result.append({"colour": NEUTRAL, "dash": DASHES[(1 + peers) % len(DASHES)]})
            peers += 1
        else:
            dash = DASHES[ours // len(COLOURS) % len(DASHES)]
            result.append({"colour": COLOURS[ours % len(COLOURS)], "dash": dash})
            ours += 1
    return result

"""The result: each method's accuracy and three ratios beside the paper's figures, and whether the claim held."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from thinwire.papers.vgc.paper import PaperRow, paper_row
from thinwire.training.formatting import show_count
from thinwire.training.summary import Row, Spread

LOSS = 0.5
"""Points of accuracy that VGC may lose to training without compression, by the claim,"""
RATIO = 100
"""at ratios of at least this."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One method: what was found, and what the paper prints."""

    row: Row

    @property
    def paper(self) -> PaperRow | None:
        return paper_row(self.row.config.method)

    @property
    def label(self) -> str:
        return self.paper.label if self.paper else self.row.label

    @property
    def points(self) -> float | None:
        """Test accuracy in per cent."""
        return None if self.row.metric is None else 100 * self.row.metric.mean

    def plain(self) -> dict[str, Any]:
        """As plain values, one line of `--json`."""
        config = self.row.config
        found = {
            "method": config.method,
            "label": self.label,
            "task": config.task,
            "optimizer": config.optimizer,
            "steps": config.steps,
            "epochs": config.evaluations,
            "seeds": self.row.seeds,
            "diverged": self.row.diverged,
            "accuracy": _mean(self.row.metric),
            "ratio_elements": _mean(self.row.ratio_elements),
            "ratio_message": _mean(self.row.ratio_message),
            "ratio_effective": _mean(self.row.ratio_effective),
            "seconds": _mean(self.row.seconds),
        }
        printed = self.paper.printed(config.optimizer) if self.paper else None
        return found | {"paper": dataclasses.asdict(printed) if printed else None}


def _mean(spread: Spread | None) -> float | None:
    return None if spread is None else spread.mean


def results(rows: Sequence[Row]) -> list[Result]:
    """The rows with the paper's figures."""
    return [Result(row) for row in rows]


def claim(found: Sequence[Result]) -> list[str]:
    """Whether VGC lost at most half a point to none at ratios of 100 or more, in a sentence for each of its rows."""
    none = next((one.points for one in found if one.row.config.method == "dense"), None)
    ours = [one for one in found if one.row.config.method.startswith("vgc(")]
    if none is None or not ours:
        return []
    tested = f"Claim: VGC loses at most {LOSS} points to none at ratios of {RATIO} or more."
    return [tested, *(_said(one, none) for one in ours)]


def _said(one: Result, none: float) -> str:
    ratio = one.row.ratio_elements
    if one.points is None or ratio is None:
        return f"{one.label}: diverged, so it did not hold."
    gap = one.points - none
    facts = f"{one.label}: {gap:+.1f} points at a ratio of {show_count(ratio.mean)}"
    if ratio.mean < RATIO:
        return f"{facts}: below {RATIO}, so the claim says nothing of it."
    return f"{facts}: it {'held' if gap >= -LOSS else 'did not hold'}."

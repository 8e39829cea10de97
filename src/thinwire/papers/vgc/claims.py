"""The paper's claims: its table for CIFAR-10 under Adam and momentum SGD, and what runs say to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thinwire import VGC, parse
from thinwire.training.config import TORCH_METHODS, canonical_method
from thinwire.training.formatting import show_count
from thinwire.training.summary import Row, Spread

LOSS = 0.5
"""Points of accuracy that VGC may lose to training without compression, by the claim,"""
TOTALS = ("ratio_elements", "ratio_message", "ratio_effective", "seconds")
RATIO = 100
"""at ratios of at least this."""


@dataclass(frozen=True)
class PrintedNumber:
    """A printed number. One that is not certain was recalled, or contradicts another, and was not checked in print."""

    value: float
    certain: bool = True


@dataclass(frozen=True)
class Printed:
    """What the paper prints for one method under one optimizer."""

    accuracy: PrintedNumber
    """In per cent, the median of five runs."""
    ratio: PrintedNumber
    """Parameters over numbers sent by a worker at a step."""


@dataclass(frozen=True)
class PaperRow:
    """One method of the table."""

    label: str
    text: str
    """The method as thinwire writes it."""
    adam: Printed
    momentum: Printed

    @property
    def method(self) -> str:
        return canonical_method(self.text)

    def printed(self, optimizer: str) -> Printed:
        return self.momentum if optimizer == "momentum" else self.adam


def _printed(accuracy: float, ratio: float, sure: tuple[bool, bool] = (True, True)) -> Printed:
    return Printed(PrintedNumber(accuracy, sure[0]), PrintedNumber(ratio, sure[1]))


TABLE = (
    PaperRow("none", "dense", _printed(88.1, 1), _printed(91.7, 1)),
    PaperRow("Strom τ = 0.001", "memsgd(strom(0.001))", _printed(62.8, 88.5), _printed(84.8, 6.6)),
    PaperRow(  # 990.7 also stands in the ImageNet table: one of the two is a slip
        "Strom τ = 0.01",
        "memsgd(strom(0.01))",
        _printed(85.0, 230.1),
        _printed(10.6, 990.7, sure=(True, False)),
    ),
    PaperRow("Strom τ = 0.1", "memsgd(strom(0.1))", _printed(88.0, 6942.8), _printed(71.6, 8485.0)),
    PaperRow("VGC α = 1", "vgc(1.0)", _printed(88.9, 120.7), _printed(90.3, 52.4, sure=(False, False))),
    PaperRow("VGC α = 1.5", "vgc(1.5)", _printed(88.9, 453.3), _printed(89.6, 169.2, sure=(False, False))),
    PaperRow("VGC α = 2", "vgc(2.0)", _printed(88.9, 913.4), _printed(88.4, 383.6, sure=(False, True))),
    PaperRow("hybrid τ = 0.01, α = 2", "hybrid(0.01, alpha=2.0)", _printed(85.0, 1942.2), _printed(87.6, 983.9)),
    PaperRow("hybrid τ = 0.1, α = 2", "hybrid(0.1, alpha=2.0)", _printed(88.2, 12822.4), _printed(87.1, 12396.8)),
    PaperRow("QSGD 2 bit, 128", "qsgd(3, 128)", _printed(88.8, 12.3), _printed(90.8, 6.6)),
    PaperRow("QSGD 3 bit, 512", "qsgd(7, 512)", _printed(87.4, 14.4), _printed(91.4, 7.0)),
    PaperRow("QSGD 4 bit, 512", "qsgd(15, 512)", _printed(88.2, 11.0), _printed(91.7, 4.0)),
)
"""QSGD with b bits has 2^b - 1 levels and the Euclidean norm: the reading that comes nearest to the printed ratios."""


def paper_row(method: str) -> PaperRow | None:
    """The paper's row for a method's text; None for one that it does not have."""
    return next((row for row in TABLE if row.method == method), None)


@dataclass(frozen=True)
class VGCRow:
    """One method: what was found, and what the paper prints."""

    row: Row

    @property
    def paper(self) -> PaperRow | None:
        return paper_row(self.row.config.method)

    @property
    def label(self) -> str:
        """The paper's name of the method, and whatever else tells the row apart."""
        return self.row.label.replace(self.row.config.method, self.paper.label, 1) if self.paper else self.row.label

    @property
    def claimed(self) -> bool:
        """Whether the paper's claim is about the method."""
        method = self.row.config.method
        return method not in TORCH_METHODS and isinstance(parse(method), VGC)

    @property
    def points(self) -> float | None:
        """Test accuracy in per cent."""
        return None if self.row.metric is None else 100 * self.row.metric.mean

    def plain(self) -> dict[str, Any]:
        """As plain values, one line of `--json`."""
        config = self.row.config
        found = {
            "label": self.label,
            **{name: getattr(config, name) for name in ("method", "task", "optimizer", "steps")},
            "epochs": config.evaluations,
            "seeds": self.row.seeds,
            "diverged": self.row.diverged,
            "accuracy": _mean(self.row.metric),
            **{name: _mean(getattr(self.row, name)) for name in TOTALS},
        }
        printed = self.paper.printed(config.optimizer) if self.paper else None
        return found | {"paper": dataclasses.asdict(printed) if printed else None}


def _mean(spread: Spread | None) -> float | None:
    return None if spread is None else spread.mean


def claims(found: Sequence[VGCRow]) -> list[str]:
    """Whether VGC lost at most half a point to none at ratios of 100 or more, in a sentence for each of its rows."""
    none = next((one.points for one in found if one.row.config.method == "dense"), None)
    ours = [one for one in found if one.claimed and not one.row.cut_off]
    if none is None or not ours:
        return []
    tested = f"Claim: VGC loses at most {LOSS} points to none at ratios of {RATIO} or more."
    return [tested, *(_said(one, none) for one in ours)]


def _said(one: VGCRow, none: float) -> str:
    ratio = one.row.ratio_elements
    if one.points is None or ratio is None:
        return f"{one.label}: diverged, so it did not hold."
    gap = one.points - none
    facts = f"{one.label}: {gap:+.1f} points at a ratio of {show_count(ratio.mean)}"
    if ratio.mean < RATIO:
        return f"{facts}: below {RATIO}, so the claim says nothing of it."
    return f"{facts}: it {'held' if gap >= -LOSS else 'did not hold'}."

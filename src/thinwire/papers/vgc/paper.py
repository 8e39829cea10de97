"""The paper's table for CIFAR-10: test accuracy and ratio of every method, under Adam and momentum SGD."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.training.config import canonical_method

EPOCHS = 300
WORKERS = 8
BATCH = 64
WEIGHT_DECAY = 5e-4


@dataclass(frozen=True)
class Figure:
    """A printed number. One that is not certain was recalled, or contradicts another, and was not checked in print."""

    value: float
    certain: bool = True


@dataclass(frozen=True)
class Printed:
    """What the paper prints for one method under one optimizer."""

    accuracy: Figure
    """In per cent, the median of five runs."""
    ratio: Figure
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


def _sure(accuracy: float, ratio: float) -> Printed:
    return Printed(Figure(accuracy), Figure(ratio))


def _recalled(accuracy: float, ratio: float) -> Printed:
    return Printed(Figure(accuracy, certain=False), Figure(ratio, certain=False))


TABLE = (
    PaperRow("none", "dense", _sure(88.1, 1), _sure(91.7, 1)),
    PaperRow("Strom τ = 0.001", "memsgd(strom(0.001))", _sure(62.8, 88.5), _sure(84.8, 6.6)),
    PaperRow(  # 990.7 also stands in the ImageNet table: one of the two is a slip
        "Strom τ = 0.01", "memsgd(strom(0.01))", _sure(85.0, 230.1), Printed(Figure(10.6), Figure(990.7, certain=False))
    ),
    PaperRow("Strom τ = 0.1", "memsgd(strom(0.1))", _sure(88.0, 6942.8), _sure(71.6, 8485.0)),
    PaperRow("VGC α = 1", "vgc(1.0)", _sure(88.9, 120.7), _recalled(90.3, 52.4)),
    PaperRow("VGC α = 1.5", "vgc(1.5)", _sure(88.9, 453.3), _recalled(89.6, 169.2)),
    PaperRow("VGC α = 2", "vgc(2.0)", _sure(88.9, 913.4), Printed(Figure(88.4, certain=False), Figure(383.6))),
    PaperRow("hybrid τ = 0.01, α = 2", "hybrid(0.01, alpha=2.0)", _sure(85.0, 1942.2), _sure(87.6, 983.9)),
    PaperRow("hybrid τ = 0.1, α = 2", "hybrid(0.1, alpha=2.0)", _sure(88.2, 12822.4), _sure(87.1, 12396.8)),
    PaperRow("QSGD 2 bit, 128", "qsgd(3, 128)", _sure(88.8, 12.3), _sure(90.8, 6.6)),
    PaperRow("QSGD 3 bit, 512", "qsgd(7, 512)", _sure(87.4, 14.4), _sure(91.4, 7.0)),
    PaperRow("QSGD 4 bit, 512", "qsgd(15, 512)", _sure(88.2, 11.0), _sure(91.7, 4.0)),
)
"""QSGD with b bits has 2^b - 1 levels and the Euclidean norm: the reading that comes nearest to the printed ratios."""


def paper_row(method: str) -> PaperRow | None:
    """The paper's row for a method's text; None for one that it does not have."""
    return next((row for row in TABLE if row.method == method), None)

"""Figures: sections of tables and line charts, which become one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.report.palette import Look, look
from thinwire.report.template import fill, write_text

DIGITS = 5
"""Significant digits of what is drawn: a screen shows three, and a page takes a third of the bytes."""


@dataclass(frozen=True)
class Axis:
    """What an axis measures."""

    title: str
    log: bool = False
    zero: bool = False
    """Begins at zero."""
    percent: bool = False
    unit: str | None = None
    """Written behind a number and its prefix: 10 kB, or 10k for no unit; None where there is no prefix either: 10⁻⁷."""
    noun: str = ""
    """What follows a value in a sentence: 300 *steps*."""
    span: tuple[float, float] | None = None
    """From where to where; None for what is drawn."""


@dataclass(frozen=True)
class Series:
    """One line of a chart, with the range over seeds where there are several."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    look: Look
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Chart:
    """Lines over common axes."""

    title: str
    note: str
    x: Axis
    y: Axis
    series: Sequence[Series]


@dataclass(frozen=True)
class Section:
    """A heading, sentences, a table (its first row is the head) and charts.

    With `looks`, one for each row of the table, the rows' first cells are the legend of the charts: their labels.
    """

    title: str
    facts: Sequence[str]
    sentences: Sequence[str]
    table: Sequence[Sequence[str]]
    charts: Sequence[Chart]
    looks: Sequence[Look] = ()
    provenance: Sequence[Mapping[str, str]] = ()


def lines(courses: Sequence[tuple[str, Sequence[float], Sequence[float]]]) -> list[Series]:
    """A series for each label, x and y, each with a look of its own."""
    return [Series(label, x, y, look(place)) for place, (label, x, y) in enumerate(courses)]


def page_text(sections: Sequence[Section], footer: str) -> str:
    """The HTML of these sections."""
    return fill("page.html.j2", [_plain(chart) for section in sections for chart in section.charts], sections, footer)


def write_figures(sections: Sequence[Section], path: Path) -> None:
    """Write the page of these sections to `path`."""
    write_text(page_text(sections, "Made by thinwire from the record alone."), path)


def _plain(chart: Chart) -> dict[str, Any]:
    """A chart as its script reads it."""
    return {"x": vars(chart.x), "y": vars(chart.y), "series": [_plain_series(series) for series in chart.series]}


def _plain_series(series: Series) -> dict[str, Any]:
    numbers = {name: _rounded(getattr(series, name)) for name in ("x", "y", "low", "high")}
    return {"label": series.label, "colour": series.look.colour, "dash": series.look.dash, **numbers}


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]

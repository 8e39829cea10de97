"""Figures: a page of tables and line charts, for experiments that are no training runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from thinwire.report.palette import COLOURS, DASHES
from thinwire.report.template import fill, write_text


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """Lines over common axes; y is logarithmic, x where it is said."""

    title: str
    note: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    log_x: bool = False


@dataclass(frozen=True)
class Section:
    """A heading, sentences, a table (its first row is the head) and charts."""

    title: str
    facts: Sequence[str]
    sentences: Sequence[str]
    table: Sequence[Sequence[str]]
    charts: Sequence[Chart]


def write_figures(sections: Sequence[Section], path: Path) -> None:
    """Write the page of these sections to `path`."""
    charts = [asdict(chart) for section in sections for chart in section.charts]
    for chart in charts:
        for place, series in enumerate(chart["series"]):
            series["colour"] = COLOURS[place % len(COLOURS)]
            series["dash"] = DASHES[place // len(COLOURS) % len(DASHES)]
    write_text(fill("figures.html.j2", sections, charts), path)

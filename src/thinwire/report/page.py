"""The page: sections of tables and line charts, which become one self-contained HTML text.

The script that draws is our own: plotly, which drew the charts before, comes as one file of 4.8 MB and put it into
every page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from thinwire.extras import require
from thinwire.report.destination import write_whole

RunT = TypeVar("RunT")
PACKAGES = {"jinja2": "report"}
"""What a page needs, and the extra that brings it."""
FOOTER = "Made by thinwire from the record alone."
DIGITS = 5
"""Significant digits of what is drawn: a screen shows three, and a page takes a third of the bytes."""
# Okabe and Ito (2008), without yellow and black: both vanish on one of the two backgrounds.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES = ("solid", "dash", "dot", "dashdot")
NEUTRAL = "var(--neutral)"
"""The page's grey, for what others are measured by."""


@dataclass(frozen=True)
class Look:
    """How a line is drawn: colours stay apart for colour-blind eyes, and dashes do so without colour."""

    colour: str
    dash: str = DASHES[0]

    @property
    def peer(self) -> bool:
        """Whether it is grey: what others are measured by."""
        return self.colour == NEUTRAL


def look(place: int) -> Look:
    """Of the line in this place: every colour in one dash, then every colour in the next."""
    return Look(COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)])


def looks(peers: Sequence[bool]) -> list[Look]:
    """A look for each line: grey and a dash for a peer, a colour for any other."""
    ours, others = iter(range(len(peers))), iter(range(1, len(peers) + 1))
    return [Look(NEUTRAL, DASHES[next(others) % len(DASHES)]) if peer else look(next(ours)) for peer in peers]


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
    """A heading, facts that all runs share, sentences, a table (its first row is the head) and charts.

    Sentences tell what was found, notes how to read it. With `looks`, one for each row of the table, the rows' first
    cells are the legend of the charts: their labels.
    """

    title: str
    facts: Sequence[str]
    sentences: Sequence[str]
    table: Sequence[Sequence[str]]
    charts: Sequence[Chart]
    looks: Sequence[Look] = ()
    provenance: Sequence[Mapping[str, str]] = ()
    notes: Sequence[str] = ()


def lines(courses: Sequence[tuple[str, Sequence[float], Sequence[float]]]) -> list[Series]:
    """A series for each label, x and y, each with a look of its own."""
    return [Series(label, x, y, look(place)) for place, (label, x, y) in enumerate(courses)]


def section_for_each(
    runs: Iterable[RunT], key: Callable[[RunT], object], section: Callable[[list[RunT]], Section]
) -> list[Section]:
    """A section for the runs of each key, in their order."""
    groups: dict[object, list[RunT]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return [section(some) for some in groups.values()]


def page_text(sections: Sequence[Section], footer: str = FOOTER) -> str:
    """The HTML of these sections: template, style, script and data in one text."""
    jinja = require("jinja2", PACKAGES["jinja2"], "the report page")
    environment = jinja.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    sections = _notes_once(sections)
    drawn = [_plain(chart) for section in sections for chart in section.charts]
    parts = {"style": _read("style.css"), "script": _read("charts.js"), "data": _script_json(drawn)}
    text: str = environment.from_string(_read("page.html.j2")).render(sections=sections, footer=footer, **parts)
    return text


def write_page(sections: Sequence[Section], path: Path) -> None:
    """Write the page of these sections, whole or not at all; a path that cannot be written is a `ConfigError`."""
    write_whole(page_text(sections), path, "page", "it")


def _notes_once(sections: Sequence[Section]) -> list[Section]:
    """The sections, each note in the first alone that has it."""
    said: set[str] = set()
    found = []
    for section in sections:
        found.append(replace(section, notes=[note for note in section.notes if note not in said]))
        said.update(section.notes)
    return found


def _plain(chart: Chart) -> dict[str, Any]:
    """A chart as its script reads it."""
    return {"x": vars(chart.x), "y": vars(chart.y), "series": [_plain_series(series) for series in chart.series]}


def _plain_series(series: Series) -> dict[str, Any]:
    numbers = {name: _rounded(getattr(series, name)) for name in ("x", "y", "low", "high")}
    return {"label": series.label, "colour": series.look.colour, "dash": series.look.dash, **numbers}


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _script_json(value: Any) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")

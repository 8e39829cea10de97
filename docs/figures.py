"""Draws the pictures of README and docs from the records in docs/records: `python docs/figures.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import EngFormatter, PercentFormatter, ScalarFormatter

from thinwire.papers import read_sections
from thinwire.report.page import NEUTRAL, Axis, Chart, Section

HERE = Path(__file__).parent
FIGURES: dict[str, tuple[str, str, str]] = {
    "demo": ("demo.jsonl", "emulated link", "against seconds"),
    "ef21-tuned": ("ef21-a9a.jsonl", "Tuned methods", "against bits"),
    "ef21-text": ("ef21-text.jsonl", "text", "Training loss against bytes"),
    "memsgd-theory": ("memsgd.jsonl", "figure 2) · reuters", "As theory has it"),
    "memsgd-bits": ("memsgd.jsonl", "figure 3) · reuters", "against bytes"),
    "memsgd-cores": ("memsgd.jsonl", "figure 4) · reuters", "against time"),
    "exchanges": ("scale.jsonl", "100 Mbit/s", "Time of a step"),
    "vgc-cifar10": ("vgc-cifar10-adam.jsonl", "VGC", "Test accuracy against bytes"),
}
"""Picture -> record, a part of the section's title, a part of the chart's title."""
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
STYLE: dict[str, Any] = {
    "svg.hashsalt": "thinwire",  # the same file every time
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dfe4e8",
    "axes.edgecolor": "#90a4ae",
    "legend.frameon": False,
}


def draw(chart: Chart, path: Path) -> None:
    """One chart as an SVG file on white, which reads well on a dark page too."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8.4, 4.2), layout="constrained")
        for series in chart.series:
            colour = "#607080" if series.look.colour == NEUTRAL else series.look.colour
            axes.plot(series.x, series.y, DASHES[series.look.dash], color=colour, label=series.label, linewidth=1.8)
            if series.low:
                axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.15, linewidth=0)
        _set(axes, chart.x, "x", chart.x.title)
        _set(axes, chart.y, "y", chart.y.title or chart.title.partition(" against ")[0])
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=min(3, len(chart.series)), fontsize=10)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _set(axes: Any, axis: Axis, name: str, title: str) -> None:
    getattr(axes, f"set_{name}label")(title)
    if axis.log:
        getattr(axes, f"set_{name}scale")("log")
        low, high = getattr(axes, f"get_{name}lim")()
        if high < 10 * low:  # within a decade matplotlib writes 4 x 10^0
            for which in ("major", "minor"):
                getattr(getattr(axes, f"{name}axis"), f"set_{which}_formatter")(ScalarFormatter())
    if axis.span:
        getattr(axes, f"set_{name}lim")(*axis.span)
    if axis.percent:
        getattr(axes, f"{name}axis").set_major_formatter(PercentFormatter(1.0, decimals=0))
    elif axis.unit is not None:
        getattr(axes, f"{name}axis").set_major_formatter(EngFormatter(unit=axis.unit))


def chosen(sections: Sequence[Section], title: str, chart: str) -> Chart:
    """The first chart whose title, and whose section's, have these parts."""
    found = [one for section in sections if title in section.title for one in section.charts if chart in one.title]
    if not found:
        known = [f"{section.title}: {one.title}" for section in sections for one in section.charts]
        raise SystemExit(f"no chart {chart!r} in {title!r}; there are\n  " + "\n  ".join(known))
    return found[0]


if __name__ == "__main__":
    for name, (record, title, chart) in FIGURES.items():
        sections, _ = read_sections([HERE / "records" / record])
        draw(chosen(sections, title, chart), HERE / "images" / f"{name}.svg")
        print(f"docs/images/{name}.svg")

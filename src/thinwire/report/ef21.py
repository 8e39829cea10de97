"""The page of the EF21 experiments, from their record alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from thinwire.experiments.ef21.figures import cells, curve, facts, head, measure, title
from thinwire.experiments.ef21.run import Outcome
from thinwire.experiments.groups import grouped
from thinwire.report.figures import Chart, Section, Series, write_figures

UNITS = (
    "Steps are multiples of what the paper's scripts call 1×, and those differ: of theorem 1's step for EF21, EF and "
    "EF21's successors, of theorem 2's with μ = 0.1, which is about √2 smaller, for EF21+, of 1/L for gradient "
    "descent, and of theorem 2's for all that compress in least squares; above 1× no theorem covers a run."
)
COUNTS = (
    "Rounds to each tolerance, and below them a worker's bits: as the paper counts (32 for each number, nothing "
    "for positions and the start), and with ⌈log₂ d⌉ bits for each position, EF21+'s flag and the whole start. "
    "Where both ways are compared, what the server answers counts too."
)


def write_ef21_page(outcomes: Sequence[Outcome], path: Path) -> None:
    """A section for each figure and data set."""
    write_figures([_section(group, runs) for group, runs in grouped(outcomes)], path)


def _section(group: tuple[str, str], runs: Sequence[Outcome]) -> Section:
    charts = [
        _chart(runs, honest=False, note="as the paper counts: values alone"),
        _chart(runs, honest=True, note="positions and the start included"),
    ]
    return Section(title(*group), facts(runs), [UNITS, COUNTS], [head(runs), *map(cells, runs)], charts)


def _chart(runs: Sequence[Outcome], *, honest: bool, note: str) -> Chart:
    series = [Series(one.setting.label, *curve(one, honest)) for one in runs]
    return Chart(f"{measure(runs)} against bits", note, "bits of a worker", measure(runs), series, log_x=True)

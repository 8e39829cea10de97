"""The page of the EF21 experiments, from their record alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from thinwire.papers.ef21.figures import cells, curve, facts, head, measure, title
from thinwire.papers.ef21.run import Outcome
from thinwire.report.figures import Axis, Chart, Section, Series, lines, write_figures
from thinwire.spec import parse
from thinwire.training.groups import grouped

UNITS = (
    "Steps are multiples of what the paper's scripts call 1×, and those differ: of theorem 1's step for EF21, EF and "
    "EF21's successors, of theorem 2's with μ = 0.1, which is about √2 smaller, for EF21+, of 1/L for gradient "
    "descent, and of theorem 2's for all that compress in least squares; above 1× no theorem covers a run."
)
MANY = 8
"""More lines than this are not told apart in one chart."""
COUNTS = (
    "Rounds to each tolerance, and below them a worker's bits: as the paper counts (32 for each number, nothing "
    "for positions and the start), and with ⌈log₂ d⌉ bits for each position, EF21+'s flag and the whole start. "
    "Where both ways are compared, what the server answers counts too."
)


def write_ef21_page(outcomes: Sequence[Outcome], path: Path) -> None:
    """A section for each figure and data set."""
    write_figures([_section(group, runs) for group, runs in grouped(outcomes)], path)


def _section(group: tuple[str, str], runs: Sequence[Outcome]) -> Section:
    return Section(title(*group), facts(runs), [UNITS, COUNTS], [head(runs), *map(cells, runs)], _charts(runs))


def _charts(runs: Sequence[Outcome]) -> list[Chart]:
    """Two ways to count, of all runs together, or of each method by itself where they are many: over the same axes."""
    ways = {False: "as the paper counts: values alone", True: "positions and the start included"}
    axes = {honest: _axes([curve(one, honest) for one in runs]) for honest in ways}
    return [
        Chart(f"{name}{measure(runs)} against bits", note, *axes[honest], _series(some, honest))
        for name, some in (_by_method(runs) if len(runs) > MANY else {"": runs}).items()
        for honest, note in ways.items()
    ]


def _axes(courses: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[Axis, Axis]:
    """Of bits and measure, from the least to the largest of all courses."""
    bits, values = (_span(list(chain(*each))) for each in zip(*courses, strict=True))
    return Axis("bits of a worker", log=True, unit="", noun="bits", span=bits), Axis("", log=True, span=values)


def _span(values: Sequence[float]) -> tuple[float, float] | None:
    """Of what a logarithmic axis can show."""
    positive = [value for value in values if value > 0]
    return (min(positive), max(positive)) if positive else None


def _by_method(runs: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """The runs of each rule, under what their labels begin with."""
    rules: dict[str, list[Outcome]] = {}
    for one in runs:
        rules.setdefault(parse(one.setting.rule).name, []).append(one)
    return {f"{some[0].setting.label.partition(' ')[0]}: ": some for some in rules.values()}


def _series(runs: Sequence[Outcome], honest: bool) -> list[Series]:
    return lines([(one.setting.label, *curve(one, honest)) for one in runs])

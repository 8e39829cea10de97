"""The sections of the EF21 experiments: for each figure and data set a table, and charts by two counts of bits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from thinwire.papers.ef21.claims import COUNTS, UNITS, claims
from thinwire.papers.ef21.runs import EF21Run, Reached, honest_bits, paper_bits
from thinwire.report.page import Axis, Chart, Section, lines, section_for_each
from thinwire.report.record_file import Experiment, one_line_each
from thinwire.training.formatting import NOTHING, plural, show_thousands

TITLES = {
    "tuned": "Tuned methods",
    "tolerance": "How large steps may be",
    "k": "Numbers in a message",
    "pl": "Least squares",
    "participation": "Some workers take part",
    "bidirectional": "Compressed both ways",
    "momentum": "Heavy ball",
    "stochastic": "Mini-batches",
}
METHODS = {"memsgd": "EF", "ef21": "EF21", "ef21plus": "EF21+"}
"""What the paper calls the rules of the one figure that has more lines than a chart shows."""
MANY = 8
"""More lines than this are not told apart in one chart."""


def sections(runs: Sequence[EF21Run]) -> list[Section]:
    """A section for each figure and data set, in the runs' order."""
    return section_for_each(runs, lambda one: one.setting.group, _section)


def _section(runs: Sequence[EF21Run]) -> Section:
    figure, dataset = runs[0].setting.group
    return Section(
        f"EF21 · {TITLES[figure]} · {dataset}",
        [_measure(runs), *_facts(runs[0])],
        claims(runs),
        [_head(runs), *map(_cells, runs)],
        _charts(runs),
        notes=[COUNTS, UNITS],
    )


def _measure(runs: Sequence[EF21Run]) -> str:
    return "f(x) − f*" if runs[0].setting.problem == "least-squares" else "‖∇f(x)‖²"


def _facts(first: EF21Run) -> list[str]:
    """What all runs of a figure share."""
    problem = "least squares" if first.setting.problem == "least-squares" else "logistic regression, λ = 0.1"
    batch = "exact gradients" if first.setting.batch == 1 else f"batches of {first.setting.batch:.1%}"
    shape = f"{first.samples:,} samples, d = {first.d}"
    return [problem, shape, plural(first.setting.workers, "worker"), batch, "float64"]


def _head(runs: Sequence[EF21Run]) -> list[str]:
    return ["method", "step", *(f"to {one.tolerance:.0e}" for one in runs[0].reached), "best"]


def _cells(one: EF21Run) -> list[str]:
    """A run's row: for each tolerance rounds, and on a second line bits as the paper counts and honestly."""
    best = "diverged" if one.status == "diverged" else f"{one.best:.1e}"
    return [one.setting.label, f"{one.step:.3g}", *map(_reached, one.reached), best]


def _reached(each: Reached) -> str:
    if each.rounds is None:
        return NOTHING
    assert each.paper_bits is not None
    assert each.honest_bits is not None
    return f"{each.rounds:,}\n{show_thousands(each.paper_bits)} / {show_thousands(each.honest_bits)}"


def _charts(runs: Sequence[EF21Run]) -> list[Chart]:
    """Two ways to count, of all runs together, or of each method by itself where they are many: over the same axes."""
    ways = {False: "as the paper counts: values alone", True: "positions and the start included"}
    axes = {honest: _axes([_curve(one, honest) for one in runs]) for honest in ways}
    return [
        Chart(
            f"{name}{_measure(runs)} against bits",
            note,
            *axes[honest],
            lines([(one.setting.label, *_curve(one, honest)) for one in some]),
        )
        for name, some in (_by_method(runs) if len(runs) > MANY else {"": runs}).items()
        for honest, note in ways.items()
    ]


def _curve(one: EF21Run, honest: bool) -> tuple[list[float], list[float]]:
    """Bits and measure."""
    count = honest_bits if honest else paper_bits
    points = [(count(one.setting, one.d, step), value) for step, value in one.curve if value > 0]
    return [float(x) for x, _ in points], [y for _, y in points]


def _axes(courses: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[Axis, Axis]:
    """Of bits and measure, from the least to the largest of all courses."""
    bits, values = (_span(list(chain(*each))) for each in zip(*courses, strict=True))
    return Axis("bits of a worker", log=True, unit="", noun="bits", span=bits), Axis("", log=True, span=values)


def _span(values: Sequence[float]) -> tuple[float, float] | None:
    """Of what a logarithmic axis can show."""
    positive = [value for value in values if value > 0]
    return (min(positive), max(positive)) if positive else None


def _by_method(runs: Sequence[EF21Run]) -> dict[str, list[EF21Run]]:
    """The runs of each rule, under its name."""
    rules: dict[str, list[EF21Run]] = {}
    for one in runs:
        rules.setdefault(f"{METHODS.get(one.rule.name, one.rule.name)}: ", []).append(one)
    return rules


EF21_EXPERIMENT = Experiment("ef21", one_line_each("ef21", EF21Run.of_plain), sections)

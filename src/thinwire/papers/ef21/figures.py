"""The page of the EF21 experiments: a table and two charts for each figure and data set."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.papers.ef21.bits import honest_bits, paper_bits
from thinwire.papers.ef21.course import Reached
from thinwire.papers.ef21.run import Outcome
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


def title(figure: str, dataset: str) -> str:
    return f"{TITLES[figure]} · {dataset}"


def facts(runs: Sequence[Outcome]) -> list[str]:
    """What all runs of a figure share."""
    first = runs[0]
    problem = "least squares" if first.setting.problem == "least-squares" else "logistic regression, λ = 0.1"
    batch = "exact gradients" if first.setting.batch == 1 else f"batches of {first.setting.batch:.1%}"
    shape = f"{first.samples:,} samples, d = {first.d}"
    return [problem, shape, plural(first.setting.workers, "worker"), batch, "float64"]


def measure(runs: Sequence[Outcome]) -> str:
    return "f(x) − f*" if runs[0].setting.problem == "least-squares" else "‖∇f(x)‖²"


def head(runs: Sequence[Outcome]) -> list[str]:
    """The head of a figure's table."""
    tolerances = [f"{one.tolerance:.0e}" for one in runs[0].reached]
    return ["method", "step", *(f"to {t}" for t in tolerances), "best"]


def cells(one: Outcome) -> list[str]:
    """A run's row: for each tolerance rounds, and on a second line bits as the paper counts and honestly."""
    best = "diverged" if one.status == "diverged" else f"{one.best:.1e}"
    return [one.setting.label, f"{one.step:.3g}", *map(_reached, one.reached), best]


def _reached(each: Reached) -> str:
    if each.rounds is None:
        return NOTHING
    assert each.paper_bits is not None
    assert each.honest_bits is not None
    return f"{each.rounds:,}\n{show_thousands(each.paper_bits)} / {show_thousands(each.honest_bits)}"


def curve(one: Outcome, honest: bool) -> tuple[list[float], list[float]]:
    """Bits and measure."""
    count = honest_bits if honest else paper_bits
    points = [(count(one.setting, one.d, step), value) for step, value in one.curve if value > 0]
    return [float(x) for x, _ in points], [y for _, y in points]

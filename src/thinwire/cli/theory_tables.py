"""The tables of `thinwire theory`: constants, and step sizes with their formulas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from thinwire.problems.constants import Constants
from thinwire.theory import Admissible
from thinwire.training.formatting import show_bytes


def constants_table(found: Constants, title: str) -> Table:
    """One row a constant: symbol, value, meaning."""
    table = Table(title=title, title_style="bold", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("constant")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("what it is")
    for symbol, value, meaning in _rows(found):
        table.add_row(Text(symbol), Text(value), Text(meaning))
    return table


def _rows(found: Constants) -> Iterator[tuple[str, str, str]]:
    known = found.smoothness
    yield "N, d, n", f"{found.rows:,}, {found.d:,}, {found.workers:,}", "samples, coordinates, workers"
    yield "memory", show_bytes(found.nbytes), "of the problem, all workers together"
    yield "L", _digits(known.overall), "smoothness of f: the larger of the mean over samples and over workers"
    if _digits(known.pooled) != _digits(known.averaged):
        yield "  pooled", _digits(known.pooled), "of the mean over all samples, which the EF21 paper takes"
        yield "  averaged", _digits(known.averaged), "of the mean over workers, who have unequal numbers of samples"
    yield "L̃", _digits(known.quadratic_mean), "quadratic mean of the workers' Lᵢ"
    yield "mean Lᵢ", _digits(known.arithmetic_mean), "arithmetic mean"
    yield "Lᵢ", f"{known.workers.min():.4f} … {known.workers.max():.4f}", "least and largest"
    if known.mu is not None:
        yield "μ", _digits(known.mu), "strong convexity" if known.strongly_convex else "PL constant"
    if found.alpha is not None:
        yield "α", _digits(found.alpha), "contraction of the compressor"
    if found.omega is not None:
        yield "ω", _digits(found.omega), "variance of the compressor"
    if found.young is not None:
        yield "s*", _digits(found.young), "best parameter of Young's inequality"
    if found.recursion is not None:
        yield "θ", _digits(found.recursion.theta), "share of the distortion that a round removes"
        yield "β", _digits(found.recursion.beta), "what a round's movement adds to it"
        yield "√(β/θ)", _digits(found.recursion.ratio), "factor of L̃ in the step size"


def steps_table(steps: Sequence[Admissible]) -> Table:
    """One row a theorem."""
    table = Table(title="step sizes", title_style="bold", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("setting")
    table.add_column("γ up to", justify="right", no_wrap=True)
    table.add_column("formula")
    table.add_column("source")
    for step in steps:
        table.add_row(Text(step.setting), Text(f"{step.step:.6e}"), Text(step.formula), Text(step.source))
    return table


def _digits(value: float) -> str:
    """Seven significant digits, as the tables of papers need."""
    return f"{value:.7g}"

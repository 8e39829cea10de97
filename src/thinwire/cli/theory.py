"""`thinwire theory`: the constants of a method on a problem, and the step sizes that theory admits."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thinwire.cli import options
from thinwire.cli.console import console, say
from thinwire.cli.options import DATA, check_command
from thinwire.problems import OBJECTIVES, load_dataset, objective, split_rows
from thinwire.problems.constants import Constants, constants
from thinwire.problems.datasets import BREAST_CANCER
from thinwire.problems.shards import SPLITS
from thinwire.spec import parse
from thinwire.theory import Admissible, check_step_size
from thinwire.training.formatting import show_bytes


def theory(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A method, such as 'ef21(topk(count=1))'.")],
    problem: Annotated[str, typer.Option("--problem", help=f"{', '.join(OBJECTIVES)}.")] = "logistic",
    dataset: Annotated[
        str, typer.Option("--dataset", help="A LIBSVM name (a9a, w8a, …) in --data, or a file's path.")
    ] = BREAST_CANCER,
    workers: options.Workers = 20,
    split: Annotated[
        str, typer.Option("--split", help=f"{', '.join(SPLITS)}: the file's order, shuffled, or skewed by label.")
    ] = "file",
    concentration: Annotated[
        float, typer.Option("--concentration", help="Dirichlet parameter of --split skewed; smaller is more skewed.")
    ] = 0.5,
    seed: Annotated[int, typer.Option("--seed", help="Of --split iid and skewed.")] = 0,
    strength: Annotated[
        float | None, options.optional("--strength", help="λ of the regulariser (default: the problem's).")
    ] = None,
    data: options.Libsvm = None,
    step: Annotated[
        float | None, options.optional("--step", help="Held against theory's: a warning where beyond.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of the tables.")] = False,
    plugin: options.Plugin = None,
    debug: options.Debug = False,
) -> None:
    """Show smoothness constants, θ and β of a method on a problem, and every step size that theory admits.

    **logistic**: with the nonconvex regulariser λ Σ x²/(1 + x²), λ = 0.1 (the EF21 paper's); **l2**: logistic with
    λ/2 ‖x‖²; **least-squares**: half the mean square. Files may be plain, .bz2, .gz or .xz; without any, the data are
    scikit-learn's breast cancer set.

    **Examples**

      thinwire theory 'ef21(topk(count=1))'

      thinwire theory 'ef21(topk(count=1))' --dataset a9a --data ~/libsvm --workers 20

      thinwire theory 'ef21(topk(count=1))' --step 0.1

      thinwire theory 'ef21sgdm(topk(0.1), eta=0.1)' --problem l2 --split skewed --concentration 0.1 --json
    """
    rule = parse(spec)
    check_command(DATA)
    loaded = load_dataset(dataset, data)
    shards = split_rows(split, loaded.labels, workers, concentration, seed)
    found = constants(rule, objective(problem, loaded, shards, strength))
    multiples = [] if step is None else _against(step, found.steps)
    setting = {"problem": problem, "dataset": loaded.name, "source": loaded.source, "split": split}
    if as_json:
        given = {} if step is None else {"step": step, "multiples": multiples}
        print(json.dumps(setting | found.plain() | given))
        return
    out = console()
    out.print(_constants_table(found, f"{found.method} · {problem} · {loaded.name} · split: {split}"))
    if found.steps:
        out.print(_steps_table(found.steps))
    else:
        say(out, f"theory states no step size for {found.method}")


def _against(step: float, steps: Sequence[Admissible]) -> list[float]:
    """The step size as a multiple of each that theory admits, with a warning for each that it exceeds."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        multiples = [check_step_size(step, each.step, f"{each.source} ({each.setting})") for each in steps]
    for one in caught:
        say(Console(stderr=True, highlight=False), f"warning: {one.message}", "yellow")
    return multiples


def _constants_table(found: Constants, title: str) -> Table:
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


def _steps_table(steps: Sequence[Admissible]) -> Table:
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

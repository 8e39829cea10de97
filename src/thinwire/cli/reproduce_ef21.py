"""`thinwire reproduce ef21`: the figures of the EF21 paper and its successors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from rich.console import Console

from thinwire.cli import options
from thinwire.cli.console import console, say
from thinwire.cli.experiment import figure_table, finish, print_lines, run_all
from thinwire.cli.options import DATA, check_command
from thinwire.cli.outputs import check_outputs, noted
from thinwire.errors import ConfigError
from thinwire.papers.ef21.figures import cells, facts, head, measure, title
from thinwire.papers.ef21.records import KIND, read_outcomes
from thinwire.papers.ef21.run import Outcome, dataset_of, run
from thinwire.papers.ef21.settings import FIGURES, QUICK_ROUNDS, ROUNDS, Setting, settings
from thinwire.problems.data_folder import data_folder
from thinwire.problems.datasets import BREAST_CANCER, places, stem
from thinwire.report.ef21 import COUNTS, UNITS, write_ef21_page
from thinwire.training.groups import grouped
from thinwire.training.outcomes import Writer

QUICK_FIGURES = ("tuned", "tolerance")


def ef21(
    context: typer.Context,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            help="Data sets, with commas between (default: phishing,a9a where there is data, else breast_cancer).",
            show_default=False,
        ),
    ] = None,
    figures: Annotated[
        str | None,
        typer.Option("--figures", help=f"Some of (default: all) {', '.join(FIGURES)}.", show_default=False),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help=f"At most (default: {ROUNDS:,}).", show_default=False)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"{QUICK_ROUNDS} rounds, {' and '.join(QUICK_FIGURES)}: a minute.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option("--data", help="A LIBSVM file, or a folder of them (default: THINWIRE_DATA).", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a run instead of the tables.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the record of --out.")] = False,
    out: options.Out = None,
    page: options.Page = None,
    force: options.Force = False,
    debug: options.Debug = False,
) -> None:
    """EF21, EF, EF21+ and gradient descent on LIBSVM data (Richtárik, Sokolov and Fatkhullin 2021), and successors.

    Logistic regression with the nonconvex regulariser, λ = 0.1, and least squares; 20 workers with the file's rows in
    order; x⁰ from numpy's default_rng(0); steps are multiples of theory's, as the paper tuned them. The record is
    written run by run: Ctrl-C keeps what was done, and --resume goes on.

    **Examples**

      thinwire reproduce ef21 --quick

      thinwire reproduce ef21 --dataset phishing,a9a,mushrooms,w8a --figures tuned --data ~/libsvm --page ef21.html
    """
    if resume and out is None:
        raise ConfigError("--resume goes on with the record that --out names; give --out as well")
    check_command(DATA, page=page)
    record = options.record_path(out, KIND)
    check_outputs(record, page, force=force, resume=resume)
    where = places(_names(dataset, data), data)
    everything = settings(
        list(where),
        [name.strip() for name in figures.split(",")] if figures else QUICK_FIGURES if quick else tuple(FIGURES),
        rounds if rounds is not None else QUICK_ROUNDS if quick else ROUNDS,
    )
    wanted = _possible(everything, where, named=figures is not None)
    with noted():
        done = {one.setting: one for one in (read_outcomes(record) if resume and record.exists() else ())}
    outcomes, whole = run_all(
        {setting: setting.rounds for setting in wanted},
        done,
        lambda setting, watch: run(setting, where[setting.dataset], watch),
        Writer(record, KIND, ["thinwire", *context.obj], resume=resume, force=force),
        quiet=as_json,
    )
    _show(outcomes, as_json)
    if page is not None and outcomes:
        write_ef21_page(outcomes, page)
    finish({"record": record, "report": page}, record, outcomes, whole=whole, quiet=as_json)


def _names(dataset: str | None, data: str | None) -> list[str]:
    if dataset is not None:
        return [name.strip() for name in dataset.split(",")]
    folder = data_folder(data)
    if folder is not None and folder.is_file():
        return [stem(folder)]
    return ["phishing", "a9a"] if folder else [BREAST_CANCER]


def _possible(everything: Sequence[Setting], where: Mapping[str, str | None], *, named: bool) -> list[Setting]:
    """The runs that the data allow; a figure that they do not allow at all is refused where it was asked for by name,
    and else left out with a word."""
    shapes = {name: dataset_of(name, data).rows.shape for name, data in where.items()}
    wanted = [one for one in everything if one.obstacle(*shapes[one.dataset]) is None]
    done = {(one.figure, one.dataset) for one in wanted}
    for figure, dataset in dict.fromkeys((one.figure, one.dataset) for one in everything):
        if (figure, dataset) not in done:
            first = next(one for one in everything if (one.figure, one.dataset) == (figure, dataset))
            problem = f"figure {figure} of {dataset} cannot be run: {first.obstacle(*shapes[dataset])}"
            if named:
                raise ConfigError(f"{problem}; leave it out of --figures, or take other data")
            say(Console(stderr=True, highlight=False), f"{problem}; it is left out", "yellow")
    return wanted


def _show(outcomes: Sequence[Outcome], as_json: bool) -> None:
    if as_json:
        print_lines(outcomes)
        return
    out = console()
    for group, runs in grouped(outcomes):
        heading = f"{title(*group)}: {measure(runs)}; {', '.join(facts(runs))}"
        out.print(figure_table(heading, [name.replace(" to ", "\nto ") for name in head(runs)], [*map(cells, runs)]))
    if outcomes:
        say(out, UNITS)
        say(out, COUNTS)

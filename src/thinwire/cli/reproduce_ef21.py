"""`thinwire reproduce ef21`: the figures of the EF21 paper and its successors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from thinwire.cli import options
from thinwire.cli.console import console, say
from thinwire.cli.experiment import figure_table, finish, print_lines, run_all
from thinwire.errors import ConfigError
from thinwire.experiments.ef21.figures import cells, facts, head, measure, title
from thinwire.experiments.ef21.records import KIND, read_outcomes
from thinwire.experiments.ef21.run import Outcome, dataset_of, run
from thinwire.experiments.ef21.settings import FIGURES, QUICK_ROUNDS, ROUNDS, settings
from thinwire.experiments.groups import grouped
from thinwire.experiments.outcomes import Writer
from thinwire.problems.data_folder import data_folder
from thinwire.problems.datasets import BREAST_CANCER
from thinwire.report.ef21 import COUNTS, write_ef21_page
from thinwire.report.template import check_report_packages

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
        typer.Option("--data", help="The folder of LIBSVM files (default: THINWIRE_DATA).", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a run instead of the tables.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the record of --out.")] = False,
    out: options.Out = None,
    page: options.Page = None,
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
    wanted = settings(
        _names(dataset, data),
        (figures.split(",") if figures else QUICK_FIGURES if quick else tuple(FIGURES)),
        rounds if rounds is not None else QUICK_ROUNDS if quick else ROUNDS,
    )
    for name in {setting.dataset for setting in wanted}:
        dataset_of(name, data)  # an unknown one is an error now
    if page is not None:
        check_report_packages()
    record = options.record_path(out, KIND)
    done = {one.setting: one for one in (read_outcomes(record) if resume and record.exists() else ())}
    outcomes, whole = run_all(
        {setting: setting.rounds for setting in wanted},
        done,
        lambda setting, watch: run(setting, data, watch),
        Writer(record, KIND, ["thinwire", *context.obj]),
        quiet=as_json,
    )
    _show(outcomes, as_json)
    if page is not None and outcomes:
        write_ef21_page(outcomes, page)
    finish({"record": record, "report": page}, record, outcomes, whole=whole, quiet=as_json)


def _names(dataset: str | None, data: str | None) -> list[str]:
    if dataset is not None:
        return [name.strip() for name in dataset.split(",")]
    return ["phishing", "a9a"] if data_folder(data) else [BREAST_CANCER]


def _show(outcomes: Sequence[Outcome], as_json: bool) -> None:
    if as_json:
        print_lines(outcomes)
        return
    out = console()
    for group, runs in grouped(outcomes):
        heading = f"{title(*group)}: {measure(runs)}; {', '.join(facts(runs))}"
        out.print(figure_table(heading, [name.replace(" to ", "\nto ") for name in head(runs)], [*map(cells, runs)]))
    if outcomes:
        say(out, COUNTS)

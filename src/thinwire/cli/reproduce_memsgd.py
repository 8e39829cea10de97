"""`thinwire reproduce memsgd`: the figures of the Mem-SGD paper."""

from __future__ import annotations

from typing import Annotated

import typer

from thinwire.cli import options
from thinwire.cli.options import DATA, THREADS, check_command
from thinwire.cli.outputs import check_outputs
from thinwire.errors import ConfigError
from thinwire.papers.memsgd.settings import (
    FIGURES,
    QUICK_FIGURES,
    QUICK_REPEATS,
    QUICK_SAMPLES,
    QUICK_STEPS,
    REPEATS,
    SAMPLES,
)

PAPER_CORES = (1, 2, 3, 5, 8, 10, 12, 15, 18, 20, 24)


def memsgd(
    context: typer.Context,
    figures: Annotated[
        str | None,
        typer.Option("--figures", "--figure", help=f"Some of (default: all) {', '.join(FIGURES)}.", show_default=False),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            help="Data sets, with commas between: generated, breast_cancer, LIBSVM files of the folder --data.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="A LIBSVM file, or a folder of them (default: THINWIRE_DATA).", show_default=False),
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", help=f"Rows of generated (default: {SAMPLES:,}).", show_default=False)
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Of every run (default: the paper's or more).", show_default=False)
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            "--threads", help="Numbers of threads (default: the paper's, up to all cores).", show_default=False
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", help=f"Of timed runs (default: {REPEATS}).", show_default=False)
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help=f"{', '.join(QUICK_FIGURES)}, {QUICK_STEPS:,} steps or one epoch a run: a minute."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a run instead of the tables.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the record of --out.")] = False,
    out: options.Out = None,
    page: options.Page = None,
    force: options.Force = False,
    debug: options.Debug = False,
) -> None:
    """Sparsified SGD with memory (Stich, Cordonnier and Jaggi 2018): theory's steps, bits beside QSGD, many cores.

    Logistic regression with λ = 1/n on rows of norm one, one sample a step. Without data of your own: a dense set in
    the shape of epsilon (d = 2,000), made in memory, and scikit-learn's breast cancer data. The record is written run
    by run: Ctrl-C keeps what was done, and --resume goes on. Where the paper's figures are wrong, the tables say so.

    **Examples**

      thinwire reproduce memsgd --quick

      thinwire reproduce memsgd --figures theory --samples 50000 --page memsgd.html

      thinwire reproduce memsgd --figures bits,cores --data rcv1_train.binary.bz2

      thinwire reproduce memsgd --data ~/libsvm --dataset rcv1_train.binary,generated --out m.jsonl --resume
    """
    if resume and out is None:
        raise ConfigError("--resume goes on with the record that --out names; give --out as well")
    check_command(THREADS, DATA, page=page)
    record = options.record_path(out, "memsgd")
    check_outputs(record, page, force=force, resume=resume)
    from thinwire.cli import memsgd_figures  # only now: it imports numba, which other commands can do without

    request = memsgd_figures.Request(
        names=memsgd_figures.names(dataset, data, _given(samples, QUICK_SAMPLES if quick else SAMPLES)),
        figures=[name.strip() for name in figures.split(",")] if figures else QUICK_FIGURES if quick else FIGURES,
        data=data,
        most=QUICK_STEPS if quick else None,
        threads=_cores() if threads is None else options.integers(threads, "--threads"),
        repeats=_given(repeats, QUICK_REPEATS if quick else REPEATS),
        epochs=epochs,
    )
    files = memsgd_figures.Files(record, page, resume=resume, force=force)
    memsgd_figures.reproduce(request, ["thinwire", *context.obj], files, as_json=as_json)


def _given(value: int | None, default: int) -> int:
    return default if value is None else value


def _cores() -> list[int]:
    """The paper's numbers of cores, up to those of this machine."""
    from thinwire.linear.checks import cores

    most = cores()
    return sorted({count for count in (*PAPER_CORES, most) if count <= most})

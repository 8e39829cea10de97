"""`thinwire reproduce`: a paper's experiment, beside what the paper prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Annotated

import torch
import typer
from rich.console import Console

from thinwire.cli import options
from thinwire.cli.console import say
from thinwire.cli.options import DATA, THREADS, check_command, optional
from thinwire.cli.recorded import Outputs, run_experiment, train_all
from thinwire.errors import ConfigError
from thinwire.link import rate_of
from thinwire.papers.adaptive import runs as adaptive_runs
from thinwire.papers.adaptive import settings as adaptive_settings
from thinwire.papers.adaptive.sections import ADAPTIVE_EXPERIMENT, sections
from thinwire.papers.ef21 import runs as ef21_runs
from thinwire.papers.ef21 import settings as ef21_settings
from thinwire.papers.ef21.sections import EF21_EXPERIMENT
from thinwire.papers.memsgd import runs as memsgd_runs
from thinwire.papers.memsgd import settings as memsgd_settings
from thinwire.papers.memsgd.sections import MEMSGD_EXPERIMENT
from thinwire.papers.vgc.sections import VGC_EXPERIMENT, results
from thinwire.papers.vgc.settings import CIFAR10, SMALL, split_methods, vgc_configs
from thinwire.problems.datasets import places
from thinwire.training.tasks import TASKS

reproduce = typer.Typer(no_args_is_help=True, help="Repeat a paper's experiment and set it beside the paper's figures.")

Json = Annotated[bool, typer.Option("--json", help="One JSON object a run, or a row, instead of the tables.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the record of --out.")]
WHOLE, QUICK = memsgd_settings.WHOLE, memsgd_settings.QUICK
EF21_QUICK = f"{ef21_settings.QUICK_ROUNDS} rounds, {' and '.join(ef21_settings.QUICK_FIGURES)}: a minute."
MEMSGD_QUICK = f"{', '.join(QUICK.figures)}, {QUICK.most:,} steps or one epoch a run: a minute."


def _some_of(figures: Iterable[str]) -> str:
    return f"Some of (default: all) {', '.join(figures)}."


@reproduce.callback()
def _group() -> None:
    """Repeat a paper's experiment and set it beside the paper's figures."""


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


@reproduce.command("ef21")
def ef21(
    context: typer.Context,
    dataset: Annotated[
        str | None,
        optional(
            "--dataset", help="With commas between (default: phishing,a9a where there is data, else breast_cancer)."
        ),
    ] = None,
    figures: Annotated[str | None, optional("--figures", help=_some_of(ef21_settings.FIGURES))] = None,
    rounds: Annotated[int | None, optional("--rounds", help=f"At most (default: {ef21_settings.ROUNDS:,}).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help=EF21_QUICK)] = False,
    data: options.Libsvm = None,
    as_json: Json = False,
    resume: Resume = False,
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
    check_command(DATA, page=page)
    outputs = Outputs.of(context, "ef21", out, page, resume=resume, force=force, as_json=as_json)
    where = places(_split(dataset) if dataset is not None else ef21_settings.default_datasets(data), data)
    asked = ef21_settings.settings(
        list(where),
        _split(figures) if figures else ef21_settings.QUICK_FIGURES if quick else tuple(ef21_settings.FIGURES),
        rounds if rounds is not None else ef21_settings.QUICK_ROUNDS if quick else ef21_settings.ROUNDS,
    )
    shapes = {name: ef21_runs.dataset_of(name, place).rows.shape for name, place in where.items()}
    wanted, problems = ef21_settings.possible(asked, shapes)
    if problems and figures:
        raise ConfigError(f"{problems[0]}; leave it out of --figures, or take other data")
    for problem in problems:
        say(Console(stderr=True, highlight=False), f"{problem}; it is left out", "yellow")
    run_experiment(
        EF21_EXPERIMENT,
        {setting: setting.rounds for setting in wanted},
        lambda setting, watch: ef21_runs.run(setting, where[setting.dataset], watch),
        outputs,
    )


@reproduce.command("memsgd")
def memsgd(
    context: typer.Context,
    figures: Annotated[str | None, optional("--figures", "--figure", help=_some_of(memsgd_settings.FIGURES))] = None,
    dataset: Annotated[
        str | None,
        optional("--dataset", help="With commas between: generated, breast_cancer, LIBSVM files of the folder --data."),
    ] = None,
    data: options.Libsvm = None,
    samples: Annotated[
        int | None, optional("--samples", help=f"Rows of generated (default: {WHOLE.samples:,}).")
    ] = None,
    epochs: Annotated[int | None, optional("--epochs", help="Of every run (default: the paper's or more).")] = None,
    threads: Annotated[
        str | None, optional("--threads", help="Numbers of threads (default: the paper's, up to all cores).")
    ] = None,
    repeats: Annotated[int | None, optional("--repeats", help=f"Of timed runs (default: {WHOLE.repeats}).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help=MEMSGD_QUICK)] = False,
    as_json: Json = False,
    resume: Resume = False,
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
    check_command(THREADS, DATA, page=page)
    outputs = Outputs.of(context, "memsgd", out, page, resume=resume, force=force, as_json=as_json)
    some = QUICK if quick else WHOLE
    chosen = _split(figures) if figures else some.figures
    counts = memsgd_runs.default_threads() if threads is None else options.integers(threads, "--threads")
    times = some.repeats if repeats is None else repeats
    memsgd_settings.check(chosen, counts, times, epochs)
    where = places(memsgd_settings.datasets(dataset, data, some.samples if samples is None else samples), data)
    scales = memsgd_runs.scales_of(where, some.most)
    lengths = {scale.dataset: scale.samples for scale in scales}
    wanted = memsgd_settings.settings(scales, chosen, counts, times, epochs)
    run_experiment(
        MEMSGD_EXPERIMENT,
        {setting: setting.epochs * lengths[setting.dataset] for setting in wanted},
        lambda setting, watch: memsgd_runs.run(setting, where[setting.dataset], watch),
        outputs,
    )


@reproduce.command("vgc")
def vgc(
    context: typer.Context,
    optimizer: Annotated[
        str, typer.Option("--optimizer", help="adam or momentum, the halves of the table, or adamw.")
    ] = "adam",
    methods: Annotated[
        str | None, optional("--methods", help="Methods, with commas between (default: the paper's).")
    ] = None,
    epochs: Annotated[int | None, optional("--epochs", help="Epochs of each run (default: the paper's 300).")] = None,
    seeds: options.Seeds = "0",
    data: Annotated[str | None, optional("--data", help="The folder of CIFAR-10 (default: THINWIRE_DATA).")] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda; all workers share it.")] = "cpu",
    small: Annotated[bool, typer.Option("--small", help="Digits in place of CIFAR-10: two cores, minutes.")] = False,
    as_json: Json = False,
    resume: Resume = False,
    out: options.Out = None,
    page: options.Page = None,
    force: options.Force = False,
    plugin: options.Plugin = None,
    debug: options.Debug = False,
) -> None:
    """Variance-based gradient compression on CIFAR-10 (Tsuzuku, Imachi and Akiba 2018).

    A VGG-like network, no augmentation, 8 simulated workers of 64 images each, every worker with its own gradient,
    second moments and batch norm. The record is written run by run: Ctrl-C keeps what was done, and --resume goes on.

    **Examples**

      thinwire reproduce vgc --small

      thinwire reproduce vgc --data cifar-10-batches-py --device cuda --epochs 20 --page vgc.html

      thinwire reproduce vgc --optimizer momentum --methods "none, vgc(1.5), hybrid(0.1, alpha=2)" --device cuda
    """
    if small and data is not None:
        raise ConfigError(f"--small brings its own data, got --data {data}; leave one of them out")
    configs = vgc_configs(
        SMALL if small else CIFAR10,
        optimizer,
        methods=split_methods(methods) if methods is not None else (),
        epochs=epochs,
        seeds=options.integers(seeds, "--seeds"),
        data=data,
        device=device,
    )
    check_command(TASKS[configs[0].task].packages, page=page)
    outputs = Outputs.of(context, "vgc", out, page, resume=resume, force=force, as_json=as_json)
    runs, whole = train_all(configs, outputs, VGC_EXPERIMENT.name)
    outputs.conclude(VGC_EXPERIMENT.sections(runs), (one.plain() for one in results(runs)), whole=whole)


@reproduce.command("adaptive")
def adaptive(
    context: typer.Context,
    methods: Annotated[
        str | None,
        optional("--methods", help=f"Some of {', '.join(adaptive_settings.NAMED)}, or rules, with semicolons between."),
    ] = None,
    scale: Annotated[
        str | None, optional("--scale", help="small, full or other (default: full with a GPU, else small).")
    ] = None,
    text: Annotated[str | None, optional("--text", help="A file to learn (default: Python's own library).")] = None,
    steps: Annotated[int | None, optional("--steps", help="Of each run (default: 1,000; 300 of small).")] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="How many, from 0 on.")] = 1,
    ingredients: Annotated[bool, typer.Option("--ingredients", help="Also what each part of memadam brings.")] = False,
    every: Annotated[
        str | None,
        optional(
            "--every",
            help=f"Outer steps of {options.one_of(adaptive_settings.OUTER)} or rules, at each of these H (15,30).",
        ),
    ] = None,
    rate: Annotated[str, typer.Option("--rate", help="Of the link for which seconds are told.")] = "100mbit",
    as_json: Json = False,
    resume: Resume = False,
    out: options.Out = None,
    page: options.Page = None,
    force: options.Force = False,
    plugin: options.Plugin = None,
    debug: options.Debug = False,
) -> None:
    """What AdamW trains: a transformer on text, dense and with few bytes, at AdamW's own learning rate.

    All workers are simulated in one process and exchange real messages; the loss is that of a tenth of the text that
    training never sees. Rules that bring their own Adam (memadam) run with SGD, all others with AdamW. The record is
    written run by run: Ctrl-C keeps what was done, and --resume goes on. With --every workers train by themselves and
    exchange once in H steps how far they moved; bytes are still set beside an all-reduce at every step.

    **Examples**

      thinwire reproduce adaptive

      thinwire reproduce adaptive --every 15,30 --steps 990

      thinwire reproduce adaptive --text tinyshakespeare.txt --scale full --seeds 3 --page adaptive.html

      thinwire reproduce adaptive --methods "dense; memadam(topk(0.02)); memsgd(topk(0.02))" --steps 200 --rate 1gbit
    """
    check_command(page=page)
    shown = replace(ADAPTIVE_EXPERIMENT, sections=partial(sections, rate=rate_of(rate)))
    outputs = Outputs.of(context, "adaptive", out, page, resume=resume, force=force, as_json=as_json)
    windows = options.integers(every, "--every") if every is not None else ()
    usual = ["dense", *adaptive_settings.OUTER] if windows else list(adaptive_settings.METHODS)
    chosen = [one.strip() for one in methods.split(";")] if methods else usual
    name = "python" if text is None else text.rsplit("/", 1)[-1]
    where = scale or ("full" if torch.cuda.is_available() else "small")
    wanted = adaptive_settings.settings(chosen, where, name, steps, seeds, ingredients=ingredients, every=windows)
    run_experiment(
        shown,
        {setting: setting.steps for setting in wanted},
        lambda setting, watch: adaptive_runs.run(setting, text, watch),
        outputs,
    )

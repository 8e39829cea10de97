"""What `thinwire reproduce memsgd` does: the runs that were asked for, their tables, record and page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thinwire.cli.console import console, say
from thinwire.cli.experiment import figure_table, finish, print_lines, run_all
from thinwire.cli.outputs import noted
from thinwire.papers.memsgd.claims import claims
from thinwire.papers.memsgd.data import GENERATED, problem_of
from thinwire.papers.memsgd.figures import facts, table, title
from thinwire.papers.memsgd.paper import DEFECTS
from thinwire.papers.memsgd.records import KIND, read_outcomes
from thinwire.papers.memsgd.run import Outcome, run
from thinwire.papers.memsgd.settings import Scale, check, settings
from thinwire.problems.data_folder import data_folder
from thinwire.problems.datasets import BREAST_CANCER, held, places, stem
from thinwire.report.memsgd import write_memsgd_page
from thinwire.training.groups import grouped
from thinwire.training.outcomes import Writer

REUTERS = "reuters21578_tfidf"


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    names: Sequence[str]
    """Of data sets; a path where it is one's file."""
    figures: Sequence[str]
    data: str | None
    most: int | None
    """Steps of a run at most."""
    threads: Sequence[int]
    repeats: int
    epochs: int | None


@dataclass(frozen=True)
class Files:
    """What the command leaves, and what becomes of what is there."""

    record: Path
    page: Path | None
    resume: bool
    force: bool

    def outcomes(self) -> list[Outcome]:
        """The runs that the record holds already."""
        if not self.resume or not self.record.exists():
            return []
        with noted():
            return read_outcomes(self.record)


def names(dataset: str | None, data: str | None, samples: int) -> list[str]:
    """What is asked for; else the file of --data; else the generated set beside Reuters, where the folder holds it."""
    made_up, folder = f"{GENERATED}-{samples}", data_folder(data)
    if dataset is not None:
        return [made_up if name.strip() == GENERATED else name.strip() for name in dataset.split(",")]
    if folder is not None and folder.is_file():
        return [stem(folder)]  # never a path: records and pages are passed on
    return [made_up, REUTERS if folder is not None and REUTERS in held(folder) else BREAST_CANCER]


def reproduce(request: Request, command: Sequence[str], files: Files, *, as_json: bool) -> None:
    """Every run that the record does not hold yet; then tables and page."""
    check(request.figures, request.threads, request.repeats, request.epochs)
    where = places(request.names, request.data)
    wanted = settings(
        [Scale.of(problem_of(name, data), request.most) for name, data in where.items()],
        request.figures,
        request.threads,
        request.repeats,
        request.epochs,
    )
    outcomes, whole = run_all(
        {
            setting: setting.epochs * len(problem_of(setting.dataset, where[setting.dataset]).samples)
            for setting in wanted
        },
        {one.setting: one for one in files.outcomes()},
        lambda setting, watch: run(setting, where[setting.dataset], watch),
        Writer(files.record, KIND, command, resume=files.resume, force=files.force),
        quiet=as_json,
    )
    _show(outcomes, as_json)
    if files.page is not None and outcomes:
        write_memsgd_page(outcomes, files.page)
    finish({"record": files.record, "report": files.page}, files.record, outcomes, whole=whole, quiet=as_json)


def _show(outcomes: Sequence[Outcome], as_json: bool) -> None:
    if as_json:
        print_lines(outcomes)
        return
    out = console()
    for group, runs in grouped(outcomes):
        head, *rows = table(runs)
        out.print(figure_table(f"{title(*group)}: {'; '.join(facts(runs))}", head, rows))
        for sentence in (*claims(runs), *(f"published figure: {defect}" for defect in DEFECTS[group[0]])):
            say(out, f"• {sentence}")
        say(out, "")

"""Options that several commands share, with the help that the user reads, and checks before the work begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from thinwire.errors import ConfigError
from thinwire.extras import check_packages
from thinwire.link import rate_of
from thinwire.report.page import PACKAGES
from thinwire.training.config import OPTIMIZERS, SCHEDULES
from thinwire.training.plugins import load_plugin
from thinwire.training.tasks import TASKS

Number = TypeVar("Number", int, float)
DATA = {"sklearn": "tasks", "scipy": "tasks"}
"""Packages that data sets and smoothness constants need."""
THREADS = {"numba": "fast"}
"""Packages that the lock-free engine needs."""


def one_of(names: Iterable[str]) -> str:
    """The names there are, in words: a, b or c."""
    return _in_words(names, "or")


def _in_words(names: Iterable[str], joint: str) -> str:
    *most, last = names
    return f"{', '.join(most)} {joint} {last}" if most else last


def _load_plugins(paths: list[Path] | None) -> list[Path] | None:
    """Execute the user's files before anything else is read."""
    for path in paths or ():
        load_plugin(path)
    return paths


optional = partial(typer.Option, show_default=False)
"""An option whose help says itself what holds without it."""
ABOUT = "; ".join(f"{name} ({task.about})" for name, task in TASKS.items())
READS = "; ".join(f"for {name}: {task.reads}" for name, task in TASKS.items() if task.reads)
TaskName = Annotated[str, typer.Argument(metavar="TASK", help=f"{ABOUT}.")]
Seeds = Annotated[str, typer.Option("--seeds", help="Seeds, with commas between them.")]
Workers = Annotated[int, typer.Option("--workers", "-n", help="Number of workers.")]
Engine = Annotated[
    str, typer.Option("--engine", help="ddp: real processes on gloo; sim: simulated in this process, same numbers.")
]
Steps = Annotated[int | None, optional("--steps", help="Training steps (default: the task's).")]
Batch = Annotated[int | None, optional("--batch", help="Samples of one worker's step (default: the task's).")]
Optimizer = Annotated[str | None, optional("--optimizer", help=f"{one_of(OPTIMIZERS)} (default: the task's).")]
Schedule = Annotated[
    str | None, optional("--schedule", help=f"Learning rate: {one_of(SCHEDULES)} (default: the task's).")
]
Data = Annotated[Path | None, optional("--data", help=f"{READS}.")]
Libsvm = Annotated[str | None, optional("--data", help="A LIBSVM file, or a folder of them (default: THINWIRE_DATA).")]
Evaluations = Annotated[int, typer.Option("--evaluations", help="How often the test metric is taken during a run.")]
Out = Annotated[Path | None, optional("--out", "-o", help="Where the record goes (default: runs/TASK-TIME.jsonl).")]
Page = Annotated[Path | None, optional("--page", help="Also write the report page here.")]
Force = Annotated[bool, typer.Option("--force", help="Write over files that exist.")]
Plugin = Annotated[
    list[Path] | None,
    optional(
        "--plugin",
        callback=_load_plugins,
        is_eager=True,
        metavar="FILE",
        help="A Python file that registers compressors or rules of your own; may be given several times.",
    ),
]
Rate = Annotated[
    str | None,
    optional("--rate", help="Emulate a link of this rate before each worker, such as 100mbit (--engine ddp only)."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show a failure's traceback.")]


def record_path(out: Path | None, name: str) -> Path:
    """The record's path: as given, or a new name under `runs/` that carries the time."""
    if out is not None:
        return out
    stem = f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
    return next(path for path in (Path("runs") / f"{name}.jsonl" for name in names) if not path.exists())


def link_rate(text: str | None) -> float | None:
    """The bits a second of an emulated link; None where there is to be none."""
    return None if text is None or text.strip().lower() == "none" else rate_of(text)


def integers(text: str, option: str) -> list[int]:
    """The whole numbers of a comma-separated option."""
    return _numbers(text, int, option, "0,1,2")


def decimals(text: str, option: str) -> list[float]:
    """The numbers of a comma-separated option."""
    return _numbers(text, float, option, "0.1,0.05")


def _numbers(text: str, kind: Callable[[str], Number], option: str, example: str) -> list[Number]:
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        problem = f"{option} takes numbers with commas between them, got {text!r}; for example {option} {example}"
        raise ConfigError(problem) from None


def at_least_one(**values: int) -> None:
    """Refuse a number below 1, by the names of all."""
    if min(values.values()) < 1:
        names, got = (_in_words(list(map(str, each)), "and") for each in (values, values.values()))
        raise ConfigError(f"{names} must be at least 1, got {got}")


def check_command(*needed: Mapping[str, str], page: Path | None = None) -> None:
    """Look for a command's optional packages before it begins; a page needs what pages need.

    A `BackendError` names all that are missing, with one line that installs them.
    """
    together: dict[str, str] = {}
    for each in (*needed, PACKAGES if page is not None else {}):
        together |= each
    check_packages(together, "this command")

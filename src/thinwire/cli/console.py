"""Consoles: results on standard output, errors on standard error."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from thinwire.errors import RecordWarning
from thinwire.report.destination import FORCE, RESUME, check_destination, check_distinct

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended, by custom 128 + SIGINT."""
PLAIN_WIDTH = 160
"""Columns of output that is not a terminal: wide enough that no table row is cut."""


def console() -> Console:
    """Standard output; when it is no terminal it is wide and without colours."""
    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)


def say(out: Console, text: str, style: str = "") -> None:
    """Print words as they are: no markup is read in them, and no line is broken."""
    out.print(Text(text, style=style), soft_wrap=True)


def show_error(message: str) -> None:
    """A short red message; its lines stay as they are, so that a caret stays under its place."""
    err = Console(stderr=True, highlight=False)
    err.print(Text("error: ", style="bold red") + Text(message, style="red"), soft_wrap=True)


def check_page(page: Path | None, option: str = "--page", *, force: bool) -> None:
    """Refuse a page that could not be written, or would be written over something, when the work is done."""
    if page is not None:
        check_destination(page, "page", option, force=force)


def check_outputs(record: Path, page: Path | None, *, force: bool, resume: bool | None = None) -> None:
    """The same for a command that leaves a record, with which some can go on (`resume`), and perhaps a page."""
    check_page(page, force=force)
    if page is not None:
        check_distinct(record, page, "--out and --page")
    if not resume:
        check_destination(record, "record", "--out", force=force, remedy=FORCE if resume is None else RESUME)


@contextmanager
def noted() -> Iterator[None]:
    """Show what is said about records that were cut off as notes on standard error."""
    with warnings.catch_warnings(record=True, category=RecordWarning, action="always") as caught:
        yield
    for one in caught:
        say(Console(stderr=True, highlight=False), f"note: {one.message}", "yellow")

"""The files that a command will leave, checked before its work begins, and notes about records that it reads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from thinwire.cli.console import say
from thinwire.errors import RecordWarning
from thinwire.report.destination import FORCE, RESUME, check_destination, check_distinct


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

"""Optional packages of a command, looked for before it begins: all that are missing are named at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from thinwire.extras import check_packages
from thinwire.report.template import REPORT

DATA = {"sklearn": "tasks", "scipy": "tasks"}
"""What data sets and smoothness constants need."""
THREADS = {"numba": "fast"}
"""What the lock-free engine needs."""


def check_command(*needed: Mapping[str, str], page: Path | None = None) -> None:
    """A `BackendError` with one line that installs whatever is missing; a page needs what pages need."""
    together: dict[str, str] = {}
    for each in (*needed, REPORT if page is not None else {}):
        together |= each
    check_packages(together, "this command")

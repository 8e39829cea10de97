"""What all commands of `thinwire bench` share: options, and rows that are shown as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Protocol, TypeVar

import typer
from rich.progress import track

from thinwire.cli.console import console, say

Repeats = Annotated[int, typer.Option("--repeats", help="Measured rounds; the table shows medians.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a row instead of the table.")]


class Plain(Protocol):
    """A row of figures."""

    def plain(self) -> dict[str, Any]:
        """As values that JSON knows."""


Row = TypeVar("Row", bound=Plain)


def measured(rows: Iterator[Row], as_json: bool) -> Iterator[Row]:
    """The rows, with a progress bar, or with a line of JSON for each."""
    out = console()
    for row in rows if as_json else track(rows, "measuring", console=out, transient=True, disable=not out.is_terminal):
        if as_json:
            say(out, json.dumps(row.plain()))
        yield row

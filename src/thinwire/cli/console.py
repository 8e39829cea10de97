"""Consoles: results on standard output, errors on standard error."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

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

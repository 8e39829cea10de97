"""The entry point: the commands, and errors shown as messages instead of tracebacks."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from thinwire.cli.advise import advise
from thinwire.cli.bench import bench
from thinwire.cli.compare import compare
from thinwire.cli.console import INTERRUPTED, show_error
from thinwire.cli.demo import demo
from thinwire.cli.info import info
from thinwire.cli.lab import lab
from thinwire.cli.report import report
from thinwire.cli.reproduce import reproduce
from thinwire.cli.scale import scale
from thinwire.cli.theory import theory
from thinwire.cli.train import train
from thinwire.errors import ThinwireError
from thinwire.version import __version__

app = typer.Typer(
    name="thinwire",
    epilog="Start with: thinwire demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"thinwire {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Data-parallel training that sends few bytes and remembers what it did not send."""


for command in (demo, train, compare, report, theory, lab, advise, scale, info):
    app.command(no_args_is_help=command in (train, compare, report, theory, scale))(command)
app.add_typer(bench, name="bench")
app.add_typer(reproduce, name="reproduce")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 1 for a run that came to nothing, 2 for a mistake in what was asked."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(words, prog_name="thinwire", obj=words)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            show_error("interrupted; the workers were stopped")
        return ended.code if isinstance(ended.code, int) else 0
    except ThinwireError as error:
        show_error(str(error))
        if "--debug" in words:
            traceback.print_exception(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`thinwire report`: records in, one page out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli import options
from thinwire.cli.console import check_page, console, noted, say
from thinwire.cli.options import check_command
from thinwire.papers import read_sections
from thinwire.report.destination import check_distinct
from thinwire.report.page import write_page
from thinwire.training.formatting import plural


def report(
    records: Annotated[list[Path], typer.Argument(metavar="RECORD...", help="Records that any command wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the page goes.")] = Path("report.html"),
    force: options.Force = False,
    plugin: options.Plugin = None,
    debug: options.Debug = False,
) -> None:
    """Turn records into one self-contained HTML page.

    A section for each task, or for each figure of a paper: tables, charts, what was found, and where it comes from.
    Records of different commands may stand together. The page is made from the records alone and needs no network. A
    run that was cut off is drawn as far as it got.

    **Examples**

      thinwire report runs/digits-20260101-120000.jsonl

      thinwire report runs/*.jsonl --out everything.html
    """
    check_command(page=out)
    check_page(out, "--out", force=force)
    for record in records:
        check_distinct(record, out, "a record and --out")
    with noted():
        sections, runs = read_sections(records)
    write_page(sections, out)
    say(console(), f"report: {out} ({plural(runs, 'run')})")

"""Sections in a terminal: a table with its heading, what was found, and how to read it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from thinwire.cli.console import console, say
from thinwire.report.page import Section


def show_sections(sections: Sequence[Section]) -> None:
    """Each section's table and sentences, then the notes of all, each once."""
    out = console()
    for section in sections:
        out.print(section_table(section))
        for sentence in section.sentences:
            say(out, f"• {sentence}" if len(section.sentences) > 1 else sentence)
    for note in dict.fromkeys(note for section in sections for note in section.notes):
        say(out, note, "dim")


def section_table(section: Section) -> Table:
    """A section's table under its heading; only the first column may be folded, and peers are dim."""
    heading = " · ".join((section.title, *section.facts))
    table = Table(title=heading, title_style="bold", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    head, *rows = section.table
    high = max(name.count("\n") for name in head)
    for place, name in enumerate(head):
        name = "\n" * (high - name.count("\n")) + name
        table.add_column(name, justify="right" if place else "left", no_wrap=place > 0, overflow="fold")
    for place, row in enumerate(rows):
        style = "dim" if section.looks and section.looks[place].peer else ""
        table.add_row(*(Text(cell, style=style) for cell in row))
    return table

"""`thinwire info`: what is installed here, and the names that a method's text may use."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from thinwire.cli.console import console
from thinwire.training.inventory import inventory


def info() -> None:
    """Show versions, devices, optional packages, and the names of methods and tasks.

    **Example**

      thinwire info
    """
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in inventory().items():
        table.add_row(Text(name, style="bold"), Text(value))
    console().print(table)

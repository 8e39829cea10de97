"""The grid: rows of figures, which every benchmark yields, as JSON and as lines of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from thinwire.report.provenance import cpu_model
from thinwire.training.formatting import NOTHING, plural


@dataclass(frozen=True)
class Measured:
    """A row of figures."""

    def plain(self) -> dict[str, Any]:
        """As values that JSON knows."""
        return asdict(self)


def grid(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, title: str | None = None) -> Table:
    """Cells under a head: so many columns to the left, numbers to the right; nothing is folded."""
    table = Table(title=title, title_style="bold", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(head):
        table.add_column(name, justify="left" if place < left else "right", no_wrap=True)
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table


def show_ms(value: float | None) -> str:
    """Milliseconds with three digits or more; a dash where there are none."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def show_times(value: float | None) -> str:
    """A ratio with three digits; a dash where there is none."""
    return NOTHING if value is None else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def machine(device: str = "cpu") -> str:
    """The processor and its threads, or the GPU."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{cpu_model()}, {plural(torch.get_num_threads(), 'thread')}"

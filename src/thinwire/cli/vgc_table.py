"""The table of `thinwire reproduce vgc`: what was found, beside what the paper prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from thinwire.papers.vgc.paper import Figure
from thinwire.papers.vgc.result import Result
from thinwire.training.formatting import NOTHING, plural, show_metric, show_ratio

NOTES = (
    "Ratios. numbers: parameters over numbers that a worker sends in a step, as the paper counts (of QSGD those that "
    "are not zero); bytes: 4 bytes a parameter over the bytes of a message; effective: 2(p−1)c/p², how many times "
    "faster p workers gather messages of ratio c than they all-reduce; none is that all-reduce itself: 1.",
    "The paper's figures are after 300 epochs, the median of 5 runs; (…): recalled or contradictory, not certain.",
)


def vgc_table(found: Sequence[Result]) -> Table:
    """Accuracy, the three ratios and speed; the paper's accuracy and ratio; all that one optimizer gave."""
    table = Table(title=_title(found), title_style="bold", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("\nmethod", overflow="fold")
    for head in (
        "test\naccuracy",
        "ratio,\nnumbers",
        "ratio,\nbytes",
        "ratio,\neffective",
        "steps\na second",
        "paper's\naccuracy",
        "paper's\nratio",
    ):
        table.add_column(head, justify="right", no_wrap=True)
    for one in found:
        table.add_row(*(Text(cell) for cell in _cells(one)))
    return table


def _title(found: Sequence[Result]) -> str:
    config = found[0].row.config
    return " · ".join(
        (
            config.task,
            f"{plural(config.workers, 'worker')} of {config.batch}",
            f"{config.optimizer} at {config.lr:g}",
            f"{plural(config.evaluations, 'epoch')} ({config.steps} steps)",
            plural(len(found[0].row.runs), "seed"),
            config.device,
        )
    )


def _cells(one: Result) -> list[str]:
    row = one.row
    printed = one.paper.printed(row.config.optimizer) if one.paper else None
    return [
        one.label,
        show_metric(row),
        show_ratio(row.ratio_elements),
        show_ratio(row.ratio_message),
        show_ratio(row.ratio_effective),
        f"{row.config.steps / row.seconds.mean:.1f}" if row.seconds and not row.diverged else NOTHING,
        _shown(printed.accuracy, "{:.1f} %") if printed else NOTHING,
        _shown(printed.ratio, "{:,.1f}×") if printed else NOTHING,
    ]


def _shown(figure: Figure, form: str) -> str:
    """A printed figure, in parentheses where it is not certain."""
    text = form.format(figure.value)
    return text if figure.certain else f"({text})"

"""The sections of VGC's experiment: accuracy and three ratios beside the paper's, and the charts of training."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.papers.vgc.claims import PrintedNumber, VGCRow, claims
from thinwire.report.page import Section, section_for_each
from thinwire.report.record_file import Experiment
from thinwire.training.formatting import NOTHING, plural, show_metric, show_ratio
from thinwire.training.records import RunRecord, runs_of_lines
from thinwire.training.sections import charts, looks_of, origins
from thinwire.training.summary import Row, summarise

NOTES = (
    "Ratios. numbers: parameters over numbers that a worker sends in a step, as the paper counts (of QSGD those that "
    "are not zero); bytes: 4 bytes a parameter over the bytes of a message; effective: 2(p−1)c/p², how many times "
    "faster p workers gather messages of ratio c than they all-reduce; none is that all-reduce itself: 1.",
    "The paper's figures are after 300 epochs, the median of 5 runs; (…): recalled or contradictory, not certain.",
)
HEAD = (
    "method", "test\naccuracy", "ratio,\nnumbers", "ratio,\nbytes", "ratio,\neffective", "steps\na second",
    "paper's\naccuracy", "paper's\nratio",
)  # fmt: skip


def results(runs: Sequence[RunRecord]) -> list[VGCRow]:
    """One row a method, with what the paper prints for it."""
    return [VGCRow(row) for row in summarise(runs)]


def sections(runs: Sequence[RunRecord]) -> list[Section]:
    """A section for each task, optimizer and number of steps: the paper has a table for each."""
    return section_for_each(runs, lambda run: (run.config.task, _half(run), run.config.steps), _section)


def _half(run: RunRecord) -> str:
    """The optimizer by which the paper's table is cut: SGD stands beside rules that bring the momentum."""
    return "momentum" if run.config.optimizer == "sgd" else run.config.optimizer


def _section(runs: Sequence[RunRecord]) -> Section:
    found = results(runs)
    rows, labels = [one.row for one in found], [one.label for one in found]
    looks = looks_of(rows)
    return Section(
        f"VGC · {rows[0].config.task}",
        _facts(found),
        claims(found),
        [HEAD, *map(_cells, found)],
        charts(rows, looks, labels),
        looks=looks,
        provenance=origins(runs),
        notes=NOTES,
    )


def _facts(found: Sequence[VGCRow]) -> list[str]:
    config = found[0].row.config
    return [
        f"{plural(config.workers, 'worker')} of {config.batch}",
        f"{config.optimizer} at {config.lr:g}",
        f"{plural(config.evaluations, 'epoch')} ({config.steps} steps)",
        plural(len(found[0].row.runs), "seed"),
        config.device,
    ]


def _cells(one: VGCRow) -> list[str]:
    row = one.row
    printed = one.paper.printed(row.config.optimizer) if one.paper else None
    return [
        one.label,
        show_metric(row),
        show_ratio(row.ratio_elements),
        show_ratio(row.ratio_message),
        show_ratio(row.ratio_effective),
        _speed(row),
        _shown(printed.accuracy, "{:.1f} %") if printed else NOTHING,
        _shown(printed.ratio, "{:,.1f}×") if printed else NOTHING,
    ]


def _speed(row: Row) -> str:
    """Steps a second, as far as the runs came."""
    seconds = sum(run.end["seconds"] for run in row.runs)
    return f"{sum(run.end['steps'] for run in row.runs) / seconds:.1f}" if seconds and not row.diverged else NOTHING


def _shown(number: PrintedNumber, form: str) -> str:
    """A printed number, in parentheses where it is not certain."""
    text = form.format(number.value)
    return text if number.certain else f"({text})"


VGC_EXPERIMENT = Experiment("vgc", runs_of_lines, sections)

"""The sections of the Mem-SGD experiments: for each figure and data set a table beside the paper's, and charts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from math import inf

from thinwire.papers.memsgd.claims import DEFECTS, NEAR, best, claims, published, share, speedups, threshold
from thinwire.papers.memsgd.runs import LossPoint, MemSGDRun
from thinwire.papers.memsgd.settings import GENERATED, REUTERS
from thinwire.report.page import Axis, Chart, Section, lines, section_for_each
from thinwire.report.record_file import Experiment, one_line_each
from thinwire.training.formatting import NOTHING, plural, show_bytes, show_count

TITLES = {
    "theory": "Theory's step sizes (figure 2)",
    "bits": "Bits beside QSGD (figure 3)",
    "cores": "Many cores (figure 4)",
    "memories": "Many memories",
}
NOTES = {
    GENERATED: "made up in the shape of epsilon (dense, unit rows, d = 2,000, one strong direction): not epsilon",
    REUTERS: "Reuters-21578 with TF-IDF weights: not RCV1, of which it is a small relative",
    "rcv1_vw_train1000": "1,000 real rows of RCV1 (the paper has 677,399): a check of scale, no more",
    "rcv1_vw_test500": "500 real rows of RCV1 (the paper has 677,399): a check of scale, no more",
    "epsilon_train100": "100 real rows of epsilon (the paper has 400,000): a check of scale, no more",
    "epsilon_test100": "100 real rows of epsilon (the paper has 400,000): a check of scale, no more",
}
ABOVE = "(f − f*) / f*"
LOSS = Axis("", log=True)
"""ABOVE, in charts whose title names it."""
Rows = list[list[str]]
Labelled = tuple[str, list[float], list[float]]
"""A label, x and y."""


def sections(runs: Sequence[MemSGDRun]) -> list[Section]:
    """A section for each figure and data set, in the runs' order."""
    return section_for_each(runs, lambda one: one.setting.group, _section)


def _section(runs: Sequence[MemSGDRun]) -> Section:
    figure, dataset = runs[0].setting.group
    table, charts = PARTS[figure]
    defects = [f"Defect of the published figure: {defect}" for defect in DEFECTS[figure]]
    return Section(title(figure, dataset), _facts(runs[0]), claims(runs), table(runs), charts(runs), notes=defects)


def title(figure: str, dataset: str) -> str:
    """With a word on data that could be taken for the paper's."""
    return f"Mem-SGD · {TITLES[figure]} · {dataset}" + (" (not RCV1)" if dataset.startswith("reuters") else "")


def note_of(name: str) -> str:
    """What must be said of a data set wherever it appears; empty where there is nothing."""
    return NOTES.get(GENERATED if name.startswith(GENERATED) else name, "")


def _facts(first: MemSGDRun) -> list[str]:
    """What all runs of a figure share."""
    kind = f"sparse rows ({first.entries:.0f} numbers)" if first.sparse else "dense rows"
    shape = f"{first.samples:,} samples, d = {first.d:,}, {kind}"
    note = note_of(first.setting.dataset)
    facts = [shape, "λ = 1/n", f"f* = {first.least:.5f}", plural(first.setting.epochs, "epoch")]
    return [*facts, note] if note else facts


def _course(label: str, one: MemSGDRun, x: Callable[[MemSGDRun, LossPoint], float]) -> Labelled:
    """How far above f* the run was, after its start, against some measure of how far it had come."""
    return _line(label, [(x(one, point), one.above(point.loss)) for point in one.curve[1:] if point.loss > one.least])


def _line(label: str, points: Sequence[tuple[float, float]]) -> Labelled:
    return label, [x for x, _ in points], [y for _, y in points]


# ------------------------------------------------------------------------------------------------------------- figure 2


def _theory_table(runs: Sequence[MemSGDRun]) -> Rows:
    paper = published(runs[0].sparse)
    head = ["above f*", "a", "at most", "1 epoch", "half way", "end"]
    rows = [[*head, f"{paper.name}, 1 epoch", f"{paper.name}, {paper.epochs} epochs"]]
    for one in runs:
        half = one.at_epoch(one.setting.epochs / 2)
        looks = (max(point.loss for point in one.curve), one.at_epoch(1).loss, half.loss)
        theirs = paper.theory.get(one.setting.label)
        printed = [share(loss / paper.least - 1) for loss in theirs] if theirs else [NOTHING, NOTHING]
        ours = [*(share(one.above(loss)) for loss in looks), share(one.end)]
        rows.append([one.setting.label, f"{one.setting.size:,.0f}", *ours, *printed])
    return rows


def _theory_charts(runs: Sequence[MemSGDRun]) -> list[Chart]:
    def chart(name: str, note: str, chosen: Sequence[MemSGDRun]) -> Chart:
        courses = [_course(one.setting.label, one, lambda it, point: point.step / it.samples) for one in chosen]
        return Chart(name, note, Axis("epochs", zero=True, noun="epochs"), Axis(ABOVE, log=True), lines(courses))

    plain = [one for one in runs if one.setting.as_theory_has_it]
    without = [one for one in runs if not one.setting.as_theory_has_it]
    return [
        chart("As theory has it", "with memory and delay; the weighted mean of iterates", plain),
        chart("Without delay, without memory", "a = 1 (dense) or 10 (sparse)", without),
    ]


# ------------------------------------------------------------------------------------------------------------- figure 3


def _bits_table(runs: Sequence[MemSGDRun]) -> Rows:
    paper = published(runs[0].sparse)
    head = ["method", "γ₀", "end above f*", "epochs to 1 %", "paper's count", "honest", "thinwire's"]
    return [[*head, f"{paper.name}, epochs", f"{paper.name}, sent"], *(_bits_row(one) for one in best(runs))]


def _bits_row(one: MemSGDRun) -> list[str]:
    printed = published(one.sparse).bits
    near, label = one.reaches((1 + NEAR) * one.least), one.setting.label
    counts = [NOTHING] * 4 if near is None else [_epochs(one, near), *(show_bytes(b / 8) for b in one.bits_at(near))]
    theirs = printed.get(label)
    if theirs is None:
        beside = ["never" if label in printed else NOTHING, NOTHING]
    else:
        beside = [f"{theirs.epochs:g}", show_bytes(theirs.megabytes * 2**20)]
    return [label, f"{one.setting.size:g}", share(one.end), *counts, *beside]


def _epochs(one: MemSGDRun, point: LossPoint) -> str:
    return f"{point.step / one.samples:.1f}"


def _bits_charts(runs: Sequence[MemSGDRun]) -> list[Chart]:
    def chart(way: int, note: str) -> Chart:
        courses = [_course(one.setting.label, one, lambda it, point: it.bits_at(point)[way] / 8) for one in best(runs)]
        return Chart(f"{ABOVE} against bytes", note, Axis("bytes sent", log=True, unit="B"), LOSS, lines(courses))

    return [
        chart(0, "as the paper counts"),
        chart(1, "positions, signs, norms and the start as they are"),
        chart(2, "thinwire's own messages"),
    ]


# ------------------------------------------------------------------------------------------------------------- figure 4


def _cores_table(runs: Sequence[MemSGDRun]) -> Rows:
    paper, loss = published(runs[0].sparse), threshold(runs)
    head = ["method", "threads", "µs a step", "seconds to the loss", "speed-up", "least – most", "end above f*"]
    rows = [[*head, f"{paper.name}, speed-up", f"{paper.name}, µs a step"]]
    for (label, count), found in speedups(runs).items():
        same = [one for one in runs if (one.setting.label, one.setting.threads) == (label, count)]
        each = statistics.median(1e6 * one.last.seconds / one.last.step for one in same)
        time = statistics.median(one.seconds_to(loss) for one in same)
        kind = same[0].setting.family
        theirs = paper.speedups[kind].get(count)
        rows.append(
            [label, str(count), show_count(each), f"{time:.3f}", f"{statistics.median(found):.2f}",
             f"{found[0]:.2f} – {found[-1]:.2f}", share(statistics.median(one.end for one in same)),
             NOTHING if theirs is None else f"{theirs:g}", f"{paper.microseconds[kind]:g}" if count == 1 else NOTHING]
        )  # fmt: skip
    return rows


def _cores_charts(runs: Sequence[MemSGDRun]) -> list[Chart]:
    found, paper = speedups(runs), published(runs[0].sparse)
    labels = dict.fromkeys(label for label, _ in found)
    ours = [
        _line(
            f"{label}, here",
            [(count, statistics.median(each)) for (name, count), each in found.items() if name == label],
        )
        for label in labels
    ]
    theirs = [_line(f"{kind}, {paper.name}", [(1, 1.0), *line.items()]) for kind, line in paper.speedups.items()]
    courses = [
        _course(f"{one.setting.label}, {one.setting.threads}", one, lambda _, point: point.seconds)
        for one in runs
        if one.setting.seed == 0
    ]
    own = "over the method's own time on one thread"
    threads, seconds = Axis("threads", log=True, noun="threads"), Axis("seconds", zero=True, noun="seconds")
    return [
        Chart("Speed-up", own, threads, Axis("", log=True), lines([*ours, *theirs])),
        Chart(f"{ABOVE} against time", "method, threads; the first repeat", seconds, LOSS, lines(courses)),
    ]


# -------------------------------------------------------------------------------------------------------- many memories


def _memories_table(runs: Sequence[MemSGDRun]) -> Rows:
    counts = list(dict.fromkeys(one.setting.memories for one in runs))
    rows = [["end above f*", *(f"{count} memories" if count > 1 else "1 memory" for count in counts)]]
    for label in dict.fromkeys(one.setting.label for one in runs):
        ends = {one.setting.memories: one.end for one in runs if one.setting.label == label}
        rows.append([label, *(share(ends[count]) if count in ends else NOTHING for count in counts)])
    return rows


def _memories_charts(runs: Sequence[MemSGDRun]) -> list[Chart]:
    ends = []
    for label in dict.fromkeys(one.setting.label for one in runs):
        same = [one for one in runs if one.setting.label == label and 0 < one.end < inf]
        ends.append(_line(label, [(one.setting.memories, one.end) for one in same]))
    memories = Axis("memories", log=True, noun="memories")
    return [Chart("Where runs end", "after as many steps in all", memories, Axis(ABOVE, log=True), lines(ends))]


Part = tuple[Callable[[Sequence[MemSGDRun]], Rows], Callable[[Sequence[MemSGDRun]], list[Chart]]]
PARTS: dict[str, Part] = {
    "theory": (_theory_table, _theory_charts),
    "bits": (_bits_table, _bits_charts),
    "cores": (_cores_table, _cores_charts),
    "memories": (_memories_table, _memories_charts),
}
"""Of each figure its table, whose first row is the head, and its charts."""
MEMSGD_EXPERIMENT = Experiment("memsgd", one_line_each("memsgd", MemSGDRun.of_plain), sections)

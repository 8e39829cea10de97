"""The page of the Mem-SGD experiments, from their record alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from thinwire.papers.memsgd.claims import claims
from thinwire.papers.memsgd.figures import best, bits_at, facts, speedups, table, title
from thinwire.papers.memsgd.paper import DEFECTS, published
from thinwire.papers.memsgd.run import Outcome, Point
from thinwire.report.figures import Axis, Chart, Section, lines, write_figures
from thinwire.training.groups import grouped

ABOVE = "(f − f*) / f*"
LOSS = Axis("", log=True)
"""ABOVE, in charts whose title names it."""
Line = tuple[str, list[float], list[float]]
"""A label, x and y."""


def write_memsgd_page(outcomes: Sequence[Outcome], path: Path) -> None:
    """A section for each figure and data set."""
    write_figures([_section(group, runs) for group, runs in grouped(outcomes)], path)


def _section(group: tuple[str, str], runs: Sequence[Outcome]) -> Section:
    charts: dict[str, Callable[[Sequence[Outcome]], list[Chart]]] = {
        "theory": _theory,
        "bits": _bits,
        "cores": _cores,
        "memories": _memories,
    }
    defects = [f"Defect of the published figure: {defect}" for defect in DEFECTS[group[0]]]
    return Section(title(*group), facts(runs), [*claims(runs), *defects], table(runs), charts[group[0]](runs))


def _course(label: str, one: Outcome, x: Callable[[Outcome, Point], float]) -> Line:
    """How far above f* the run was, after its start, against some measure of how far it had come."""
    points = [(x(one, point), one.above(point.loss)) for point in one.curve[1:] if one.above(point.loss) > 0]
    return _line(label, points)


def _line(label: str, points: Sequence[tuple[float, float]]) -> Line:
    return label, [x for x, _ in points], [y for _, y in points]


def _theory(runs: Sequence[Outcome]) -> list[Chart]:
    def chart(name: str, note: str, chosen: Sequence[Outcome]) -> Chart:
        courses = [_course(one.setting.label, one, lambda it, point: point.step / it.samples) for one in chosen]
        return Chart(name, note, Axis("epochs", zero=True, noun="epochs"), Axis(ABOVE, log=True), lines(courses))

    plain = [one for one in runs if "," not in one.setting.label]
    without = [one for one in runs if "," in one.setting.label]
    return [
        chart("As theory has it", "with memory and delay; the weighted mean of iterates", plain),
        chart("Without delay, without memory", "a = 1 (dense) or 10 (sparse)", without),
    ]


def _bits(runs: Sequence[Outcome]) -> list[Chart]:
    def chart(way: int, note: str) -> Chart:
        courses = [_course(one.setting.label, one, lambda it, point: bits_at(it, point)[way] / 8) for one in best(runs)]
        return Chart(f"{ABOVE} against bytes", note, Axis("bytes sent", log=True, unit="B"), LOSS, lines(courses))

    return [
        chart(0, "as the paper counts"),
        chart(1, "positions, signs, norms and the start as they are"),
        chart(2, "thinwire's own messages"),
    ]


def _cores(runs: Sequence[Outcome]) -> list[Chart]:
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


def _memories(runs: Sequence[Outcome]) -> list[Chart]:
    ends = []
    for label in dict.fromkeys(one.setting.label for one in runs):
        same = [one for one in runs if one.setting.label == label and one.end > 0]
        ends.append(_line(label, [(one.setting.memories, one.end) for one in same]))
    memories = Axis("memories", log=True, noun="memories")
    return [Chart("Where runs end", "after as many steps in all", memories, Axis(ABOVE, log=True), lines(ends))]

"""The figures of the Mem-SGD experiments as tables, with the paper's numbers in the last columns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from math import inf

from thinwire.papers.memsgd.bits import honest_bits, paper_bits
from thinwire.papers.memsgd.data import note_of
from thinwire.papers.memsgd.paper import published
from thinwire.papers.memsgd.run import Outcome, Point
from thinwire.training.formatting import NOTHING, show_bytes, show_count

TITLES = {
    "theory": "Theory's step sizes (figure 2)",
    "bits": "Bits beside QSGD (figure 3)",
    "cores": "Many cores (figure 4)",
    "memories": "Many memories",
}
NEAR = 0.01
"""Above f*: where bits are counted."""
Rows = list[list[str]]


def title(figure: str, dataset: str) -> str:
    """With a word on data that could be taken for the paper's."""
    return f"{TITLES[figure]} · {dataset}" + (" (not RCV1)" if dataset.startswith("reuters") else "")


def facts(runs: Sequence[Outcome]) -> list[str]:
    """What all runs of a figure share."""
    first = runs[0]
    kind = f"sparse rows ({first.entries:.0f} numbers)" if first.sparse else "dense rows"
    shape = f"{first.samples:,} samples, d = {first.d:,}, {kind}"
    epochs = f"{first.setting.epochs} epochs"
    note = note_of(first.setting.dataset)
    return [shape, "λ = 1/n", f"f* = {first.least:.5f}", epochs, *([note] if note else [])]


def table(runs: Sequence[Outcome]) -> Rows:
    """A figure's table; its first row is the head."""
    makers: dict[str, Callable[[Sequence[Outcome]], Rows]] = {
        "theory": _theory,
        "bits": _bits,
        "cores": _cores,
        "memories": _memories,
    }
    return makers[runs[0].setting.figure](runs)


def share(value: float) -> str:
    """How far above f*, as a percentage.

    >>> share(0.00123), share(0.405), share(78.6), share(float("inf"))
    ('0.12 %', '40.5 %', '7,860 %', 'diverged')
    """
    if value == inf:
        return "diverged"
    return f"{100 * value:,.0f} %" if value >= 1 else f"{100 * value:.{1 if value >= 0.1 else 2}f} %"


# ------------------------------------------------------------------------------------------------------------- figure 2


def _theory(runs: Sequence[Outcome]) -> Rows:
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


# ------------------------------------------------------------------------------------------------------------- figure 3


def best(runs: Sequence[Outcome]) -> list[Outcome]:
    """Each method at the γ₀ that ends lowest."""
    labels = dict.fromkeys(one.setting.label for one in runs)
    return [min((one for one in runs if one.setting.label == label), key=lambda one: one.end) for label in labels]


def bits_at(one: Outcome, point: Point) -> tuple[float, float, float]:
    """By the paper's count, honestly, and of thinwire's own messages."""
    rule, steps = one.setting.rule, point.step
    each = paper_bits(rule, one.d, one.entries if one.sparse else None)
    return steps * each, honest_bits(rule, one.d, one.sparse, steps, point.written), steps * (one.wire_bits or 0.0)


def _bits(runs: Sequence[Outcome]) -> Rows:
    paper = published(runs[0].sparse)
    head = ["method", "γ₀", "end above f*", "epochs to 1 %", "paper's count", "honest", "thinwire's"]
    return [[*head, f"{paper.name}, epochs", f"{paper.name}, sent"], *(_bits_row(one) for one in best(runs))]


def _bits_row(one: Outcome) -> list[str]:
    printed = published(one.sparse).bits
    near, label = one.reaches((1 + NEAR) * one.least), one.setting.label
    counts = [NOTHING] * 4 if near is None else [_epochs(one, near), *(show_bytes(b / 8) for b in bits_at(one, near))]
    theirs = printed.get(label)
    if theirs is None:
        beside = ["never" if label in printed else NOTHING, NOTHING]
    else:
        beside = [f"{theirs.epochs:g}", show_bytes(theirs.megabytes * 2**20)]
    return [label, f"{one.setting.size:g}", share(one.end), *counts, *beside]


def _epochs(one: Outcome, point: Point) -> str:
    return f"{point.step / one.samples:.1f}"


# ------------------------------------------------------------------------------------------------------------- figure 4


def threshold(runs: Sequence[Outcome]) -> float:
    """The largest of all runs' least losses, which every run comes to: the paper's."""
    return max(min(point.loss for point in one.curve) for one in runs)


def seconds_to(one: Outcome, loss: float) -> float:
    point = one.reaches(loss)
    return inf if point is None else point.seconds


def speedups(runs: Sequence[Outcome]) -> dict[tuple[str, int], list[float]]:
    """For each method and number of threads: its fastest time on fewest threads over the time of each repeat.

    A method that was not run on these yet, because the figure broke off, has none; one that needs no step has 1.
    """
    loss = threshold(runs)
    times: dict[tuple[str, int], list[float]] = {}
    for one in runs:
        times.setdefault((one.setting.label, one.setting.threads), []).append(seconds_to(one, loss))
    fewest = min(count for _, count in times)
    return {
        (label, count): sorted(min(times[label, fewest]) / time if time else 1.0 for time in found)
        for (label, count), found in times.items()
        if (label, fewest) in times
    }


def _cores(runs: Sequence[Outcome]) -> Rows:
    paper, loss = published(runs[0].sparse), threshold(runs)
    head = ["method", "threads", "µs a step", "seconds to the loss", "speed-up", "least – most", "end above f*"]
    rows = [[*head, f"{paper.name}, speed-up", f"{paper.name}, µs a step"]]
    for (label, count), found in speedups(runs).items():
        same = [one for one in runs if (one.setting.label, one.setting.threads) == (label, count)]
        each = statistics.median(1e6 * one.last.seconds / one.last.step for one in same)
        time = statistics.median(seconds_to(one, loss) for one in same)
        kind = label.partition("-")[0]
        theirs = paper.speedups[kind].get(count)
        rows.append(
            [label, str(count), show_count(each), f"{time:.3f}", f"{statistics.median(found):.2f}",
             f"{found[0]:.2f} – {found[-1]:.2f}", share(statistics.median(one.end for one in same)),
             NOTHING if theirs is None else f"{theirs:g}", f"{paper.microseconds[kind]:g}" if count == 1 else NOTHING]
        )  # fmt: skip
    return rows


# -------------------------------------------------------------------------------------------------------- many memories


def _memories(runs: Sequence[Outcome]) -> Rows:
    counts = list(dict.fromkeys(one.setting.memories for one in runs))
    rows = [["end above f*", *(f"{count} memories" if count > 1 else "1 memory" for count in counts)]]
    for label in dict.fromkeys(one.setting.label for one in runs):
        ends = {one.setting.memories: one.end for one in runs if one.setting.label == label}
        rows.append([label, *(share(ends[count]) if count in ends else NOTHING for count in counts)])
    return rows

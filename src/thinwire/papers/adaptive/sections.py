"""The section of the experiment: every method beside dense AdamW, at its loss and its bytes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from thinwire.link import seconds_on, show_rate
from thinwire.papers.adaptive.runs import AdaptiveRun
from thinwire.papers.adaptive.settings import DENSE, RATE, SCALES
from thinwire.report.page import Axis, Chart, Section, lines, section_for_each
from thinwire.report.record_file import Experiment, one_line_each
from thinwire.training.formatting import NOTHING, plural, show_bytes

LINK = 1e8
"""Bits a second, where nothing else is asked for."""
QUARTERS = (0.25, 0.5, 0.75, 1.0)
Labelled = tuple[str, list[float], list[float]]


def sections(runs: Sequence[AdaptiveRun], rate: float = LINK) -> list[Section]:
    """A section for each model, text and length, in the runs' order."""
    return section_for_each(
        runs, lambda one: (one.setting.scale, one.setting.text, one.setting.steps), partial(_section, rate=rate)
    )


def _section(runs: Sequence[AdaptiveRun], rate: float) -> Section:
    first = runs[0]
    scale, own = SCALES[first.setting.scale], first.setting
    facts = [
        f"{first.parameters:,} parameters ({scale.depth} layers, width {scale.width})",
        f"{plural(scale.workers, 'worker')} × {scale.batch} windows of {scale.context} characters",
        f"rate {RATE:g}, warm-up and cosine to a tenth, dropout 0.2",
        plural(1 + max(one.setting.seed for one in runs), "seed"),
    ]
    title = f"Under AdamW · {own.scale} · {own.text} · {own.steps:,} steps"
    return Section(title, facts, _claims(runs), _table(runs, rate), _charts(runs, rate))


def _by_method(runs: Sequence[AdaptiveRun]) -> dict[str, list[AdaptiveRun]]:
    labels = dict.fromkeys(one.setting.label for one in runs)
    return {label: [one for one in runs if one.setting.label == label] for label in labels}


def _end(runs: Sequence[AdaptiveRun]) -> float:
    return statistics.mean(one.end for one in runs)


def _above(runs: Sequence[AdaptiveRun], dense: Sequence[AdaptiveRun]) -> str:
    """By how much the loss at the end is above dense AdamW's, over the seeds that both have."""
    theirs = {one.setting.seed: one.end for one in dense}
    shares = [one.end / theirs[one.setting.seed] - 1 for one in runs if one.setting.seed in theirs]
    return f"{statistics.mean(shares):+.1%}" if shares else NOTHING


def _dense(runs: Sequence[AdaptiveRun]) -> list[AdaptiveRun]:
    return [one for one in runs if one.setting.rule == DENSE and not one.setting.every]


def _claims(runs: Sequence[AdaptiveRun]) -> list[str]:
    dense = _dense(runs)
    return [
        f"{label}: {statistics.mean(one.ratio for one in own):.0f} × fewer bytes, "
        f"loss {_above(own, dense)} beside dense"
        for label, own in _by_method(runs).items()
        if dense and own[0] not in dense
    ]


def _table(runs: Sequence[AdaptiveRun], rate: float) -> list[list[str]]:
    steps, dense = runs[0].setting.steps, _dense(runs)
    head = ["method", *(f"{quarter * steps:,.0f}" for quarter in QUARTERS), "least – most", "best", "beside dense"]
    rows = [[*head, "a step", "fewer bytes", f"s at {show_rate(rate)}"]]
    for label, own in _by_method(runs).items():
        looks = [statistics.mean(_at(one, quarter * steps) for one in own) for quarter in QUARTERS]
        ends, best = [one.end for one in own], statistics.mean(one.best for one in own)
        sent = statistics.mean(one.sent[-1] / one.setting.steps for one in own)
        rows.append(
            [label, *(f"{loss:.3f}" for loss in looks), f"{min(ends):.3f} – {max(ends):.3f}", f"{best:.3f}",
             _above(own, dense) if dense else NOTHING, show_bytes(sent),
             f"{statistics.mean(one.ratio for one in own):.1f} ×", f"{seconds_on(rate, sent):.2g}"]
        )  # fmt: skip
    return rows


def _at(one: AdaptiveRun, step: float) -> float:
    """The loss of the look that is nearest to a step."""
    return min(one.curve, key=lambda look: abs(look.step - step)).loss


def _charts(runs: Sequence[AdaptiveRun], rate: float) -> list[Chart]:
    first = [one for one in runs if one.setting.seed == runs[0].setting.seed]
    by_steps: list[Labelled] = [
        (one.setting.label, [look.step for look in one.curve], [look.loss for look in one.curve]) for one in first
    ]
    by_bytes: list[Labelled] = [(one.setting.label, one.sent, [look.loss for look in one.curve]) for one in first]
    by_time: list[Labelled] = [(name, [seconds_on(rate, sent) for sent in x], y) for name, x, y in by_bytes]
    steps, sent = Axis("steps", zero=True, noun="steps"), Axis("bytes sent", log=True, unit="B")
    wire, on_it = Axis("seconds", log=True, unit="s"), f"at {show_rate(rate)}, computing and latency not counted"
    return [
        Chart("Held-out loss against steps", "the first seed", steps, Axis("nats a character"), lines(by_steps)),
        Chart("Held-out loss against bytes", "that a worker sends", sent, Axis("nats a character"), lines(by_bytes)),
        Chart("Held-out loss against time on the wire", on_it, wire, Axis("nats a character"), lines(by_time)),
    ]


ADAPTIVE_EXPERIMENT = Experiment("adaptive", one_line_each("adaptive", AdaptiveRun.of_plain), sections)

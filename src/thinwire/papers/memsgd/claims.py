"""The paper's claims in numbers: what the runs of a figure say to each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from thinwire.papers.memsgd.figures import NEAR, best, bits_at, seconds_to, share, speedups, threshold
from thinwire.papers.memsgd.run import Outcome
from thinwire.training.formatting import plural, show_count

COUNTS = (
    "Bytes to 1 % above f*. Paper's count: 64 bits a coordinate; of QSGD the least of (b + 1) d, Elias' bound and "
    "b + 33 for each number that is not zero. Honest: 32 a number, ⌈log₂ d⌉ a position, signs, levels from zero on and "
    "norms of QSGD, and x₀ once. thinwire's: its packed messages, whose envelope of some 40 bytes is made for many "
    "numbers, not for one, and which hold the zeros of SGD and QSGD too."
)


def claims(runs: Sequence[Outcome]) -> list[str]:
    """Sentences; none where the runs that they speak of are missing."""
    makers: dict[str, Callable[[Sequence[Outcome]], Iterator[str]]] = {
        "theory": _theory,
        "bits": _bits,
        "cores": _cores,
        "memories": _memories,
    }
    return list(makers[runs[0].setting.figure](runs))


def _theory(runs: Sequence[Outcome]) -> Iterator[str]:
    by_label = {one.setting.label: one for one in runs}
    tops = [label for label in by_label if label.startswith("top-") and "," not in label]
    rands = [label for label in by_label if label.startswith("rand-") and "," not in label]
    for label in tops:
        if f"{label}, no memory" in by_label:
            with_it, without = by_label[label].end, by_label[f"{label}, no memory"].end
            yield f"Memory: {label} ends {share(with_it)} above f* with it, {share(without)} without."
        if "SGD" in by_label:
            ends = [share(by_label[name].end) for name in (label, "SGD")]
            yield f"{label} ends {ends[0]} above f*, SGD {ends[1]}, in as many steps."
    for label in (*tops, *rands[:1]):
        if f"{label}, no delay" in by_label:
            pair = [by_label[name] for name in (label, f"{label}, no delay")]
            first = [share(one.above(one.at_epoch(1).loss)) for one in pair]
            yield f"Delay: after one epoch {label} is {first[0]} above f* with the shift a, {first[1]} without."


def _bits(runs: Sequence[Outcome]) -> Iterator[str]:
    yield COUNTS
    near = {one.setting.label: one.reaches((1 + NEAR) * one.least) for one in best(runs)}
    sent = {
        one.setting.label: bits_at(one, point) for one in best(runs) if (point := near[one.setting.label]) is not None
    }
    peers = [label for label in sent if label.startswith("QSGD")]
    if not peers or not all(sent.get("top-1", [0])):  # the start itself was near enough: nothing was sent
        return
    ratios = [min(sent[label][way] for label in peers) / sent["top-1"][way] for way in range(3)]
    yield (
        f"The best QSGD sends {show_count(ratios[0])} times as many bits as top-1 by the paper's count, "
        f"{show_count(ratios[1])} times honestly, {show_count(ratios[2])} times in thinwire's messages (the paper: "
        "two orders of magnitude)."
    )


def _cores(runs: Sequence[Outcome]) -> Iterator[str]:
    loss, found = threshold(runs), speedups(runs)
    fewest = min(count for _, count in found)
    yield (
        f"The loss to reach is {loss:.5f}, the largest of all runs' least ones. A speed-up is over the fastest time of "
        f"the same method on {plural(fewest, 'thread')}; medians over repeats. The clock stands still while losses are "
        "computed."
    )
    most = max(count for _, count in found)
    times: dict[str, list[float]] = {}
    for one in runs:
        if one.setting.threads == most:
            times.setdefault(one.setting.label, []).append(seconds_to(one, loss))
    medians = {label: statistics.median(each) for label, each in times.items()}
    sgd = medians.pop("SGD", None)
    if sgd and medians:
        others = ", ".join(f"{label} {time / sgd:.2f} times that" for label, time in medians.items())
        yield f"On {plural(most, 'thread')} lock-free SGD takes {sgd:.3f} s to the loss, {others}."


def _memories(runs: Sequence[Outcome]) -> Iterator[str]:
    most = max(one.setting.memories for one in runs)
    ends = {(one.setting.label, one.setting.memories): one for one in runs}
    yield (
        "One thread serves W memories in turn, which shows what W workers would do, without chance. What a coordinate "
        "is owed lies in W memories and waits about W d/k steps under rand-k, less under top-k."
    )
    for label in dict.fromkeys(one.setting.label for one in runs):
        if (label, 1) in ends and (label, most) in ends:
            one, many = ends[label, 1].end, ends[label, most].end
            yield f"{label} ends {share(one)} above f* with one memory, {share(many)} with {most}."

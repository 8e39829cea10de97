"""The verdict: in plain sentences, what compression saved, what it cost, and whether it paid in time."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.training.config import TORCH_METHODS
from thinwire.training.formatting import show_metric, show_seconds, times_fewer
from thinwire.training.summary import Row

NEAR = 0.01
"""A metric counts as near the dense one within this share of it."""


def verdict(rows: Sequence[Row]) -> list[str]:
    """Sentences about the rows of one task: against its `dense` row, if there is one, and what times do not count."""
    whole = [row for row in rows if not row.cut_off]
    dense = next((row for row in whole if row.config.method == "dense"), None)
    ours = [row for row in whole if row.config.method not in TORCH_METHODS]
    found = [_warm_up(whole)]
    if dense is not None and not dense.diverged and ours and dense.config.workers > 1:
        found = [_saving(dense, ours), _time(dense, ours), *found]
    return [sentence for sentence in found if sentence]


def _warm_up(rows: Sequence[Row]) -> str | None:
    """What went before the clocks started: the first steps of a method hold its compilation."""
    took = {row.label: row.warm_up for row in rows if row.warm_up is not None}
    if not took:
        return None
    longest = max(took, key=lambda label: took[label])
    of = "" if len(took) == 1 else f" ({longest} {show_seconds(took[longest])})"
    return (
        "Times are of training steps alone; compiling and warming up took "
        f"{show_seconds(sum(took.values()))}{of} before them."
    )


def _saving(dense: Row, ours: Sequence[Row]) -> str | None:
    if dense.metric is None:
        return None
    near = [row for row in ours if _is_near(row, dense)]
    if not near:
        return f"No compressed method came within {NEAR:.0%} of dense ({show_metric(dense)}) at these settings."
    best = max(near, key=lambda row: row.ratio_fp32.mean if row.ratio_fp32 else 0.0)
    if best.ratio_fp32 is None or best.ratio_fp16 is None:
        return None
    return (
        f"{best.label} sent {times_fewer(best.ratio_fp32.mean)} bytes than float32 all-reduce "
        f"({times_fewer(best.ratio_fp16.mean)} than float16) and reached {show_metric(best)}, "
        f"dense {show_metric(dense)}."
    )


def _is_near(row: Row, dense: Row) -> bool:
    if row.metric is None or dense.metric is None or row.diverged:
        return False
    gap = dense.metric.mean - row.metric.mean
    gap = gap if row.runs[0].task["higher_is_better"] else -gap
    return gap <= NEAR * abs(dense.metric.mean)


def _time(dense: Row, ours: Sequence[Row]) -> str | None:
    """Whether any compressed method was faster; on one machine's loopback the wire is seldom the bottleneck."""
    timed = [row for row in ours if row.seconds and not row.diverged]
    if dense.seconds is None or not timed:
        return None
    fastest = min(timed, key=lambda row: row.seconds.mean if row.seconds else 0.0)
    assert fastest.seconds is not None
    figures = f"{fastest.label} {show_seconds(fastest.seconds.mean)}, dense {show_seconds(dense.seconds.mean)}"
    if dense.config.engine == "sim":
        return f"Workers were simulated, so times say nothing about a network: {figures}."
    if fastest.seconds.mean >= dense.seconds.mean:
        return (
            f"Compression did not pay in wall time here: {figures}. "
            "All workers share one machine, whose loopback is no bottleneck; fewer bytes pay on a thin wire."
        )
    if _apart(fastest, dense):
        return f"Compression paid in wall time here: {figures}, and every seed was faster than every dense one."
    return f"Whether compression pays in wall time is not settled: {figures}; more seeds on a quiet machine would tell."


def _apart(fast: Row, slow: Row) -> bool:
    """Whether all runs of one row, at least two, were faster than all runs of the other: one timing is only noise."""
    times = [[run.end["seconds"] for run in row.runs] for row in (fast, slow)]
    return min(map(len, times)) > 1 and max(times[0]) < min(times[1])

"""Curves: each method's course over its seeds, as the charts draw it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from thinwire.training.records import Point
from thinwire.training.summary import Row

SMOOTH_SHARE = 0.08
"""Width of the running mean over training losses, as a share of the curve: single batches are noisy."""


def curves(row: Row) -> dict[str, Any]:
    """The mean course of training loss and test metric, with the range over seeds where there are several."""
    return {
        "loss": _course([run.losses for run in row.runs], SMOOTH_SHARE),
        "metric": _course([run.metrics for run in row.runs], 0.0),
    }


def _course(runs: Sequence[Sequence[Point]], share: float) -> dict[str, list[float]]:
    """Point by point over the runs, as far as all of them got."""
    length = min((_finite_length(points) for points in runs), default=0)
    values = [smooth([point.value or 0.0 for point in points[:length]], share) for points in runs]
    columns = list(zip(*values, strict=True))
    points = [column[:length] for column in runs]
    return {
        "steps": [float(point.step) for point in points[0]] if points else [],
        "bytes": _means([[point.sent_bytes for point in run] for run in points]),
        "seconds": _means([[point.seconds for point in run] for run in points]),
        "mean": [statistics.fmean(column) for column in columns],
        "low": [min(column) for column in columns],
        "high": [max(column) for column in columns],
    }


def _means(runs: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.fmean(column) for column in zip(*runs, strict=True)]


def _finite_length(points: Sequence[Point]) -> int:
    """How many points come before the first value that is no number."""
    return next((place for place, point in enumerate(points) if point.value is None), len(points))


def smooth(values: Sequence[float], share: float) -> list[float]:
    """The centred running mean over a window of `share` of the values, cut off at both ends.

    >>> smooth([0.0, 3.0, 0.0, 3.0, 0.0], 0.6)
    [1.5, 1.0, 2.0, 1.0, 1.5]
    """
    reach = int(share * len(values)) // 2
    return [statistics.fmean(values[max(0, place - reach) : place + reach + 1]) for place in range(len(values))]

"""Numbers as people read them: bytes, ratios, seconds and metrics."""

from __future__ import annotations

from thinwire.training.summary import Row, Spread

NOTHING = "–"


def show_bytes(count: float) -> str:
    """Bytes in decimal units with three digits.

    >>> show_bytes(1_234_567), show_bytes(999), show_bytes(0)
    ('1.23 MB', '999 B', '0 B')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{_three(count / size)} {unit}"
    return f"{count:.0f} B"


def _three(value: float) -> str:
    """Three significant digits, but never fewer than the whole part has."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def show_count(value: float) -> str:
    """A factor with two or three digits.

    >>> show_count(37.234), show_count(1.9999), show_count(412.3)
    ('37.2', '2.00', '412')
    """
    return _three(value)


def show_thousands(count: float) -> str:
    """A large count, short.

    >>> show_thousands(16_537), show_thousands(444_480), show_thousands(1_760_000), show_thousands(912)
    ('16.5k', '444k', '1.76M', '912')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{_three(count / size)}{unit}"
    return f"{count:.0f}"


def show_ratio(ratio: Spread | None) -> str:
    """A factor, for a cell of a table."""
    return NOTHING if ratio is None else f"{show_count(ratio.mean)}×"


def show_fewer(ratio: Spread | None) -> str:
    """How many times fewer bytes, for a cell under a head that says so; where they are more, the cell says it.

    >>> show_fewer(Spread.of([38.81])), show_fewer(Spread.of([0.86]))
    ('38.8×', '1.16× more')
    """
    return NOTHING if ratio is None else f"{_factor(ratio.mean)}×{' more' * _is_more(ratio.mean)}"


def times_fewer(ratio: float) -> str:
    """The same in a sentence.

    >>> times_fewer(38.81), times_fewer(0.86), times_fewer(0.999)
    ('38.8 times fewer', '1.16 times more', '1.00 times fewer')
    """
    return f"{_factor(ratio)} times {'more' if _is_more(ratio) else 'fewer'}"


def _factor(ratio: float) -> str:
    return show_count(1 / ratio if _is_more(ratio) else ratio)


def _is_more(ratio: float) -> bool:
    """Whether it is less than one as far as it is shown."""
    return ratio < 0.995


def show_seconds(seconds: float) -> str:
    """A duration.

    >>> show_seconds(3.14159), show_seconds(75.2)
    ('3.14 s', '1 min 15 s')
    """
    return f"{_three(seconds)} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"


def plural(count: int, noun: str) -> str:
    """A count and its noun.

    >>> plural(1, "run"), plural(3, "worker")
    ('1 run', '3 workers')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def metric_name(row: Row) -> str:
    """The test metric's name in words."""
    return f"test {row.runs[0].task['metric']}".replace("_", " ")


def show_value(value: float, percent: bool) -> str:
    """A metric's value: a percentage, or a plain number."""
    return f"{100 * value:.1f} %" if percent else f"{value:.3f}"


def show_metric(row: Row) -> str:
    """A row's test metric, with its deviation over seeds where there are several; how far it got if it was cut off."""
    if row.cut_off:
        return f"at step {', '.join(str(run.end['steps']) for run in row.runs)} of {row.config.steps}"
    if row.metric is None:
        return "diverged" if row.diverged else NOTHING
    shown = show_spread(row.metric, bool(row.runs[0].task["percent"]))
    return shown + (f" ({row.diverged} of {len(row.runs)} diverged)" if row.diverged else "")


def show_spread(spread: Spread | None, percent: bool) -> str:
    """A metric's mean, and its deviation over seeds where there are several."""
    if spread is None:
        return NOTHING
    shown = show_value(spread.mean, percent)
    if spread.deviation is None:
        return shown
    deviation = f"{100 * spread.deviation:.1f}" if percent else f"{spread.deviation:.3f}"
    number, _, unit = shown.partition(" ")
    return f"{number} ± {deviation} {unit}".rstrip()

"""The rate of a link: read from words, shown in words, and the seconds that bytes take on it."""

from __future__ import annotations

import re

from thinwire.errors import ConfigError

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def rate_of(text: str) -> float:
    """Bits a second, from what `tc` also reads.

    >>> rate_of("100mbit"), rate_of("2.5 Gbit")
    (100000000.0, 2500000000.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *(kbit|mbit|gbit)", text.strip().lower())
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"a rate is a number above 0 and one of {', '.join(UNITS)}, such as 100mbit; got {text!r}")
    return float(match[1]) * UNITS[match[2]]


def show_rate(rate: float) -> str:
    """As people write it.

    >>> show_rate(1e8), show_rate(2.5e9), show_rate(64e3)
    ('100 Mbit/s', '2.5 Gbit/s', '64 kbit/s')
    """
    unit, name = next((each for each in ((1e9, "G"), (1e6, "M")) if rate >= each[0]), (1e3, "k"))
    return f"{rate / unit:g} {name}bit/s"


def seconds_on(rate: float, sent: float) -> float:
    """Of `sent` bytes one after the other; latency and what the receiver does are not in it."""
    return 8 * sent / rate

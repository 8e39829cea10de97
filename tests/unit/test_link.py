"""Rates of links, in words."""

from __future__ import annotations

import pytest

from thinwire.errors import ConfigError
from thinwire.link import rate_of, seconds_on, show_rate


@pytest.mark.parametrize(
    ("text", "rate", "shown"),
    [("100mbit", 1e8, "100 Mbit/s"), (" 2.5 GBIT ", 2.5e9, "2.5 Gbit/s"), ("64kbit", 64e3, "64 kbit/s")],
)
def test_a_rate_is_read_and_shown(text: str, rate: float, shown: str) -> None:
    assert rate_of(text) == rate
    assert show_rate(rate) == shown
    assert seconds_on(rate, rate) == 8


@pytest.mark.parametrize("text", ["", "100", "0mbit", "-1mbit", "1e3mbit", "nanmbit", "10 MB/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"a number above 0 and one of kbit, mbit, gbit, such as 100mbit; got"):
        rate_of(text)

"""Questions that constructors ask of the values they are given."""

from __future__ import annotations

from numbers import Integral, Real


def is_number(value: object) -> bool:
    """Whether a value is a real number (numpy's too, truth values not)."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Whether a value is of an integer type."""
    return isinstance(value, Integral) and not isinstance(value, bool)

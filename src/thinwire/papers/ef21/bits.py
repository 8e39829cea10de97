"""Bits that a worker sends and hears in so many rounds, by two ways to count."""

from __future__ import annotations

import math

from thinwire import EF21BC, EF21P, EF21PP, EF21Plus, parse
from thinwire.papers.ef21.settings import Setting


def paper_bits(setting: Setting, d: int, rounds: int) -> int:
    """As the paper counts: 32 for each of the k numbers, nothing for positions or the start.

    Where the server's answers count too, 32 for each of their numbers.
    """
    return round(rounds * 32 * ((setting.k or d) * _share(setting) + _down(setting, d)))


def honest_bits(setting: Setting, d: int, rounds: int) -> int:
    """With ⌈log₂ d⌉ bits for each position, EF21+'s flag, and the start with whole gradients, whose mean EF21-BC's
    server answers whole."""
    if not rounds:
        return 0
    rule, position = parse(setting.rule), math.ceil(math.log2(d))
    each = setting.k * (32 + position) + isinstance(rule, EF21Plus) if setting.k else 32 * d
    down = _down(setting, d) * (32 + (position if setting.down else 0))
    inner = rule.rule if isinstance(rule, EF21P) else rule
    whole = 32 * d if getattr(inner, "start", None) == "gradient" else 0
    rest = rounds - 1 if whole else rounds
    answers = whole + rest * down if isinstance(rule, EF21BC) else rounds * down
    return whole + round(rest * each * _share(setting)) + answers


def _down(setting: Setting, d: int) -> int:
    """Numbers of the server's answer that count."""
    return 0 if setting.down is None else setting.down or d


def _share(setting: Setting) -> float:
    """The mean share of workers that send in a round."""
    rule = parse(setting.rule)
    return rule.probability if isinstance(rule, EF21PP) else 1.0

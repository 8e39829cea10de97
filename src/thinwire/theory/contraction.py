"""A compressor's constants on vectors of d numbers: its contraction α and its variance ω."""

from __future__ import annotations

import math
from dataclasses import fields

from thinwire.compressors import Compressor, Contractive, Draws, RandK, TopK
from thinwire.errors import ConfigError
from thinwire.feedback import Feedback


def contraction(compressor: Compressor, d: int) -> float:
    """α of E‖C(v) − v‖² ≤ (1 − α) ‖v‖², in (0, 1]; the library calls it delta.

    >>> from thinwire import TopK
    >>> contraction(TopK(count=1), 4)
    0.25
    """
    check_count(compressor, d)
    alpha, omega = compressor.delta(d), compressor.omega(d)
    if alpha > 0:
        return alpha
    if omega is None:
        raise ConfigError(f"{compressor} promises no contraction (alpha = {alpha:g}); theory needs alpha > 0: use topk")
    raise ConfigError(
        f"{compressor} has variance omega = {omega:.3g} on {d} numbers and is no contraction: "
        f"write contractive({compressor}), whose alpha is {1 / (1 + omega):.3g}"
    )


def variance(compressor: Compressor, d: int) -> float:
    """ω of an unbiased compressor: E C(v) = v and E‖C(v) − v‖² ≤ ω ‖v‖²."""
    check_count(compressor, d)
    omega = compressor.omega(d)
    if omega is None:
        raise ConfigError(f"{compressor} is biased; this theorem needs an unbiased compressor such as qsgd or natural")
    return omega


def bias_and_variance(compressor: Compressor, d: int) -> tuple[float, float]:
    """EF-BV's η and ω: ‖E C(v) − v‖ ≤ η ‖v‖ and E‖C(v) − E C(v)‖² ≤ ω ‖v‖².

    (0, ω) of an unbiased compressor; (ω/(1 + ω), ω/(1 + ω)²) of it scaled to a contraction; (1 − k/d, (1 − k/d) k/d) of
    rand-k; (√(1 − α), 0) of a deterministic one.
    """
    alpha, omega = compressor.delta(d), compressor.omega(d)
    if omega is not None:
        return 0.0, omega
    if isinstance(compressor, Contractive):
        return 1 - alpha, alpha * (1 - alpha)
    alpha = contraction(compressor, d)
    if isinstance(compressor, RandK):
        if compressor.values != "full":
            raise ConfigError(f"the bias of {compressor} is not known: leave its values full")
        return 1 - alpha, alpha * (1 - alpha)
    if not is_deterministic(compressor):
        raise ConfigError(f"the bias of {compressor} is not known: take an unbiased compressor, or a deterministic one")
    return math.sqrt(1 - alpha), 0.0


def independent_draws(compressor: Compressor, workers: int) -> int:
    """Of how many independent draws the mean of n workers' messages is made, so that its variance is ω over it.

    n where every worker draws for itself; 1 where all draw the same mask, whose errors do not average out: the mean's
    variance is then ω itself. So it is for a compressor that does not say what it draws.

    >>> from thinwire import RandK, Unbias
    >>> [independent_draws(Unbias(RandK(0.1, shared=shared)), 50) for shared in (False, True)]
    [50, 1]
    """
    return workers if compressor.draws in (Draws.NOTHING, Draws.APART) else 1


def is_deterministic(compressor: Compressor) -> bool:
    """Whether equal vectors give equal messages, as EF21+'s theorem asks; only of one whose class says so."""
    return compressor.draws is Draws.NOTHING


def check_counts(rule: Feedback, d: int) -> None:
    """`check_count` for every compressor of a rule, and of the rule within it."""
    for field in fields(rule):  # type: ignore[arg-type]  # every rule is a dataclass
        part = getattr(rule, field.name)
        if isinstance(part, Compressor):
            check_count(part, d)
        elif isinstance(part, Feedback):
            check_counts(part, d)


def check_count(compressor: Compressor, d: int) -> None:
    """Refuse a k beyond d: the compressor would keep everything, and its user means another problem."""
    if isinstance(inner := getattr(compressor, "compressor", None), Compressor):
        check_count(inner, d)
    if isinstance(compressor, TopK | RandK) and compressor.count is not None and compressor.count > d:
        raise ConfigError(f"{compressor} keeps {compressor.count} numbers of {d}; take a count of at most {d}")

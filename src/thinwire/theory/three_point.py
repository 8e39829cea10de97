"""The recursions of three point compressors (Richtárik et al. 2022, 3PC): A stands in θ's place, B in β's.

E‖C_{h,y}(x) − x‖² ≤ (1 − A) ‖h − y‖² + B ‖x − y‖². Step sizes are EF21's (`ef21_nonconvex_step`, `ef21_pl_step`),
in which L₊ with mean ‖∇fᵢ(x) − ∇fᵢ(y)‖² ≤ L₊² ‖x − y‖² may stand for L̃ ≥ L₊.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from thinwire.compressors import Identity
from thinwire.errors import ConfigError
from thinwire.feedback import CLAG, MARINA, ThreePCv2, ThreePCv4, ThreePCv5
from thinwire.theory.admissible import Admissible, Case, Recursion, markov, recursion_of, steps_of
from thinwire.theory.contraction import contraction, variance
from thinwire.theory.ef21 import theorems


@steps_of(CLAG, ThreePCv2, ThreePCv4, ThreePCv5, MARINA)
def _steps(case: Case[Any]) -> Iterator[Admissible]:
    return theorems(case, "Richtárik et al. 2022")


def lag(zeta: float) -> Recursion:
    """LAG sends x where ‖x − h‖² > ζ ‖x − y‖², else nothing: A = 1, B = ζ."""
    return Recursion(1.0, zeta)


def clag(alpha: float, zeta: float) -> Recursion:
    """CLAG sends C(x − h) where ‖x − h‖² > ζ ‖x − y‖², else nothing: EF21's A, B = max{β, ζ}."""
    own = markov(alpha)
    return Recursion(own.theta, max(own.beta, zeta))


@recursion_of(CLAG)
def _clag(case: Case[CLAG]) -> Recursion:
    whole = isinstance(case.rule.compressor, Identity)
    return lag(case.rule.zeta) if whole else clag(case.alpha, case.rule.zeta)


def three_point_v1(alpha: float) -> Recursion:
    """y + C(x − y), which sends y whole: A = 1, B = 1 − α."""
    return Recursion(1.0, 1 - alpha)


def three_point_v2(alpha: float, omega: float) -> Recursion:
    """b + C(x − b) with b = h + Q(x − y) and Q unbiased: A = α, B = (1 − α) ω."""
    return Recursion(alpha, (1 - alpha) * omega)


@recursion_of(ThreePCv2)
def _v2(case: Case[ThreePCv2]) -> Recursion:
    return three_point_v2(case.alpha, variance(case.rule.change, case.d))


def three_point_v4(alpha_first: float, alpha_second: float) -> Recursion:
    """b + C₁(x − b) with b = h + C₂(x − h): EF21's with ᾱ = 1 − (1 − α₁)(1 − α₂)."""
    return markov(1 - (1 - alpha_first) * (1 - alpha_second))


@recursion_of(ThreePCv4)
def _v4(case: Case[ThreePCv4]) -> Recursion:
    return three_point_v4(case.alpha, contraction(case.rule.second, case.d))


def three_point_v5(alpha: float, p: float) -> Recursion:
    """x with probability p, else h + C(x − y): A = 1 − √(1 − p), B = (1 − p)(1 − α)/(1 − √(1 − p))."""
    _check_probability(p)
    A = 1 - math.sqrt(1 - p)
    return Recursion(A, (1 - p) * (1 - alpha) / A)


@recursion_of(ThreePCv5)
def _v5(case: Case[ThreePCv5]) -> Recursion:
    return three_point_v5(case.alpha, case.rule.probability)


def marina(p: float, omega: float, workers: int) -> Recursion:
    """MARINA (Gorbunov et al. 2021), of the aggregate: A = p, B = (1 − p) ω/n, for independent unbiased Qᵢ.

    Where all workers draw the same mask the mean's variance is ω itself: n = 1 here (see `independent_draws`).

    Where all Lᵢ are L the step is γ ≤ 1 / (L (1 + √((1 − p) ω/(pn)))).
    """
    _check_probability(p)
    return Recursion(p, (1 - p) * omega / workers)


@recursion_of(MARINA)
def _marina(case: Case[MARINA]) -> Recursion:
    return marina(case.rule.probability, variance(case.rule.compressor, case.d), case.draws)


def marina_probability(omega: float) -> float:
    """p = 1/(1 + ω)."""
    return 1 / (1 + omega)


def _check_probability(p: float) -> None:
    if not 0 < p <= 1:
        raise ConfigError(f"p, the probability of a whole gradient, lies in (0, 1], got {p}")

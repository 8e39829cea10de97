"""EF21-PP: worker i takes part in a round with probability pᵢ (Fatkhullin et al. 2021)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from thinwire.errors import ConfigError
from thinwire.theory.recursion import Recursion

Vector = NDArray[np.float64]


def ef21_pp_rho(p: Vector, recursion: Recursion) -> float:
    """Half of the largest ρ for which θ_p stays positive: pθ / (2(1 − p)) where all pᵢ are p; infinite at p = 1.

    A fixed ρ, as in published code, makes θ_p negative once pθ is small.
    """
    _check(p)
    low, high = float(p.min()), float(p.max())
    room = recursion.theta * high - (high - low)
    if room <= 0:
        raise ConfigError(
            f"EF21-PP's theory needs p_max − p_min < θ p_max; here they are {high:g}, {low:g} and θ = "
            f"{recursion.theta:.3g}: take probabilities closer to each other"
        )
    return math.inf if low == 1 else room / (2 * (1 - low))


def ef21_pp_step(L: float, L_workers: Vector, recursion: Recursion, p: Vector, rho: float | None = None) -> float:
    """γ ≤ 1 / (L + √(B/θ_p)) with, for a free ρ > 0,

    B = (1/n) Σ [β pᵢ + (1 + 1/ρ)(1 − pᵢ)] Lᵢ²,   θ_p = ρ p_min + θ p_max − ρ − (p_max − p_min).
    """
    rho = ef21_pp_rho(p, recursion) if rho is None else rho
    _check(p)
    low, high = float(p.min()), float(p.max())
    theta = recursion.theta * high - (high - low) - (0.0 if low == 1 else rho * (1 - low))
    if not (rho > 0 and theta > 0):
        raise ConfigError(f"rho = {rho:g} makes theta_p = {theta:.3g}; both must be positive: leave rho out")
    weights = recursion.beta * p + (1 + 1 / rho) * (1 - p)
    return 1 / (L + math.sqrt(float((weights * np.square(L_workers)).mean()) / theta))


def _check(p: Vector) -> None:
    if not (p.size and 0 < p.min() and p.max() <= 1):
        raise ConfigError(f"participation probabilities lie in (0, 1], got {p}")

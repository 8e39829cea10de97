"""Momentum and error control: EF21-SGDM, EF21-HB and EControl's η."""

from __future__ import annotations

import math

from thinwire.errors import ConfigError
from thinwire.theory.recursion import Recursion


def ef21_sgdm_step(L: float, L_tilde: float, alpha: float, eta: float) -> float:
    """γ ≤ min{α/(20 L̃), η/(7 L)}, η the weight of the new gradient   (Fatkhullin et al. 2023; recalled)."""
    if not 0 < eta <= 1:
        raise ConfigError(f"eta, the weight of the new gradient, lies in (0, 1], got {eta}")
    return min(alpha / (20 * L_tilde), eta / (7 * L))


def ef21_hb_step(L: float, L_tilde: float, recursion: Recursion, eta: float) -> float:
    """γ < [(1 + η) L / (2 (1 − η)²) + L̃/(1 − η) · √((2β/θ)(1 + 4η²/(1 − η)²))]⁻¹   (Fatkhullin et al. 2021; recalled).

    η is the weight of the old direction: v ← ηv + g.
    """
    if not 0 <= eta < 1:
        raise ConfigError(f"the heavy ball's eta lies in [0, 1), got {eta}")
    rest = 1 - eta
    compression = recursion.ratio * math.sqrt(2 * (1 + 4 * eta**2 / rest**2))
    return 1 / ((1 + eta) * L / (2 * rest**2) + L_tilde / rest * compression)


def econtrol_eta(alpha: float) -> float:
    """η = α/400, EControl's share of the accumulated error in theory   (Gao, Islamov and Stich 2024)."""
    return alpha / 400

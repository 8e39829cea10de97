"""Steps that need no constant of the problem: ‖EF21‖ and parameter-agnostic error feedback."""

from __future__ import annotations

import math


def normalised_step(scale: float, rounds: int) -> float:
    """γ = γ₀/√(K + 1) for K rounds of x ← x − γ g/‖g‖, any γ₀ > 0   (Khirirat et al. 2024, ‖EF21‖)."""
    return scale / math.sqrt(rounds + 1)


def parameter_agnostic_eta(t: int, q: float) -> float:
    """η_t = (2/(t + 2))^q: q = 1/2 for heavy ball, 4/7 for implicit transport, 2/3 for STORM   (PAEF 2025)."""
    return float((2 / (t + 2)) ** q)

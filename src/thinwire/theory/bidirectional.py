"""Compression on the way down too: EF21-BC (of the estimator) and EF21-P (of the model)."""

from __future__ import annotations

import math

from thinwire.theory.recursion import Recursion


def ef21_bc_step(L: float, L_tilde: float, up: Recursion, down: Recursion) -> float:
    """γ ≤ 1 / (L + L̃ √(16 β_M/θ_M + (2 β_w/θ_w)(1 + 8 β_M/θ_M)))   (Fatkhullin et al. 2021)."""
    master, worker = down.ratio**2, up.ratio**2
    return 1 / (L + L_tilde * math.sqrt(16 * master + 2 * worker * (1 + 8 * master)))


def ef21_p_step(L: float, alpha: float) -> float:
    """γ ≤ α/(16 L) for one worker and strongly convex f   (Gruntkowska, Tyurin and Richtárik 2023; recalled)."""
    return alpha / (16 * L)

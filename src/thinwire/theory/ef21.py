"""EF21: admissible step sizes, bounds and Lyapunov functions (Richtárik, Sokolov and Fatkhullin 2021).

EF21+ shares them where its compressor is deterministic (theorem 4), and every 3PC method with its own recursion.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from thinwire.theory.recursion import Recursion

Matrix = NDArray[np.float64]


def ef21_nonconvex_step(L: float, L_tilde: float, recursion: Recursion) -> float:
    """γ ≤ 1 / (L + L̃ √(β/θ))   (theorem 1; 3PC with θ = A, β = B and L₊ ≤ L̃).

    L is the smoothness of f, L̃ the quadratic mean of the workers'. Without compression it is gradient descent's 1/L.
    """
    return 1 / (L + L_tilde * recursion.ratio)


def ef21_pl_step(L: float, L_tilde: float, recursion: Recursion, mu: float) -> float:
    """γ ≤ min{1 / (L + L̃ √(2β/θ)), θ/(2μ)} where f(x) − f* ≤ ‖∇f(x)‖²/(2μ)   (theorem 2; 3PC likewise)."""
    return min(1 / (L + L_tilde * math.sqrt(2) * recursion.ratio), recursion.theta / (2 * mu))


def ef21_w_step(L: float, L_mean: float, recursion: Recursion) -> float:
    """γ ≤ 1 / (L + L_AM √(β/θ)) with the arithmetic mean of the Lᵢ   (Richtárik et al. 2024, theorem 3).

    It holds for EF21 as it is and for EF21-W, whose weights are wᵢ = Lᵢ / Σ Lⱼ.
    """
    return ef21_nonconvex_step(L, L_mean, recursion)


def weighted_smoothness(L_workers: Matrix, weights: Matrix) -> float:
    """√(Σ wᵢ (Lᵢ/(n wᵢ))²) for weights with Σ wᵢ = 1: what stands in L̃'s place in EF21-W with weights of its own.

    f = Σ wᵢ f̂ᵢ, where f̂ᵢ = fᵢ/(n wᵢ) is Lᵢ/(n wᵢ)-smooth and gᵢ follows its gradient; theorem 1's proof then goes
    through with G = Σ wᵢ ‖gᵢ − ∇f̂ᵢ(x)‖² ≥ ‖g − ∇f(x)‖². It is the mean of the Lᵢ, its least value, at wᵢ = Lᵢ/Σ Lⱼ,
    theorem 1's L̃ at wᵢ = 1/n, and never above maxᵢ Lᵢ/(n wᵢ).
    """
    return float(np.sqrt((weights * np.square(L_workers / (L_workers.size * weights))).sum()))


def ef21_prox_step(L: float, L_tilde: float, recursion: Recursion) -> float:
    """γ < 1 / (L/2 + L̃ √(β/θ)) for f + r with a proximal step on r   (Fatkhullin et al. 2021)."""
    return 1 / (L / 2 + L_tilde * recursion.ratio)


def rare_features_step(L: float, L_workers: Matrix, sharers: int, recursion: Recursion) -> float:
    """γ ≤ 1 / (L + L₊ √(c/n) √(β/θ)), L₊ = min{√mean Lᵢ², √(c/n) max Lᵢ}   (Richtárik et al. 2023).

    c = `sharers` is the largest number of workers in whose functions one coordinate appears.
    """
    share = sharers / L_workers.size
    L_plus = min(float(np.sqrt(np.square(L_workers).mean())), math.sqrt(share) * float(L_workers.max()))
    return ef21_nonconvex_step(L, L_plus * math.sqrt(share), recursion)


# ---------------------------------------------------------------------------------------- bounds and Lyapunov functions


def distortion(estimates: Matrix, gradients: Matrix) -> float:
    """G = (1/n) Σ ‖gᵢ − ∇fᵢ(x)‖²; one row a worker."""
    return float(np.square(estimates - gradients).sum(axis=1).mean())


def ef21_nonconvex_bound(gap: float, distortion: float, step: float, recursion: Recursion, rounds: int) -> float:
    """(1/T) Σ_{t<T} E‖∇f(xᵗ)‖² ≤ 2 (f(x⁰) − f_inf)/(γT) + G⁰/(θT)   (theorem 1)."""
    return 2 * gap / (step * rounds) + distortion / (recursion.theta * rounds)


def ef21_nonconvex_lyapunov(gap: float, distortion: float, step: float, recursion: Recursion) -> float:
    """Φ = f(x) − f_inf + γ/(2θ) G: no step of theorem 1 raises it, and each lowers it by γ/2 ‖∇f(x)‖² at least."""
    return gap + step / (2 * recursion.theta) * distortion


def ef21_pl_lyapunov(gap: float, distortion: float, step: float, recursion: Recursion) -> float:
    """Ψ = f(x) − f* + (γ/θ) G: every step of theorem 2 multiplies it by 1 − γμ at most."""
    return gap + step / recursion.theta * distortion


def ef21_pl_bound(lyapunov: float, step: float, mu: float, rounds: int) -> float:
    """E Ψᵀ ≤ (1 − γμ)ᵀ Ψ⁰   (theorem 2)."""
    return float((1 - step * mu) ** rounds * lyapunov)

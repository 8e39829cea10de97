"""One worker, strongly convex: the step size and rate that no analysis can better.

Thomsen, Taylor and Dieuleveut 2025. With ε = 1 − α, for L-smooth and μ-strongly convex f. EF and EF21 share both.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def tight_step(L: float, mu: float, alpha: float) -> float:
    """η* = 2/(L + μ) · (1 − √ε)/(1 + √ε)."""
    root = math.sqrt(1 - alpha)
    return 2 / (L + mu) * (1 - root) / (1 + root)


def tight_rate(L: float, mu: float, alpha: float) -> float:
    """ρ = √ε + ¼ (1 + √ε)(L − μ) λ: what one step at η* multiplies the Lyapunov function by, at most.

    λ = η*/(L + μ) · [(1 − √ε)(L − μ) + (1 + √ε) √((L − μ)² + 16 L μ √ε / (1 + √ε)²)].

    >>> round(tight_rate(1.0, 0.1, 5 / 20), 4)
    0.9742
    """
    root = math.sqrt(1 - alpha)
    spread = L - mu
    inner = math.sqrt(spread**2 + 16 * L * mu * root / (1 + root) ** 2)
    scale = tight_step(L, mu, alpha) / (L + mu) * ((1 - root) * spread + (1 + root) * inner)
    return root + (1 + root) * spread * scale / 4


def tight_lyapunov(gradient: Vector, estimate: Vector, alpha: float) -> float:
    """(1 + √ε) ‖∇f‖² − 2 ⟨∇f, g⟩ + ‖g‖², up to a constant factor."""
    root = math.sqrt(1 - alpha)
    return float((1 + root) * gradient @ gradient - 2 * gradient @ estimate + estimate @ estimate)

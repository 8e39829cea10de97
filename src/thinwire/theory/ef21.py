"""EF21: admissible step sizes, bounds and Lyapunov functions (Richtárik, Sokolov and Fatkhullin 2021).

EF21+ shares them where its compressor is deterministic (theorem 4), and every 3PC method with its own recursion.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.errors import ConfigError
from thinwire.feedback import EF21, EF21W, EF21Plus, MemSGD
from thinwire.theory.admissible import BELLS, Admissible, Case, Recursion, ef21_recursion, recursion_of, steps_of
from thinwire.theory.contraction import is_deterministic
from thinwire.theory.variants import ef21_sgd_step, stochastic_markov

Matrix = NDArray[np.float64]
T1, T2 = "1/(L + L̃√(β/θ))", "min{1/(L + L̃√(2β/θ)), θ/2μ}"
PAPER = "Richtárik et al. 2021"
NO_THEOREM = "unit of the EF21 paper, no theorem"

recursion_of(EF21, EF21Plus, EF21W, MemSGD)(ef21_recursion)  # of memsgd it is that of its unit in the EF21 paper


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


# ----------------------------------------------------------------------------------------- one worker, strongly convex
# The step size and rate that no analysis can better (Thomsen, Taylor and Dieuleveut 2025), with ε = 1 − α, for L-smooth
# and μ-strongly convex f. EF and EF21 share both.


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


def tight_lyapunov(gradient: Matrix, estimate: Matrix, alpha: float) -> float:
    """(1 + √ε) ‖∇f‖² − 2 ⟨∇f, g⟩ + ‖g‖², up to a constant factor."""
    root = math.sqrt(1 - alpha)
    return float((1 + root) * gradient @ gradient - 2 * gradient @ estimate + estimate @ estimate)


# ---------------------------------------------------------------------------------------------- theorems of each rule


def theorems(case: Case[Any], source: str = PAPER) -> Iterator[Admissible]:
    """Theorems 1 and 2 with the method's own recursion."""
    known = case.smoothness
    yield Admissible("nonconvex", ef21_nonconvex_step(known.overall, known.quadratic_mean, case.recursion), T1, source)
    if known.mu is not None:
        yield Admissible("PL", ef21_pl_step(known.overall, known.quadratic_mean, case.recursion, known.mu), T2, source)


def _tight(case: Case[Any]) -> Iterator[Admissible]:
    known = case.smoothness
    if case.workers == 1 and known.strongly_convex and known.mu is not None:
        formula, source = "2/(L+μ) · (1−√(1−α))/(1+√(1−α))", "Thomsen et al. 2025"
        yield Admissible(
            "one worker, strongly convex", tight_step(known.overall, known.mu, case.alpha), formula, source
        )


@steps_of(EF21)
def _ef21(case: Case[EF21]) -> Iterator[Admissible]:
    known = case.smoothness
    yield from theorems(case)
    arithmetic = ef21_w_step(known.overall, known.arithmetic_mean, case.recursion)
    yield Admissible("nonconvex, mean of the Lᵢ", arithmetic, "1/(L + mean Lᵢ √(β/θ))", "Richtárik et al. 2024")
    stochastic = ef21_sgd_step(known.overall, known.quadratic_mean, stochastic_markov(case.alpha))
    yield Admissible("nonconvex, mini-batches", stochastic, "1/(L + L̃√(β̂₁/θ̂))", f"{BELLS}, derived")
    yield from _tight(case)


@steps_of(EF21Plus)
def _ef21plus(case: Case[EF21Plus]) -> Iterator[Admissible]:
    if not is_deterministic(case.rule.compressor):
        raise ConfigError(
            f"EF21+ has a theory for deterministic compressors only; {case.rule.compressor} "
            f"{'draws' if case.rule.compressor.draws else 'does not say that it is one'}: use topk"
        )
    return theorems(case)


@steps_of(EF21W)
def _ef21w(case: Case[EF21W]) -> Iterator[Admissible]:
    """With the rule's own weights, which need not be those of the Lᵢ."""
    case.rule.admit_workers(case.workers)
    known, weights = case.smoothness, np.array([case.rule.share(i, case.workers) for i in range(case.workers)])
    step = ef21_w_step(known.overall, weighted_smoothness(known.workers, weights), case.recursion)
    yield Admissible("nonconvex", step, "1/(L + √(Σ wᵢ (Lᵢ/nwᵢ)²) √(β/θ))", "Richtárik et al. 2024, derived")


@steps_of(MemSGD)
def _memsgd(case: Case[MemSGD]) -> Iterator[Admissible]:
    """The EF21 paper tunes EF in multiples of EF21's step; a theorem it is for one worker alone, and another one."""
    step = ef21_nonconvex_step(case.smoothness.overall, case.smoothness.quadratic_mean, case.recursion)
    yield Admissible(NO_THEOREM, step, T1, PAPER)
    if case.rule.decay == 1:
        yield from _tight(case)

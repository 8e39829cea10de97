"""EF21 on mini-batches: EF21-SGD with its floor, EF21-PAGE (both Fatkhullin et al. 2021) and EF21-SGDM."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thinwire.errors import ConfigError
from thinwire.feedback import EF21PAGE, EF21SGD2M, EF21SGDM
from thinwire.theory.admissible import (
    BELLS,
    MEMORY,
    Admissible,
    Case,
    Recursion,
    ef21_recursion,
    recursion_of,
    steps_of,
)

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class StochasticRecursion:
    """E Gᵗ⁺¹ ≤ (1 − θ̂) Gᵗ + β̂₁ L̃² ‖xᵗ⁺¹ − xᵗ‖² + β̂₂ σ²/τ, for batches of τ samples with variance σ²/τ."""

    moving: Recursion
    """θ̂ and β̂₁."""
    noise: float
    """β̂₂."""


def stochastic_markov(alpha: float, s: float | None = None, nu: float | None = None) -> StochasticRecursion:
    """θ̂ = 1 − (1 − α)(1 + s)(1 + ν), β̂₁ = (1 − α)(1 + s)(1 + 1/ν), β̂₂ = (1 − α)(1 + s) + 1 + 1/s.

    Two uses of Young's inequality, so two free parameters; both are (1 − α)^(−1/4) − 1 unless given, which makes θ̂
    EF21's own θ.
    """
    if alpha == 1:
        return StochasticRecursion(Recursion(1.0, 0.0), 1.0)
    even = (1 - alpha) ** -0.25 - 1
    s, nu = even if s is None else s, even if nu is None else nu
    left = (1 - alpha) * (1 + s)
    if not (s > 0 and nu > 0 and left * (1 + nu) < 1):
        raise ConfigError(f"(1 − α)(1 + s)(1 + ν) must be below 1 with s, ν > 0, got α = {alpha:g}, s = {s}, ν = {nu}")
    return StochasticRecursion(Recursion(1 - left * (1 + nu), left * (1 + 1 / nu)), left + 1 + 1 / s)


def ef21_sgd_step(L: float, L_tilde: float, recursion: StochasticRecursion) -> float:
    """γ ≤ 1 / (L + L̃ √(β̂₁/θ̂))."""
    return 1 / (L + L_tilde * recursion.moving.ratio)


def ef21_sgd_floor(recursion: StochasticRecursion, sigma2: float, batch: int) -> float:
    """(β̂₂/θ̂) σ²/τ: neither a smaller step nor more workers lower it, only larger batches do."""
    return recursion.noise / recursion.moving.theta * sigma2 / batch


def ef21_sgd_bound(
    gap: float, distortion: float, step: float, recursion: StochasticRecursion, rounds: int, sigma2: float, batch: int
) -> float:
    """(1/T) Σ_{t<T} E‖∇f(xᵗ)‖² ≤ 2 (f(x⁰) − f_inf)/(γT) + G⁰/(θ̂T) + (β̂₂/θ̂) σ²/τ."""
    start = 2 * gap / (step * rounds) + distortion / (recursion.moving.theta * rounds)
    return start + ef21_sgd_floor(recursion, sigma2, batch)


# ----------------------------------------------------------------------------------------------------------------- PAGE


def page_probability(batches: Vector, sizes: Vector) -> float:
    """p = mean τᵢ/(τᵢ + Nᵢ), the paper's share of rounds with full gradients, for batches of τᵢ out of Nᵢ samples."""
    return float((batches / (batches + sizes)).mean())


def page_variance(p: float, batches: Vector, L_samples: Vector) -> float:
    """ℒ = (1/n) Σ (1 − p) ℒᵢ²/τᵢ with ℒᵢ ≤ maxⱼ Lᵢⱼ, the smoothness of worker i's steepest sample."""
    return float((1 - p) * (np.square(L_samples) / batches).mean())


def ef21_page_step(L: float, L_tilde: float, recursion: Recursion, p: float, variance: float) -> float:
    """γ ≤ 1 / (L + √((4β/θ) L̃² + 2 (3β/θ + 1/p) ℒ)), ℒ = `page_variance(…)`."""
    if not 0 < p <= 1:
        raise ConfigError(f"p, the probability of a full gradient, lies in (0, 1], got {p}")
    square = recursion.ratio**2
    return 1 / (L + math.sqrt(4 * square * L_tilde**2 + 2 * (3 * square + 1 / p) * variance))


recursion_of(EF21PAGE)(ef21_recursion)


@steps_of(EF21PAGE)
def _page(case: Case[EF21PAGE]) -> Iterator[Admissible]:
    """Batches are those for which the paper's p = τᵢ/(τᵢ + Nᵢ) is the rule's."""
    p, known = case.rule.probability, case.smoothness
    variance = page_variance(p, np.asarray(p * known.sizes / (1 - p), np.float64), known.samples) if p < 1 else 0.0
    step = ef21_page_step(known.overall, known.quadratic_mean, case.recursion, p, variance)
    yield Admissible("nonconvex, τᵢ = pNᵢ/(1−p)", step, "1/(L + √(4β/θ L̃² + 2(3β/θ + 1/p) ℒ))", BELLS)


# ------------------------------------------------------------------------------------------------------------- momentum


def ef21_sgdm_step(L: float, L_tilde: float, alpha: float, eta: float) -> float:
    """γ ≤ min{α/(20 L̃), η/(7 L)}, η the weight of the new gradient   (Fatkhullin et al. 2023; recalled)."""
    if not 0 < eta <= 1:
        raise ConfigError(f"eta, the weight of the new gradient, lies in (0, 1], got {eta}")
    return min(alpha / (20 * L_tilde), eta / (7 * L))


@steps_of(EF21SGDM)
def _sgdm(case: Case[EF21SGDM]) -> Iterator[Admissible]:
    step = ef21_sgdm_step(case.smoothness.overall, case.smoothness.quadratic_mean, case.alpha, case.rule.eta)
    yield Admissible("nonconvex, mini-batches", step, "min{α/20L̃, η/7L}", f"Fatkhullin et al. 2023, {MEMORY}")


@steps_of(EF21SGD2M)
def _sgd2m(case: Case[EF21SGD2M]) -> Iterator[Admissible]:
    return iter(())

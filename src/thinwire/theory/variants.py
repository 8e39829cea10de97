"""Step sizes of EF21's relatives: heavy ball, partial participation, both ways, mini-batches, normalised steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.compressors import Identity
from thinwire.errors import ConfigError
from thinwire.feedback import EF21BC, EF21HB, EF21P, EF21PAGE, EF21PP, EF21SGD2M, EF21SGDM, EFBV, EControl, Plain
from thinwire.theory.admissible import (
    BELLS,
    MEMORY,
    Admissible,
    Case,
    Recursion,
    ef21_recursion,
    markov,
    recursion_of,
    steps_of,
)
from thinwire.theory.contraction import bias_and_variance, contraction

Vector = NDArray[np.float64]

recursion_of(EF21HB, EF21PP, EF21BC, EF21PAGE)(ef21_recursion)


@steps_of(Plain)
def _plain(case: Case[Plain]) -> Iterator[Admissible]:
    if isinstance(case.rule.compressor, Identity):
        yield Admissible("nonconvex", 1 / case.smoothness.overall, "1/L", "gradient descent")


def ef21_hb_step(L: float, L_tilde: float, recursion: Recursion, eta: float) -> float:
    """γ < [(1 + η) L / (2 (1 − η)²) + L̃/(1 − η) · √((2β/θ)(1 + 4η²/(1 − η)²))]⁻¹   (Fatkhullin et al. 2021; recalled).

    η is the weight of the old direction: v ← ηv + g.
    """
    if not 0 <= eta < 1:
        raise ConfigError(f"the heavy ball's eta lies in [0, 1), got {eta}")
    rest = 1 - eta
    compression = recursion.ratio * math.sqrt(2 * (1 + 4 * eta**2 / rest**2))
    return 1 / ((1 + eta) * L / (2 * rest**2) + L_tilde / rest * compression)


@steps_of(EF21HB)
def _hb(case: Case[EF21HB]) -> Iterator[Admissible]:
    step = ef21_hb_step(case.smoothness.overall, case.smoothness.quadratic_mean, case.recursion, case.rule.eta)
    formula = "below 1/((1+η)L/2(1−η)² + L̃/(1−η) √(2β/θ (1+4η²/(1−η)²)))"
    yield Admissible("nonconvex", step, formula, f"{BELLS}, {MEMORY}")


def econtrol_eta(alpha: float) -> float:
    """η = α/400, EControl's share of the accumulated error in theory   (Gao, Islamov and Stich 2024)."""
    return alpha / 400


@steps_of(EControl, EF21SGD2M)
def _none(case: Case[Any]) -> Iterator[Admissible]:
    return iter(())


# ------------------------------------------------------- partial participation: worker i sends with probability pᵢ


def ef21_pp_rho(p: Vector, recursion: Recursion) -> float:
    """Half of the largest ρ for which θ_p stays positive: pθ / (2(1 − p)) where all pᵢ are p; infinite at p = 1.

    A fixed ρ, as in published code, makes θ_p negative once pθ is small.
    """
    _check_probabilities(p)
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
    _check_probabilities(p)
    low, high = float(p.min()), float(p.max())
    theta = recursion.theta * high - (high - low) - (0.0 if low == 1 else rho * (1 - low))
    if not (rho > 0 and theta > 0):
        raise ConfigError(f"rho = {rho:g} makes theta_p = {theta:.3g}; both must be positive: leave rho out")
    weights = recursion.beta * p + (1 + 1 / rho) * (1 - p)
    return 1 / (L + math.sqrt(float((weights * np.square(L_workers)).mean()) / theta))


def _check_probabilities(p: Vector) -> None:
    if not (p.size and 0 < p.min() and p.max() <= 1):
        raise ConfigError(f"participation probabilities lie in (0, 1], got {p}")


@steps_of(EF21PP)
def _pp(case: Case[EF21PP]) -> Iterator[Admissible]:
    each = np.full(case.workers, float(case.rule.probability))
    step = ef21_pp_step(case.smoothness.overall, case.smoothness.workers, case.recursion, each)
    yield Admissible("nonconvex", step, "1/(L + √(B/θ_p)), ρ = pθ/2(1−p)", BELLS)


# ------------------------------------------------------------------------------------------------------ both directions


def ef21_bc_step(L: float, L_tilde: float, up: Recursion, down: Recursion) -> float:
    """γ ≤ 1 / (L + L̃ √(16 β_M/θ_M + (2 β_w/θ_w)(1 + 8 β_M/θ_M)))   (Fatkhullin et al. 2021)."""
    master, worker = down.ratio**2, up.ratio**2
    return 1 / (L + L_tilde * math.sqrt(16 * master + 2 * worker * (1 + 8 * master)))


@steps_of(EF21BC)
def _bc(case: Case[EF21BC]) -> Iterator[Admissible]:
    down = markov(contraction(case.rule.server, case.d))
    step = ef21_bc_step(case.smoothness.overall, case.smoothness.quadratic_mean, case.recursion, down)
    yield Admissible("nonconvex", step, "1/(L + L̃√(16 β_M/θ_M + 2β_w/θ_w (1 + 8 β_M/θ_M)))", BELLS)


def ef21_p_step(L: float, alpha: float) -> float:
    """γ ≤ α/(16 L) for one worker and strongly convex f   (Gruntkowska, Tyurin and Richtárik 2023; recalled)."""
    return alpha / (16 * L)


@steps_of(EF21P)
def _p(case: Case[EF21P]) -> Iterator[Admissible]:
    whole = getattr(case.rule.rule, "compressor", None) == Identity()
    if whole and case.workers == 1 and case.smoothness.strongly_convex:
        step = ef21_p_step(case.smoothness.overall, case.alpha)
        yield Admissible("one worker, strongly convex", step, "α/16L", f"Gruntkowska et al. 2023, {MEMORY}")


# --------------------------------------------------------------------------- steps that need no constant of the problem


def normalised_step(scale: float, rounds: int) -> float:
    """γ = γ₀/√(K + 1) for K rounds of x ← x − γ g/‖g‖, any γ₀ > 0   (Khirirat et al. 2024, ‖EF21‖)."""
    return scale / math.sqrt(rounds + 1)


def parameter_agnostic_eta(t: int, q: float) -> float:
    """η_t = (2/(t + 2))^q: q = 1/2 for heavy ball, 4/7 for implicit transport, 2/3 for STORM   (PAEF 2025)."""
    return float((2 / (t + 2)) ** q)


@dataclass(frozen=True)
class EFBVConstants:
    """Of compressors with ‖E C(v) − v‖ ≤ η ‖v‖ and E‖C(v) − E C(v)‖² ≤ ω ‖v‖²; ω_av is ω of the workers' average.

    r = (1 − λ + λη)² + λ²ω,   r_av = (1 − ν + νη)² + ν²ω_av,   s* = √((1 + r)/(2r)) − 1

    λ is how much of a message the workers' estimates take in, ν how much of it the step does; see `best`.
    """

    eta: float
    omega: float
    omega_average: float
    lam: float
    nu: float

    def __post_init__(self) -> None:
        if not (0 <= self.eta < 1 and 0 <= self.omega_average <= self.omega):
            given = f"{self.eta}, {self.omega_average} and {self.omega}"
            raise ConfigError(f"EF-BV needs 0 <= eta < 1 and 0 <= omega_average <= omega, got {given}")
        if self.r >= 1:
            raise ConfigError(
                f"lambda = {self.lam:g} gives EF-BV r = {self.r:.3g}, which must be below 1: "
                f"take at most lambda* = {best_weight(self.eta, self.omega):.3g}"
            )

    @classmethod
    def best(cls, eta: float, omega: float, omega_average: float) -> EFBVConstants:
        """λ* = min{(1 − η)/((1 − η)² + ω), 1} and ν* = min{(1 − η)/((1 − η)² + ω_av), 1}.

        Top-k has η = √(1 − α), ω = ω_av = 0: then λ = ν = 1, and EF21's own step is larger. An unbiased compressor has
        η = 0, and ω_av = ω/n where the workers draw independently.
        """
        return cls(eta, omega, omega_average, best_weight(eta, omega), best_weight(eta, omega_average))

    @property
    def r(self) -> float:
        return (1 - self.lam + self.lam * self.eta) ** 2 + self.lam**2 * self.omega

    @property
    def r_average(self) -> float:
        return (1 - self.nu + self.nu * self.eta) ** 2 + self.nu**2 * self.omega_average

    def step(self, L: float, L_tilde: float) -> float:
        """γ ≤ 1 / (L + L̃ √(r_av/r) / s*)."""
        if self.r == 0:  # nothing is lost in compression: gradient descent
            return 1 / L
        s = math.sqrt((1 + self.r) / (2 * self.r)) - 1
        return 1 / (L + L_tilde * math.sqrt(self.r_average / self.r) / s)

    def pl_rate(self, step: float, mu: float) -> float:
        """max{1 − γμ, (r + 1)/2}: the factor of one round under PL."""
        return max(1 - step * mu, (self.r + 1) / 2)


def best_weight(eta: float, omega: float) -> float:
    """min{(1 − η)/((1 − η)² + ω), 1}."""
    return min((1 - eta) / ((1 - eta) ** 2 + omega), 1.0)


@steps_of(EFBV)
def _efbv(case: Case[EFBV]) -> Iterator[Admissible]:
    eta, omega = bias_and_variance(case.rule.compressor, case.d)
    constants = EFBVConstants(eta, omega, omega / case.draws, case.rule.lam, case.rule.nu)
    step = constants.step(case.smoothness.overall, case.smoothness.quadratic_mean)
    yield Admissible("nonconvex, PL", step, "1/(L + L̃√(r_av/r)/s*)", f"Condat et al. 2022, {MEMORY}")


# ---------------- EF21 on mini-batches: EF21-SGD with its floor, EF21-PAGE (both Fatkhullin et al. 2021) and EF21-SGDM


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

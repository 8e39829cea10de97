"""Constants and step sizes: against the printed ones, against each other, and against brute force."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from thinwire import (
    EF21,
    EF21W,
    EFBV,
    QSGD,
    Compressor,
    Contractive,
    EF21Plus,
    HardThreshold,
    Identity,
    Key,
    Layout,
    Natural,
    RandK,
    ScaledSign,
    TopK,
    parse,
    theory,
)
from thinwire.errors import AttachError, ConfigError, StepSizeWarning
from thinwire.payload import Payload
from thinwire.problems import file_order, least_squares, load_dataset, logistic_regression
from thinwire.problems.constants import constants
from thinwire.spec import RULES
from thinwire.theory import Smoothness
from thinwire.theory.smoothness import largest_eigenvalue, smallest_positive_eigenvalue

EPS = float(np.finfo(np.float64).eps)
ALPHAS = st.floats(1e-6, 1.0)
PRINTED = {  # the specification's table: L, L̃, mean, least and largest Lᵢ; γ for k = 1, 2, 4; √(β/θ) and θ for k = 1
    "phishing": (
        "0.362551",
        "0.366085",
        "0.366076",
        "0.3582",
        "0.3693",
        "2.016116e-02",
        "4.047625e-02",
        "8.158242e-02",
    ),
    "a9a": ("1.771920", "1.773067", "1.773041", "1.7571", "1.7872", "2.297345e-03", "4.604138e-03", "9.246535e-03"),
}
PRINTED_RECURSION = {"phishing": ("134.498", "0.007380"), "a9a": ("244.499", "0.004073")}
PRINTED_SQUARES = {"phishing": ("0.65020", "0.66439", "4.99e-04"), "a9a": ("6.28768", "6.29228", "3.06e-05")}


@pytest.mark.libsvm
@pytest.mark.parametrize("name", PRINTED)
def test_the_printed_constants_to_all_digits(name: str, libsvm_folder: str) -> None:
    data = load_dataset(name, libsvm_folder)
    known = logistic_regression(data, file_order(len(data), 20)).smoothness()
    d = data.rows.shape[1]
    means = [f"{value:.6f}" for value in (known.overall, known.quadratic_mean, known.arithmetic_mean)]
    extremes = [f"{value:.4f}" for value in (known.workers.min(), known.workers.max())]
    recursions = [theory.markov(k / d) for k in (1, 2, 4)]
    steps = [theory.ef21_nonconvex_step(known.overall, known.quadratic_mean, moving) for moving in recursions]
    assert (*means, *extremes, *(f"{step:.6e}" for step in steps)) == PRINTED[name]
    assert f"{known.pooled:.6f}" == PRINTED[name][0]
    assert (f"{recursions[0].ratio:.3f}", f"{recursions[0].theta:.6f}") == PRINTED_RECURSION[name]


@pytest.mark.libsvm
@pytest.mark.parametrize("name", PRINTED_SQUARES)
def test_the_printed_constants_of_least_squares(name: str, libsvm_folder: str) -> None:
    data = load_dataset(name, libsvm_folder)
    known = least_squares(data, file_order(len(data), 20)).smoothness()
    assert known.mu is not None
    found = (f"{known.overall:.5f}", f"{known.quadratic_mean:.5f}", f"{known.mu:.2e}")
    assert found == PRINTED_SQUARES[name]


# ----------------------------------------------------------------------------------------------------------- recursions


@given(ALPHAS)
def test_the_best_recursion_is_the_paper_s_and_no_other_s_beats_it(alpha: float) -> None:
    best = theory.markov(alpha)
    root = math.sqrt(1 - alpha)
    assert alpha / 2 <= best.theta <= alpha
    assert best.ratio == pytest.approx((1 + root) / alpha - 1, rel=8 * EPS / alpha, abs=8 * EPS / alpha)
    assert best.ratio <= 2 / alpha - 1
    for share in (0.1, 0.5, 0.9):
        if alpha < 1:
            assert theory.markov(alpha, share * alpha / (1 - alpha)).ratio >= best.ratio * (1 - 64 * EPS / alpha)


@given(st.floats(0.01, 0.99))
def test_the_best_s_gives_the_best_recursion(alpha: float) -> None:
    found, best = theory.markov(alpha, theory.young(alpha)), theory.markov(alpha)
    assert found.theta == pytest.approx(best.theta, rel=64 * EPS / alpha)
    assert found.beta == pytest.approx(best.beta, rel=64 * EPS / alpha)


def test_nothing_is_lost_at_alpha_one() -> None:
    assert theory.markov(1.0) == theory.Recursion(1.0, 0.0)
    assert theory.young(1.0) == math.inf
    assert theory.ef21_nonconvex_step(4.0, 5.0, theory.markov(1.0)) == 1 / 4
    assert theory.stochastic_markov(1.0).noise == 1.0


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.1, math.nan])
def test_an_alpha_outside_its_range_is_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match=r"lies in \(0, 1\]"):
        theory.markov(alpha)


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.9))
def test_three_point_methods_at_their_limits(alpha: float, other: float) -> None:
    assert theory.clag(alpha, 0.0) == theory.markov(alpha)
    assert theory.lag(0.0) == theory.Recursion(1.0, 0.0)
    assert theory.three_point_v1(1.0) == theory.Recursion(1.0, 0.0)
    assert theory.three_point_v2(1.0, 3.0) == theory.Recursion(1.0, 0.0)
    assert theory.three_point_v5(alpha, 1.0) == theory.Recursion(1.0, 0.0)
    assert theory.three_point_v4(alpha, other) == theory.three_point_v4(other, alpha)
    assert theory.three_point_v4(alpha, other).ratio <= theory.markov(alpha).ratio
    assert theory.marina(1.0, 3.0, 4) == theory.Recursion(1.0, 0.0)


def test_marina_s_step_is_the_paper_s_where_workers_are_alike() -> None:
    L, p, omega, n = 2.0, 0.25, 3.0, 10
    step = theory.ef21_nonconvex_step(L, L, theory.marina(p, omega, n))
    assert step == pytest.approx(1 / (L * (1 + math.sqrt((1 - p) * omega / (p * n)))), rel=8 * EPS)
    assert theory.marina_probability(omega) == p


# ---------------------------------------------------------------------------------------------------------- compressors


@pytest.mark.parametrize(
    ("compressor", "alpha"),
    [(TopK(count=3), 0.3), (RandK(0.2), 0.2), (Identity(), 1.0), (ScaledSign(), 0.1), (Contractive(Natural()), 8 / 9)],
    ids=str,
)
def test_a_compressor_s_contraction(compressor: Compressor, alpha: float) -> None:
    assert theory.contraction(compressor, 10) == pytest.approx(alpha, rel=4 * EPS)


@pytest.mark.parametrize(
    ("compressor", "problem"),
    [
        (TopK(count=11), "keeps 11 numbers of 10; take a count of at most 10"),
        (RandK(count=11), "keeps 11 numbers of 10"),
        (HardThreshold(0.1), "promises no contraction"),
        (QSGD(1, 16), r"write contractive\(qsgd\(1, 16\)\), whose alpha is 0.24"),
    ],
    ids=str,
)
def test_what_is_no_contraction_is_refused(compressor: Compressor, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        theory.contraction(compressor, 10)


def test_bias_and_variance_of_each_kind() -> None:
    assert theory.bias_and_variance(Natural(), 10) == (0.0, 1 / 8)
    assert theory.bias_and_variance(RandK(count=2), 10) == (1 - 0.2, 0.2 * (1 - 0.2))
    assert theory.bias_and_variance(TopK(count=2), 10) == (math.sqrt(1 - 0.2), 0.0)
    eta, omega = theory.bias_and_variance(Contractive(Natural()), 10)
    assert eta**2 + omega == pytest.approx(1 / 9, rel=8 * EPS)  # together the error 1 − α
    with pytest.raises(ConfigError, match="leave its values full"):
        theory.bias_and_variance(RandK(0.2, values="bfloat16"), 10)
    with pytest.raises(ConfigError, match="is biased"):
        theory.variance(TopK(0.1), 10)
    draws = [not theory.is_deterministic(c) for c in (TopK(0.1), Identity(), RandK(0.1), Natural())]
    assert draws == [False, False, True, True]


@dataclass(frozen=True)
class Undeclared(Compressor):
    """Half of all, by a class that does not say what it draws."""

    name: ClassVar[str] = "undeclared"

    def __call__(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        return TopK(0.5)(x, layout, key)

    def delta(self, numel: int) -> float:
        return 0.5


def test_no_theorem_rests_on_what_a_compressor_does_not_say() -> None:
    one = Smoothness(1.0, 1.0, np.ones(4), np.ones(4), np.ones(4, dtype=np.int64))
    assert not theory.is_deterministic(Undeclared())
    assert theory.independent_draws(Undeclared(), 50) == 1
    with pytest.raises(ConfigError, match="does not say that it is one"):
        theory.admissible(EF21Plus(Undeclared()), one, 10)
    with pytest.raises(ConfigError, match="is not known"):
        theory.admissible(EFBV(Undeclared()), one, 10)
    assert theory.admissible(EF21(Undeclared()), one, 10)


# ----------------------------------------------------------------------------------------------------------- step sizes


@given(ALPHAS, st.floats(0.1, 10), st.floats(1, 3))
def test_every_step_is_gradient_descent_s_at_most_and_reaches_it_without_compression(
    alpha: float, L: float, spread: float
) -> None:
    L_tilde = L * spread
    for moving in (theory.markov(alpha), theory.markov(1.0)):
        free = moving.beta == 0
        same = theory.ef21_bc_step(L, L_tilde, moving, theory.markov(1.0))
        steps = [
            theory.ef21_nonconvex_step(L, L_tilde, moving),
            theory.ef21_pp_step(L, np.full(3, L_tilde), moving, np.ones(3)),
            theory.ef21_page_step(L, L_tilde, moving, 1.0, 0.0),
            same,
        ]
        assert all(step == 1 / L if free else step < 1 / L for step in steps)
        assert same <= steps[0]


def test_partial_participation_uses_a_rho_that_keeps_theta_positive() -> None:
    moving, L = theory.markov(0.01), np.array([1.0, 2.0, 3.0])
    p = np.full(3, 0.1)
    rho = theory.ef21_pp_rho(p, moving)
    assert rho == pytest.approx(0.1 * moving.theta / (2 * 0.9), rel=8 * EPS)
    weights = moving.beta * p + (1 + 1 / rho) * (1 - p)
    by_hand = 1 / (3 + math.sqrt(float((weights * L**2).mean()) / (0.1 * moving.theta / 2)))
    assert theory.ef21_pp_step(3.0, L, moving, p) == pytest.approx(by_hand, rel=64 * EPS / moving.theta)
    with pytest.raises(ConfigError, match=r"rho = 0\.001 makes theta_p = -"):
        theory.ef21_pp_step(3.0, L, moving, p, rho=1e-3)
    with pytest.raises(ConfigError, match="closer to each other"):
        theory.ef21_pp_step(3.0, L, moving, np.array([0.1, 0.5, 0.5]))


def test_ef_bv_has_the_special_cases_of_its_paper() -> None:
    top = theory.EFBVConstants.best(math.sqrt(0.9), 0.0, 0.0)
    assert (top.lam, top.nu) == (1.0, 1.0)  # EF21
    assert (1 / top.step(1.0, 1.0) - 1) == pytest.approx(36.5, abs=0.05)
    assert math.sqrt(2) * theory.markov(0.1).ratio == pytest.approx(26.1, abs=0.05)
    diana = theory.EFBVConstants.best(0.0, 3.0, 0.0)
    assert (diana.lam, diana.nu) == (1 / 4, 1.0)
    assert theory.EFBVConstants.best(0.0, 0.0, 0.0).step(2.0, 3.0) == 1 / 2
    assert diana.pl_rate(1e-9, 0.1) == 1 - 1e-10
    with pytest.raises(ConfigError, match=r"take at most lambda\* = 0\.25"):
        theory.EFBVConstants(0.0, 3.0, 3.0, 1.0, 1.0)


@given(st.floats(0.01, 0.99))
def test_the_stochastic_recursion_keeps_theta_and_its_floor_grows_as_one_over_alpha_squared(alpha: float) -> None:
    noisy = theory.stochastic_markov(alpha)
    assert noisy.moving.theta == pytest.approx(theory.markov(alpha).theta, rel=64 * EPS / alpha)
    assert noisy.moving.ratio >= theory.markov(alpha).ratio
    floor = theory.ef21_sgd_floor(noisy, sigma2=3.0, batch=4)
    assert 1 <= floor / (3 / 4) * alpha**2 <= 16
    assert theory.ef21_sgd_bound(1.0, 2.0, 0.1, noisy, 10**9, 3.0, 4) >= floor
    with pytest.raises(ConfigError, match="must be below 1"):
        theory.stochastic_markov(alpha, s=1 / (1 - alpha), nu=1.0)


def test_page_needs_no_variance_when_every_round_is_full() -> None:
    moving = theory.markov(0.1)
    assert theory.page_probability(np.array([1.0, 3.0]), np.array([3.0, 9.0])) == 0.25
    variance = theory.page_variance(0.25, np.array([1.0, 4.0]), np.array([2.0, 4.0]))
    assert variance == 0.75 * (4 + 4) / 2
    assert theory.ef21_page_step(1.0, 2.0, moving, 0.25, variance) < theory.ef21_page_step(1.0, 2.0, moving, 1.0, 0.0)


def test_the_smaller_formulas_by_hand() -> None:
    moving = theory.markov(0.1)
    assert theory.ef21_sgdm_step(2.0, 4.0, 0.1, 0.5) == min(0.1 / 80, 0.5 / 14)
    assert theory.ef21_hb_step(2.0, 4.0, moving, 0.0) == pytest.approx(1 / (1 + 4 * math.sqrt(2) * moving.ratio))
    assert theory.ef21_prox_step(2.0, 4.0, moving) == 1 / (1 + 4 * moving.ratio)
    assert theory.ef21_p_step(2.0, 0.1) == 0.1 / 32
    assert theory.econtrol_eta(0.1) == 0.1 / 400
    assert theory.normalised_step(3.0, 8) == 1.0
    assert theory.parameter_agnostic_eta(6, 0.5) == 0.5
    alike = np.full(8, 4.0)
    assert theory.rare_features_step(2.0, alike, 8, moving) == theory.ef21_nonconvex_step(2.0, 4.0, moving)
    assert theory.rare_features_step(2.0, alike, 1, moving) > theory.ef21_nonconvex_step(2.0, 4.0, moving)


UP, DOWN = theory.Recursion(0.5, 2.0), theory.Recursion(0.25, 2.25)  # β/θ = 4 and 9
NOISY = theory.stochastic_markov(0.5, s=0.2, nu=0.25)
BV = theory.EFBVConstants(eta=0.5, omega=2.0, omega_average=0.5, lam=0.2, nu=0.4)
BY_HAND = {  # at arguments of which no factor is 0 or 1; L = 2 and L̃ = 3 throughout, arithmetic as the specification's
    "θ(s), α = 1/2, s = 1/2": (theory.markov(0.5, 0.5).theta, 1 - 0.5 * 1.5),
    "β(s), α = 1/2, s = 1/2": (theory.markov(0.5, 0.5).beta, 0.5 * 3),
    "s*, α = 3/4": (theory.young(0.75), 1.0),  # 1/√¼ − 1
    "θ, α = 3/4": (theory.markov(0.75).theta, 0.5),  # 1 − √¼
    "β, α = 3/4": (theory.markov(0.75).beta, 0.5),  # ¼/½
    "T1": (theory.ef21_nonconvex_step(2.0, 3.0, UP), 1 / 8),  # 1/(2 + 3·2)
    "T2, curvature": (theory.ef21_pl_step(2.0, 3.0, UP, 0.1), 1 / (2 + 3 * math.sqrt(8))),  # θ/2μ = 2.5
    "T2, PL": (theory.ef21_pl_step(2.0, 3.0, UP, 4.0), 0.0625),  # θ/2μ = 0.5/8
    "T1, bound": (theory.ef21_nonconvex_bound(3.0, 2.0, 0.1, UP, 10), 6.4),  # 2·3/(0.1·10) + 2/(0.5·10)
    "T1, Lyapunov": (theory.ef21_nonconvex_lyapunov(3.0, 2.0, 0.1, UP), 3.2),  # 3 + 0.1/(2·0.5)·2
    "T2, Lyapunov": (theory.ef21_pl_lyapunov(3.0, 2.0, 0.1, UP), 3.4),  # 3 + 0.1/0.5·2
    "T2, bound": (theory.ef21_pl_bound(3.4, 0.1, 5.0, 2), 0.85),  # (1 − 0.5)² · 3.4
    "Prox": (theory.ef21_prox_step(2.0, 3.0, UP), 1 / 7),  # 1/(1 + 3·2)
    "W": (theory.ef21_w_step(2.0, 2.5, UP), 1 / 7),  # 1/(2 + 2.5·2)
    "rare features": (theory.rare_features_step(2.0, np.arange(1.0, 5), 1, UP), 1 / 4),  # L₊ = √¼·4; 1/(2 + 2·½·2)
    "BC": (theory.ef21_bc_step(2.0, 3.0, UP, DOWN), 1 / (2 + 3 * math.sqrt(728))),  # 16·9 + 2·4·(1 + 8·9) = 728
    "PAGE": (theory.ef21_page_step(2.0, 3.0, UP, 0.25, 5.0), 1 / (2 + math.sqrt(304))),  # 4·4·9 + 2(3·4 + 4)·5 = 304
    "HB": (theory.ef21_hb_step(2.0, 3.0, UP, 0.5), 1 / (6 + 6 * math.sqrt(40))),  # 1.5·2/(2·¼); 3/½ · √(2·4·(1 + 4))
    "PP, ρ": (theory.ef21_pp_rho(np.array([0.8, 1.0]), UP), 0.75),  # (0.5 − 0.2)/(2·0.2)
    "PP": (  # θ_p = 0.75·0.8 + 0.5 − 0.75 − 0.2 = 0.15; B = ½ [(2·0.8 + 7/3·0.2)·1 + 2·4] = 151/30
        theory.ef21_pp_step(2.0, np.array([1.0, 2.0]), UP, np.array([0.8, 1.0])),
        1 / (2 + math.sqrt(151 / 30 / 0.15)),
    ),
    "SGDM, α": (theory.ef21_sgdm_step(2.0, 3.0, 0.3, 0.9), 0.005),  # 0.3/60 < 0.9/14
    "SGDM, η": (theory.ef21_sgdm_step(2.0, 3.0, 0.3, 0.014), 0.001),  # 0.014/14 < 0.3/60
    "SGD, θ̂": (NOISY.moving.theta, 0.25),  # 1 − 0.5·1.2·1.25
    "SGD, β̂₁": (NOISY.moving.beta, 3.0),  # 0.5·1.2·(1 + 4)
    "SGD, β̂₂": (NOISY.noise, 6.6),  # 0.5·1.2 + 1 + 5
    "SGD": (theory.ef21_sgd_step(2.0, 3.0, NOISY), 1 / (2 + 3 * math.sqrt(12))),
    "SGD, floor": (theory.ef21_sgd_floor(NOISY, 3.0, 4), 19.8),  # 6.6/0.25 · 3/4
    "SGD, bound": (theory.ef21_sgd_bound(3.0, 2.0, 0.1, NOISY, 10, 3.0, 4), 26.6),  # 6/1 + 2/2.5 + 19.8
    "P": (theory.ef21_p_step(2.0, 0.8), 0.025),  # 0.8/32
    "LAG, B": (theory.lag(0.7).beta, 0.7),
    "CLAG, A": (theory.clag(0.75, 3.0).theta, 0.5),
    "CLAG, B, ζ": (theory.clag(0.75, 3.0).beta, 3.0),
    "CLAG, B, β": (theory.clag(0.75, 0.2).beta, 0.5),
    "v1, B": (theory.three_point_v1(0.3).beta, 0.7),
    "v2, A": (theory.three_point_v2(0.2, 3.0).theta, 0.2),
    "v2, B": (theory.three_point_v2(0.2, 3.0).beta, 2.4),  # 0.8·3
    "v4, A": (theory.three_point_v4(0.6, 0.375).theta, 0.5),  # ᾱ = 1 − 0.4·0.625 = 3/4
    "v4, B": (theory.three_point_v4(0.6, 0.375).beta, 0.5),
    "v5, A": (theory.three_point_v5(0.3, 0.36).theta, 0.2),  # 1 − √0.64
    "v5, B": (theory.three_point_v5(0.3, 0.36).beta, 2.24),  # 0.64·0.7/0.2
    "MARINA, A": (theory.marina(0.2, 3.0, 4).theta, 0.2),
    "MARINA, B": (theory.marina(0.2, 3.0, 4).beta, 0.6),  # 0.8·3/4
    "EF-BV, r": (BV.r, 0.89),  # (0.8 + 0.1)² + 0.04·2
    "EF-BV, r_av": (BV.r_average, 0.72),  # (0.6 + 0.2)² + 0.16·0.5
    "EF-BV": (BV.step(2.0, 3.0), 1 / (2 + 3 * math.sqrt(0.72 / 0.89) / (math.sqrt(1.89 / 1.78) - 1))),
    "EF-BV, PL, γμ": (BV.pl_rate(0.1, 0.2), 0.98),  # above (0.89 + 1)/2
    "EF-BV, PL, r": (BV.pl_rate(0.5, 0.2), 0.945),  # (0.89 + 1)/2, above 1 − 0.1
    "EF-BV, λ*": (theory.EFBVConstants.best(0.5, 2.0, 0.5).lam, 2 / 9),  # 0.5/(0.25 + 2)
    "EF-BV, ν*": (theory.EFBVConstants.best(0.5, 2.0, 0.5).nu, 2 / 3),  # 0.5/(0.25 + 0.5)
    "tight, step": (theory.tight_step(3.0, 1.0, 0.75), 1 / 6),  # 2/4 · ½/(3/2)
    "tight, rate": (  # λ = (1/6)/4 · [½·2 + 3/2·√(4 + 16·3·½/(9/4))], ρ = ½ + ¼·3/2·2·λ
        theory.tight_rate(3.0, 1.0, 0.75),
        0.5 + 0.75 * (1 + 1.5 * math.sqrt(44 / 3)) / 24,
    ),
    "tight, Lyapunov": (theory.tight_lyapunov(np.array([1.0, 2]), np.array([3.0, 1]), 0.75), 7.5),  # 1.5·5 − 2·5 + 10
}


@pytest.mark.parametrize("formula", BY_HAND)
def test_every_formula_has_the_value_that_was_worked_out_by_hand(formula: str) -> None:
    found, expected = BY_HAND[formula]
    assert found == pytest.approx(expected, rel=64 * EPS)


SPECS = (
    "plain(identity())",
    "memsgd(topk(0.1))",
    "ef21(topk(0.1))",
    "ef21plus(topk(0.1))",
    "ef21sgdm(topk(0.1))",
    "ef21hb(topk(0.1))",
    "ef21pp(topk(0.1), 0.5)",
    "ef21bc(topk(0.1), topk(0.2))",
    "ef21page(topk(0.1), 0.25)",
    "efbv(contractive(natural()))",
    "clag(topk(0.1), zeta=4.0)",
    "clag(identity(), zeta=4.0)",
    "threepcv2(topk(0.1), natural())",
    "threepcv4(topk(0.1), topk(0.2))",
    "threepcv5(topk(0.1), 0.25)",
    "marina(natural(), 0.5)",
)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.partition("(")[0] in RULES])
def test_a_method_s_step_sizes_are_below_gradient_descent_s(spec: str) -> None:
    ones = np.ones(4)
    known = theory.Smoothness(1.0, 1.0, ones, ones, np.full(4, 50), mu=0.1)
    found = theory.admissible(parse(spec), known, 100)
    assert found
    assert all(0 < each.step <= 1 and each.formula and each.source for each in found)


@pytest.mark.parametrize("spec", SPECS)
def test_only_methods_whose_theory_has_theta_and_beta_show_them(spec: str) -> None:
    lacking = spec.startswith(("plain", "ef21sgdm", "efbv"))
    assert (theory.method_recursion(parse(spec), 100, 4) is None) == lacking


@pytest.mark.parametrize(
    "spec", ["econtrol(topk(0.1))", "ef21p(ef21(topk(0.1)), topk(0.1))", "ef21sgd2m(topk(0.1))", "plain(topk(0.1))"]
)
def test_foreign_constants_are_left_out(spec: str) -> None:
    problem = logistic_regression(load_dataset(), file_order(569, 4))
    found = constants(parse(spec), problem)
    assert (found.recursion, found.young) == (None, None)
    assert constants(parse("ef21(topk(0.1))"), problem).young == theory.young(0.1)


@pytest.mark.parametrize(
    "spec",
    [
        "ef21p(ef21(topk(count=31)), topk(0.1))",
        "ef21p(ef21(topk(0.1)), topk(count=31))",
        "ef21bc(topk(0.1), topk(count=31))",
        "threepcv2(topk(0.1), unbias(randk(count=31)))",
    ],
)
def test_every_compressor_s_count_is_held_against_d(spec: str) -> None:
    with pytest.raises(ConfigError, match="keeps 31 numbers of 30"):
        constants(parse(spec), logistic_regression(load_dataset(), file_order(569, 4)))


def test_ef21_w_s_step_is_that_of_its_own_weights() -> None:
    """L = (1, 3), θ and β of α = 3/4 (√(β/θ) = 1). Weights of the Lᵢ themselves give their mean, 2; equal ones L̃ = √5;
    w = (3/4, 1/4) give √(3/4 (1/1.5)² + 1/4 (3/0.5)²) = √(1/3 + 9) = √(28/3)."""
    L = np.array([1.0, 3.0])
    known = theory.Smoothness(2.0, 2.0, L, L, np.full(2, 50))
    for own, mean in (((1.0, 3.0), 2.0), ((5.0, 5.0), math.sqrt(5)), ((3.0, 1.0), math.sqrt(28 / 3))):
        (found,) = theory.admissible(EF21W(TopK(count=3), own), known, 4)
        assert found.step == pytest.approx(1 / (2 + mean), rel=64 * EPS)
        weights = np.array(own) / sum(own)
        assert mean <= (L / (2 * weights)).max() * (1 + 8 * EPS)
    with pytest.raises(AttachError, match="smoothness of 3 workers, this run has 2"):
        theory.admissible(EF21W(TopK(count=3), (1.0, 2.0, 3.0)), known, 4)


def test_rules_without_theory_and_compressors_without_guarantee_are_refused() -> None:
    ones = np.ones(4)
    known = theory.Smoothness(1.0, 1.0, ones, ones, np.full(4, 50))
    assert theory.admissible(parse("econtrol(topk(0.1))"), known, 100) == []
    assert theory.admissible(parse("plain(qsgd(1))"), known, 100) == []
    assert theory.method_recursion(parse("plain(qsgd(1))"), 100, 4) is None
    with pytest.raises(ConfigError, match=r"no theory of vgc.*there is of .*ef21"):
        theory.admissible(parse("vgc(1.5)"), known, 100)
    with pytest.raises(ConfigError, match="deterministic compressors only"):
        theory.admissible(EF21Plus(RandK(0.1)), known, 100)


def test_a_step_beyond_theory_is_a_warning_with_the_bound() -> None:
    with pytest.warns(StepSizeWarning, match=r"step size 0\.5 is 25 × the largest that theorem 1 admits, 0\.02"):
        assert theory.check_step_size(0.5, 0.02, "theorem 1") == 25
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert theory.check_step_size(0.02, 0.02, "theorem 1") == 1
    with pytest.raises(ConfigError, match="finite number above 0, got 0"):
        theory.check_step_size(0, 0.02, "theorem 1")


# ----------------------------------------------------------------------------------------------------------- smoothness


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_eigenvalues_are_those_of_brute_force(rows: int, columns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    A = random.normal(size=(rows, columns)) * (random.random((rows, columns)) < 0.5)
    assume(np.abs(A).max() > 0)
    squares = np.square(np.linalg.svd(A, compute_uv=False))
    positive = squares[squares > max(A.shape) * EPS * squares[0]]
    tolerance = 64 * EPS * max(A.shape) * squares[0]
    assert largest_eigenvalue(A) == pytest.approx(squares[0], abs=tolerance)
    assert smallest_positive_eigenvalue(A) == pytest.approx(positive[-1], abs=tolerance)


def test_lanczos_agrees_with_the_dense_route(monkeypatch: pytest.MonkeyPatch) -> None:
    A = np.random.default_rng(0).normal(size=(60, 40))
    dense = largest_eigenvalue(A)
    monkeypatch.setattr("thinwire.theory.smoothness.DENSE_SIDE", 8)
    assert largest_eigenvalue(A) == pytest.approx(dense, rel=64 * EPS * 60)
    assert smallest_positive_eigenvalue(A) is None

"""Admissible step sizes of a method on a problem: every theorem that covers it, with its formula and source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from thinwire.compressors import Compressor, Identity
from thinwire.errors import ConfigError
from thinwire.feedback import Feedback, Rule
from thinwire.spec import rule_from
from thinwire.theory import three_point
from thinwire.theory.bidirectional import ef21_bc_step, ef21_p_step
from thinwire.theory.contraction import bias_and_variance, contraction, independent_draws, is_deterministic, variance
from thinwire.theory.ef21 import ef21_nonconvex_step, ef21_pl_step, ef21_w_step, weighted_smoothness
from thinwire.theory.efbv import EFBVConstants
from thinwire.theory.momentum import ef21_hb_step, ef21_sgdm_step
from thinwire.theory.partial import ef21_pp_step
from thinwire.theory.recursion import Recursion, markov
from thinwire.theory.smoothness import Smoothness
from thinwire.theory.stochastic import ef21_page_step, ef21_sgd_step, page_variance, stochastic_markov
from thinwire.theory.tight import tight_step

T1, T2 = "1/(L + L̃√(β/θ))", "min{1/(L + L̃√(2β/θ)), θ/2μ}"
NO_THEOREM = "unit of the EF21 paper, no theorem"
EF21_PAPER, BELLS, MEMORY = "Richtárik et al. 2021", "Fatkhullin et al. 2021", "recalled"


@dataclass(frozen=True)
class Admissible:
    """The largest step size (or the bound that it must stay below) of one theorem."""

    setting: str
    step: float
    formula: str
    source: str


@dataclass(frozen=True)
class Case:
    """A method on a problem."""

    rule: Any
    """A `Feedback`; each entry below reads the fields that its own rule has."""
    smoothness: Smoothness
    d: int

    @property
    def alpha(self) -> float:
        return contraction(compressor_of(self.rule), self.d)

    @property
    def workers(self) -> int:
        return len(self.smoothness.workers)

    @property
    def draws(self) -> int:
        """Independent ones in the mean of the workers' messages; ω_av = ω/draws."""
        return independent_draws(self.rule.compressor, self.workers)

    @property
    def recursion(self) -> Recursion:
        return _RECURSIONS[self.rule.name](self)


def admissible(rule: Rule | str, smoothness: Smoothness, d: int) -> list[Admissible]:
    """Every step size that theory states for the rule; empty for one that it states none for.

    >>> one = Smoothness(1.0, 1.0, np.ones(4), np.ones(4), np.ones(4, dtype=np.int64))
    >>> [(each.setting, round(each.step, 4)) for each in admissible("ef21(topk(count=1))", one, 16)]
    [('nonconvex', 0.0318), ('nonconvex, mean of the Lᵢ', 0.0318), ('nonconvex, mini-batches', 0.0226)]
    """
    rule = covered(rule)
    return list(_STEPS[rule.name](Case(rule, smoothness, d)))


def method_recursion(rule: Rule | str, d: int, workers: int) -> Recursion | None:
    """θ and β of a rule on d numbers; None where its theory has none, or its compressor is no contraction."""
    rule = covered(rule)
    if rule.name not in _RECURSIONS or (rule.name in _EF21S and compressor_of(rule).delta(d) <= 0):
        return None
    any_ = np.ones(workers)
    return Case(rule, Smoothness(1.0, 1.0, any_, any_, any_.astype(np.int64)), d).recursion


def compressor_of(rule: Feedback) -> Compressor:
    """The compressor that a rule's theory is about: EF21-P's is that of the model."""
    compressor: Compressor = getattr(rule, "model", None) or rule.compressor
    return compressor


def covered(rule: Rule | str) -> Feedback:
    """The rule, if there is a theory of it; else a `ConfigError` that names those of which there is."""
    rule = rule_from(rule)
    if not isinstance(rule, Feedback) or rule.name not in _STEPS:
        raise ConfigError(f"there is no theory of {rule} here; there is of {', '.join(sorted(_STEPS))}")
    return rule


# ----------------------------------------------------------------------------------------------------------- recursions


def _markov(case: Case) -> Recursion:
    return markov(case.alpha)


def _clag(case: Case) -> Recursion:
    if isinstance(case.rule.compressor, Identity):
        return three_point.lag(case.rule.zeta)
    return three_point.clag(case.alpha, case.rule.zeta)


def _v2(case: Case) -> Recursion:
    return three_point.three_point_v2(case.alpha, variance(case.rule.change, case.d))


def _v4(case: Case) -> Recursion:
    return three_point.three_point_v4(case.alpha, contraction(case.rule.second, case.d))


def _v5(case: Case) -> Recursion:
    return three_point.three_point_v5(case.alpha, case.rule.probability)


def _marina(case: Case) -> Recursion:
    return three_point.marina(case.rule.probability, variance(case.rule.compressor, case.d), case.draws)


_EF21S = ("ef21", "ef21plus", "ef21w", "ef21hb", "ef21pp", "ef21bc", "ef21page", "memsgd")
"""The methods whose θ and β are EF21's; of memsgd those of its unit in the EF21 paper."""
_RECURSIONS: dict[str, Callable[[Case], Recursion]] = {
    **dict.fromkeys(_EF21S, _markov),
    "clag": _clag,
    "threepcv2": _v2,
    "threepcv4": _v4,
    "threepcv5": _v5,
    "marina": _marina,
}
"""Of the methods that have one; the others' theory is stated otherwise, or not at all."""


# ----------------------------------------------------------------------------------------------------------- step sizes


def _theorems(case: Case, source: str = EF21_PAPER) -> Iterator[Admissible]:
    """Theorems 1 and 2 with the method's own recursion."""
    known = case.smoothness
    yield Admissible("nonconvex", ef21_nonconvex_step(known.overall, known.quadratic_mean, case.recursion), T1, source)
    if known.mu is not None:
        yield Admissible("PL", ef21_pl_step(known.overall, known.quadratic_mean, case.recursion, known.mu), T2, source)


def _tight(case: Case) -> Iterator[Admissible]:
    known = case.smoothness
    if case.workers == 1 and known.strongly_convex and known.mu is not None:
        formula, source = "2/(L+μ) · (1−√(1−α))/(1+√(1−α))", "Thomsen et al. 2025"
        yield Admissible(
            "one worker, strongly convex", tight_step(known.overall, known.mu, case.alpha), formula, source
        )


def _ef21(case: Case) -> Iterator[Admissible]:
    known = case.smoothness
    yield from _theorems(case)
    arithmetic = ef21_w_step(known.overall, known.arithmetic_mean, case.recursion)
    yield Admissible("nonconvex, mean of the Lᵢ", arithmetic, "1/(L + mean Lᵢ √(β/θ))", "Richtárik et al. 2024")
    stochastic = ef21_sgd_step(known.overall, known.quadratic_mean, stochastic_markov(case.alpha))
    yield Admissible("nonconvex, mini-batches", stochastic, "1/(L + L̃√(β̂₁/θ̂))", f"{BELLS}, derived")
    yield from _tight(case)


def _ef21plus(case: Case) -> Iterator[Admissible]:
    if not is_deterministic(case.rule.compressor):
        raise ConfigError(
            f"EF21+ has a theory for deterministic compressors only; {case.rule.compressor} draws: use topk"
        )
    return _theorems(case)


def _ef21w(case: Case) -> Iterator[Admissible]:
    """With the rule's own weights, which need not be those of the Lᵢ."""
    case.rule.admit_workers(case.workers)
    known, weights = case.smoothness, np.array([case.rule.share(i, case.workers) for i in range(case.workers)])
    step = ef21_w_step(known.overall, weighted_smoothness(known.workers, weights), case.recursion)
    yield Admissible("nonconvex", step, "1/(L + √(Σ wᵢ (Lᵢ/nwᵢ)²) √(β/θ))", "Richtárik et al. 2024, derived")


def _memsgd(case: Case) -> Iterator[Admissible]:
    """The EF21 paper tunes EF in multiples of EF21's step; a theorem it is for one worker alone, and another one."""
    step = ef21_nonconvex_step(case.smoothness.overall, case.smoothness.quadratic_mean, case.recursion)
    yield Admissible(NO_THEOREM, step, T1, EF21_PAPER)
    yield from _tight(case)


def _plain(case: Case) -> Iterator[Admissible]:
    if isinstance(case.rule.compressor, Identity):
        yield Admissible("nonconvex", 1 / case.smoothness.overall, "1/L", "gradient descent")


def _sgdm(case: Case) -> Iterator[Admissible]:
    step = ef21_sgdm_step(case.smoothness.overall, case.smoothness.quadratic_mean, case.alpha, case.rule.eta)
    yield Admissible("nonconvex, mini-batches", step, "min{α/20L̃, η/7L}", f"Fatkhullin et al. 2023, {MEMORY}")


def _hb(case: Case) -> Iterator[Admissible]:
    step = ef21_hb_step(case.smoothness.overall, case.smoothness.quadratic_mean, case.recursion, case.rule.eta)
    formula = "below 1/((1+η)L/2(1−η)² + L̃/(1−η) √(2β/θ (1+4η²/(1−η)²)))"
    yield Admissible("nonconvex", step, formula, f"{BELLS}, {MEMORY}")


def _pp(case: Case) -> Iterator[Admissible]:
    each = np.full(case.workers, float(case.rule.probability))
    step = ef21_pp_step(case.smoothness.overall, case.smoothness.workers, case.recursion, each)
    yield Admissible("nonconvex", step, "1/(L + √(B/θ_p)), ρ = pθ/2(1−p)", BELLS)


def _bc(case: Case) -> Iterator[Admissible]:
    down = markov(contraction(case.rule.server, case.d))
    step = ef21_bc_step(case.smoothness.overall, case.smoothness.quadratic_mean, case.recursion, down)
    yield Admissible("nonconvex", step, "1/(L + L̃√(16 β_M/θ_M + 2β_w/θ_w (1 + 8 β_M/θ_M)))", BELLS)


def _page(case: Case) -> Iterator[Admissible]:
    """Batches are those for which the paper's p = τᵢ/(τᵢ + Nᵢ) is the rule's."""
    p, known = case.rule.probability, case.smoothness
    variance = page_variance(p, p * known.sizes / (1 - p), known.samples) if p < 1 else 0.0
    step = ef21_page_step(known.overall, known.quadratic_mean, case.recursion, p, variance)
    yield Admissible("nonconvex, τᵢ = pNᵢ/(1−p)", step, "1/(L + √(4β/θ L̃² + 2(3β/θ + 1/p) ℒ))", BELLS)


def _efbv(case: Case) -> Iterator[Admissible]:
    eta, omega = bias_and_variance(case.rule.compressor, case.d)
    constants = EFBVConstants(eta, omega, omega / case.draws, case.rule.lam, case.rule.nu)
    step = constants.step(case.smoothness.overall, case.smoothness.quadratic_mean)
    yield Admissible("nonconvex, PL", step, "1/(L + L̃√(r_av/r)/s*)", f"Condat et al. 2022, {MEMORY}")


def _p(case: Case) -> Iterator[Admissible]:
    whole = getattr(case.rule.rule, "compressor", None) == Identity()
    if whole and case.workers == 1 and case.smoothness.strongly_convex:
        step = ef21_p_step(case.smoothness.overall, case.alpha)
        yield Admissible("one worker, strongly convex", step, "α/16L", f"Gruntkowska et al. 2023, {MEMORY}")


def _three_point(case: Case) -> Iterator[Admissible]:
    return _theorems(case, "Richtárik et al. 2022")


def _unstated(case: Case) -> Iterator[Admissible]:
    return iter(())


_STEPS: dict[str, Callable[[Case], Iterator[Admissible]]] = {
    "plain": _plain,
    "memsgd": _memsgd,
    "ef21": _ef21,
    "ef21plus": _ef21plus,
    "ef21sgdm": _sgdm,
    "ef21sgd2m": _unstated,
    "ef21w": _ef21w,
    "ef21hb": _hb,
    "ef21pp": _pp,
    "ef21bc": _bc,
    "ef21page": _page,
    "ef21p": _p,
    "efbv": _efbv,
    "econtrol": _unstated,
    "clag": _three_point,
    "threepcv2": _three_point,
    "threepcv4": _three_point,
    "threepcv5": _three_point,
    "marina": _three_point,
}

"""Admissible step sizes of a method on a problem: every theorem that covers it, and the recursion it follows from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from thinwire.compressors import Compressor
from thinwire.errors import ConfigError
from thinwire.feedback import Feedback, Rule
from thinwire.spec import rule_from
from thinwire.theory.contraction import contraction, independent_draws
from thinwire.theory.smoothness import Smoothness


@dataclass(frozen=True)
class Recursion:
    """θ and β of a method, where G = (1/n) Σ ‖gᵢ − ∇fᵢ(x)‖² is how far the workers' estimates lie from their gradients.

    The 3PC paper writes A and B.
    """

    theta: float
    beta: float

    def __post_init__(self) -> None:
        if not (0 < self.theta <= 1 and 0 <= self.beta < math.inf):
            raise ConfigError(f"a recursion needs theta in (0, 1] and beta >= 0, got {self.theta} and {self.beta}")

    @property
    def ratio(self) -> float:
        """√(β/θ): how much of L̃ an admissible step size pays for compression."""
        return math.sqrt(self.beta / self.theta)


def young(alpha: float) -> float:
    """s* = 1/√(1 − α) − 1, the parameter of Young's inequality that makes β/θ least; infinite at α = 1."""
    _check_alpha(alpha)
    return math.inf if alpha == 1 else 1 / math.sqrt(1 - alpha) - 1


def markov(alpha: float, s: float | None = None) -> Recursion:
    """EF21's recursion: θ = 1 − (1 − α)(1 + s), β = (1 − α)(1 + 1/s)   (Richtárik et al. 2021).

    At s* = `young(α)`: θ = 1 − √(1 − α), β = (1 − α)/θ and √(β/θ) = (1 + √(1 − α))/α − 1. At α = 1 nothing is lost:
    θ = 1, β = 0.

    >>> f"{markov(1 / 123).ratio:.3f}"
    '244.499'
    """
    _check_alpha(alpha)
    if alpha == 1:
        return Recursion(1.0, 0.0)
    if s is None:
        theta = alpha / (1 + math.sqrt(1 - alpha))  # = 1 − √(1 − α), without its cancellation at small α
        return Recursion(theta, (1 - alpha) / theta)
    if not 0 < s < alpha / (1 - alpha):
        raise ConfigError(f"s must lie in (0, {alpha / (1 - alpha):.3g}) for alpha = {alpha:g}, got {s}; best is s*")
    return Recursion(1 - (1 - alpha) * (1 + s), (1 - alpha) * (1 + 1 / s))


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha <= 1:
        raise ConfigError(f"a contraction's alpha lies in (0, 1], got {alpha}")


BELLS, MEMORY = "Fatkhullin et al. 2021", "recalled"
"""Where several theorems stand, and how those are marked that could be checked against no paper."""

R = TypeVar("R", bound=Feedback)


@dataclass(frozen=True)
class Admissible:
    """The largest step size (or the bound that it must stay below) of one theorem."""

    setting: str
    step: float
    formula: str
    source: str


@dataclass(frozen=True)
class Case(Generic[R]):
    """A method on a problem."""

    rule: R
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
        return _RECURSIONS[type(self.rule)](self)


Steps = Callable[[Case[R]], Iterator[Admissible]]
Recursions = Callable[[Case[R]], Recursion]
_STEPS: dict[type[Feedback], Steps[Any]] = {}
_RECURSIONS: dict[type[Feedback], Recursions[Any]] = {}
"""Of the rules that have one; the others' theory is stated otherwise, or not at all."""


def steps_of(*kinds: type[R]) -> Callable[[Steps[R]], Steps[R]]:
    """Register a function as the theorems of these rules; one that yields nothing says that none states a step size."""

    def register(steps: Steps[R]) -> Steps[R]:
        _STEPS.update(dict.fromkeys(kinds, steps))
        return steps

    return register


def recursion_of(*kinds: type[R]) -> Callable[[Recursions[R]], Recursions[R]]:
    """Register a function as θ and β of these rules."""

    def register(recursion: Recursions[R]) -> Recursions[R]:
        _RECURSIONS.update(dict.fromkeys(kinds, recursion))
        return recursion

    return register


def ef21_recursion(case: Case[Any]) -> Recursion:
    """EF21's own θ and β, which many of its relatives share."""
    return markov(case.alpha)


def admissible(rule: Rule | str, smoothness: Smoothness, d: int) -> list[Admissible]:
    """Every step size that theory states for the rule; empty for one that it states none for.

    >>> one = Smoothness(1.0, 1.0, np.ones(4), np.ones(4), np.ones(4, dtype=np.int64))
    >>> [(each.setting, round(each.step, 4)) for each in admissible("ef21(topk(count=1))", one, 16)]
    [('nonconvex', 0.0318), ('nonconvex, mean of the Lᵢ', 0.0318), ('nonconvex, mini-batches', 0.0226)]
    """
    rule = covered(rule)
    return list(_STEPS[type(rule)](Case(rule, smoothness, d)))


def method_recursion(rule: Rule | str, d: int, workers: int) -> Recursion | None:
    """θ and β of a rule on d numbers; None where its theory has none, or its compressor is no contraction."""
    rule = covered(rule)
    own = _RECURSIONS.get(type(rule))
    if own is None or (own is ef21_recursion and compressor_of(rule).delta(d) <= 0):
        return None
    any_ = np.ones(workers)
    return own(Case(rule, Smoothness(1.0, 1.0, any_, any_, any_.astype(np.int64)), d))


def compressor_of(rule: Feedback) -> Compressor:
    """The compressor that a rule's theory is about: EF21-P's is that of the model."""
    compressor: Compressor = getattr(rule, "model", None) or rule.compressor
    return compressor


def covered(rule: Rule | str) -> Feedback:
    """The rule, if there is a theory of it; else a `ConfigError` that names those of which there is."""
    rule = rule_from(rule)
    if not isinstance(rule, Feedback) or type(rule) not in _STEPS:
        known = ", ".join(sorted(kind.name for kind in _STEPS))
        raise ConfigError(f"there is no theory of {rule} here; there is of {known}")
    return rule

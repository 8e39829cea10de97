"""A run held against theory before it starts: a step size beyond it may be the best, but no theorem covers it."""

from __future__ import annotations

import math
import warnings
from typing import Protocol, runtime_checkable

from thinwire.errors import ConfigError, StepSizeWarning
from thinwire.feedback import Rule, rule_of
from thinwire.theory.admissible import admissible
from thinwire.theory.contraction import check_counts
from thinwire.theory.ef21 import NO_THEOREM
from thinwire.theory.smoothness import Smoothness


def check_step_size(step: float, bound: float, theorem: str, *, stacklevel: int = 2) -> float:
    """step / bound, the multiple of theory; above 1 a `StepSizeWarning` names the bound. Refuses what is no step size.

    `stacklevel` is that of `warnings.warn`: whose line the warning is about.

    >>> check_step_size(0.01, 0.02, "EF21, theorem 1")
    0.5
    """
    if not (math.isfinite(step) and step > 0):
        raise ConfigError(f"a step size must be a finite number above 0, got {step}")
    multiple = step / bound
    if multiple > 1:
        problem = f"step size {step:g} is {multiple:.4g} × the largest that {theorem} admits, {bound:g}"
        warnings.warn(f"{problem}; convergence is not guaranteed", StepSizeWarning, stacklevel=stacklevel)
    return multiple


@runtime_checkable
class Smooth(Protocol):
    """A problem over one vector of d numbers that knows how smooth it is."""

    @property
    def d(self) -> int: ...

    def smoothness(self) -> Smoothness:
        """L, the Lᵢ and what is known of μ."""


def checked_size(size: float, step: int | None = None) -> float:
    """The step size, refused where no step could be taken with it."""
    if not (math.isfinite(size) and size >= 0):
        when = "" if step is None else f" at step {step}"
        raise ConfigError(f"a step size must be a finite number of at least 0, got {size}{when}")
    return size


def check_dimension(problem: Smooth, rule: Rule) -> None:
    """Refuse a count k > d. Parameters of a network may be smaller than k, which then keeps all of them; here there is
    one vector, and whoever wrote k meant another problem."""
    check_counts(rule_of(rule, "x", problem.d), problem.d)


def warn_beyond_theory(problem: Smooth, rule: Rule, size: float) -> None:
    """A `StepSizeWarning` where no theorem that covers the rule admits the step size; nothing where none covers it."""
    bounds = _theorems(problem, rule)
    if size > 0 and bounds:
        bound, theorem = max(bounds)
        check_step_size(size, bound, theorem, stacklevel=4)


def _theorems(problem: Smooth, rule: Rule) -> list[tuple[float, str]]:
    """Each theorem's largest step size, and where it stands."""
    try:
        found = admissible(rule_of(rule, "x", problem.d), problem.smoothness(), problem.d)
    except ConfigError:  # no theory of this rule, or none with this compressor
        return []
    return [(each.step, f"{each.source} ({each.setting})") for each in found if each.setting != NO_THEOREM]

"""The constants that theory knows of a method on a problem, and the step sizes that it admits."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from thinwire import theory
from thinwire.feedback import Rule
from thinwire.problems.finite_sum import FiniteSum


@dataclass(frozen=True, eq=False)
class Constants:
    """All of it, as values."""

    method: str
    rows: int
    d: int
    workers: int
    nbytes: int
    smoothness: theory.Smoothness
    alpha: float | None
    """Contraction of the rule's compressor; None where it promises none."""
    omega: float | None
    """Its variance; None where it is biased."""
    recursion: theory.Recursion | None
    """None where the method's theory has none."""
    steps: list[theory.Admissible]

    @property
    def young(self) -> float | None:
        """s* where θ is EF21's, which comes from it, and s* finite."""
        if self.alpha is None or self.alpha == 1 or self.recursion is None:
            return None
        return theory.young(self.alpha) if self.recursion.theta == theory.markov(self.alpha).theta else None

    def plain(self) -> dict[str, Any]:
        """For JSON: numbers, texts and lists."""
        known, moving = self.smoothness, self.recursion
        return {
            "method": self.method,
            **{name: getattr(self, name) for name in ("rows", "d", "workers", "nbytes", "alpha", "omega")},
            "young": self.young,
            "theta": moving and moving.theta,
            "beta": moving and moving.beta,
            "root_beta_theta": moving and moving.ratio,
            "L": known.overall,
            "L_pooled": known.pooled,
            "L_averaged": known.averaged,
            "L_quadratic_mean": known.quadratic_mean,
            "L_arithmetic_mean": known.arithmetic_mean,
            "L_least": float(known.workers.min()),
            "L_largest": float(known.workers.max()),
            "mu": known.mu,
            "steps": [asdict(step) for step in self.steps],
        }


def constants(rule: Rule, problem: FiniteSum) -> Constants:
    """The constants of `rule` on `problem`; a rule without theory, or with k > d, is a `ConfigError`."""
    rule = theory.covered(rule)
    compressor = theory.compressor_of(rule)
    theory.check_counts(rule, problem.d)  # before the eigenvalues, which can take seconds
    smoothness = problem.smoothness()
    steps = theory.admissible(rule, smoothness, problem.d)
    alpha = compressor.delta(problem.d)
    return Constants(
        method=str(rule),
        rows=len(problem.targets),
        d=problem.d,
        workers=problem.workers,
        nbytes=problem.nbytes,
        smoothness=smoothness,
        alpha=alpha if alpha > 0 else None,
        omega=compressor.omega(problem.d),
        recursion=theory.method_recursion(rule, problem.d, problem.workers),
        steps=steps,
    )

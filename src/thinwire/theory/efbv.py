"""EF-BV's constants: one theory for biased and unbiased compressors (Condat, Yi and Richtárik 2022; recalled)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from thinwire.errors import ConfigError
from thinwire.feedback import EFBV
from thinwire.theory.admissible import MEMORY, Admissible, Case, steps_of
from thinwire.theory.contraction import bias_and_variance


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

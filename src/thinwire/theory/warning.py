"""The warning for a step size beyond theory: it may well be the best one, but no theorem covers it."""

from __future__ import annotations

import math
import warnings

from thinwire.errors import ConfigError, StepSizeWarning


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

"""Losses ℓ(z, y) of a linear model's prediction z, for the compiled steps."""

from __future__ import annotations

from enum import IntEnum
from math import exp, log1p
from typing import Any

import numpy as np

from thinwire.errors import ConfigError
from thinwire.linear.steps.kernel import kernel


class Loss(IntEnum):
    """logistic: log(1 + exp(−yz)) and hinge: max(0, 1 − yz), for y = ±1; squared: (z − y)²/2."""

    LOGISTIC = 0
    SQUARED = 1
    HINGE = 2

    @staticmethod
    def of(name: str | Loss) -> Loss:
        """The loss of a name, which may be in small letters."""
        known = [loss.name.lower() for loss in Loss]
        if isinstance(name, Loss):
            return name
        if name not in known:
            raise ConfigError(f"loss must be one of {', '.join(known)}, got {name!r}")
        return Loss[name.upper()]

    @property
    def of_classes(self) -> bool:
        """Whether targets must be −1 or +1."""
        return self is not Loss.SQUARED


LOGISTIC, SQUARED = int(Loss.LOGISTIC), int(Loss.SQUARED)


@kernel
def slope(loss: int, z: float, y: float) -> float:  # pragma: no cover
    """∂ℓ/∂z."""
    if loss == LOGISTIC:
        return -y / (1.0 + exp(y * z))  # exp(·) = ∞ gives 0, as it should
    if loss == SQUARED:
        return z - y
    return -y if y * z < 1.0 else 0.0


@kernel
def value(loss: int, z: float, y: float) -> float:  # pragma: no cover
    """ℓ(z, y), without overflow."""
    if loss == LOGISTIC:
        margin = y * z
        return log1p(exp(-margin)) if margin > 0 else log1p(exp(margin)) - margin
    if loss == SQUARED:
        return 0.5 * (z - y) * (z - y)
    return max(0.0, 1.0 - y * z)


@kernel
def weighted_sum(loss: int, predictions: Any, targets: Any, weights: Any) -> float:  # pragma: no cover
    """Σ wᵢ ℓ(zᵢ, yᵢ)."""
    total = 0.0
    for i in range(predictions.size):
        total += weights[i] * value(loss, np.float64(predictions[i]), targets[i])
    return total

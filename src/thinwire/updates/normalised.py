"""A step whose length is the step size, whatever the gradient's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.updates.base import Update


@dataclass(frozen=True)
class Normalised(Update):
    """x <- x - s g / |g|, the norm over all parameters together; no step where g = 0.

    With EF21's g this is |EF21| (Khirirat et al. 2024, "Error Feedback under (L0, L1)-Smoothness: Normalization and
    Momentum"): s = s_0 / sqrt(K + 1) for K rounds needs no smoothness constant. With EF21-SGDM's it is |EF21-SGDM|.
    """

    name: ClassVar[str] = "normalised"

    @torch.no_grad()
    def __call__(self, x: Mapping[str, Tensor], g: Mapping[str, Tensor], size: float) -> None:
        length = sum(float(gradient.double().square().sum()) for gradient in g.values()) ** 0.5
        if length > 0:
            for name, gradient in g.items():
                x[name].sub_(gradient, alpha=size / length)

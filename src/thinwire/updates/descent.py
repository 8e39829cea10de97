"""The plain step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.updates.base import Update


@dataclass(frozen=True)
class Descent(Update):
    """x <- x - s g."""

    name: ClassVar[str] = "descent"

    @torch.no_grad()
    def __call__(self, x: Mapping[str, Tensor], g: Mapping[str, Tensor], size: float) -> None:
        for name, gradient in g.items():
            x[name].sub_(gradient, alpha=size)

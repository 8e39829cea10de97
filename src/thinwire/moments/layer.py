"""A kind of module whose per-sample gradients follow from its input and the gradient δ of its output."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from thinwire.moments.rows import Formed, Rows, wide


@dataclass(frozen=True)
class Setting:
    """What a call of a module depended on besides its input."""

    training: bool


class Layer(ABC):
    """How one kind of module gives the per-sample gradients of its parameters. Stateless."""

    parameters: ClassVar[tuple[str, ...]] = ("weight", "bias")
    """The parameters it serves, by their names in the module."""
    cost: ClassVar[float]
    """Extra arithmetic, as a share of the module's own forward and backward pass (an estimate, for the plan)."""
    formula: ClassVar[str]
    """What is computed, for the plan."""

    def refusal(self, module: nn.Module) -> str | None:
        """Why this very module cannot be served exactly; None if it can."""
        return None

    def batched(self, module: nn.Module, input: Tensor) -> bool:
        """Whether the input has a batch dimension in front."""
        return input.dim() > 0

    def needs_input(self, name: str) -> bool:
        """Whether the rows of this parameter depend on the module's input."""
        return name != "bias"

    @abstractmethod
    def rows(self, module: nn.Module, name: str, setting: Setting, input: Tensor | None, delta: Tensor) -> Rows:
        """The per-sample gradients of parameter `name` from one call; `input` is None where it is not needed."""


def per_channel(delta: Tensor, sizes: Callable[[], Tensor] | None = None) -> Formed:
    """c_z = Σ over positions of δ_z, for δ of shape (B, C, …): the bias of a convolution or a norm over channels.

    `sizes` gives what rounding in δ is relative to, in the shape of δ, where that is more than |δ|.
    """
    (delta,) = wide(delta)
    each = sizes or delta.abs
    formed = delta if delta.dim() == 2 else delta.sum(tuple(range(2, delta.dim())))
    return Formed(formed, lambda: each().movedim(1, -1).flatten(0, -2), delta.numel() // delta.shape[1])


def per_feature(delta: Tensor, features: tuple[int, ...], sizes: Callable[[], Tensor] | None = None) -> Rows:
    """c_z = Σ over positions of δ_z, for δ of shape (B, …, *features)."""
    (delta,) = wide(delta)
    each = sizes or delta.abs
    plain = delta.dim() == 1 + len(features)
    formed = delta if plain else delta.reshape(len(delta), -1, *features).sum(1)
    return Formed(formed, lambda: each().reshape(-1, *features), delta.numel() // math.prod(features))

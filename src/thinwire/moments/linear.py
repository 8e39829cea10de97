"""Linear: c_z = Σ_t δ_z[t] ⊗ x_z[t], t running over the dimensions between batch and features."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from thinwire.moments.layer import Layer, Setting, per_feature
from thinwire.moments.rows import Outer, Rows


class LinearLayer(Layer):
    """Without extra dimensions Σ_z c_z² = (δ∘δ)ᵀ(x∘x): one matrix product more, and nothing per sample."""

    cost = 1 / 3
    formula = "(δ∘δ)ᵀ(x∘x), or Σ_z (δ_zᵀ x_z)² with extra dimensions"

    def batched(self, module: nn.Module, input: Tensor) -> bool:
        return input.dim() > 1

    def rows(self, module: nn.Module, name: str, setting: Setting, input: Tensor | None, delta: Tensor) -> Rows:
        outputs, inputs = cast(nn.Linear, module).out_features, cast(nn.Linear, module).in_features
        if name == "bias":
            return per_feature(delta, (outputs,))
        assert input is not None
        left, right = delta.reshape(len(delta), 1, -1, outputs), input.reshape(len(input), 1, -1, inputs)
        return Outer(left, right, (outputs, inputs))

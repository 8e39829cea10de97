"""The one list of layers whose second moments are exact, and the simplest of them."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from thinwire.moments.conv import ConvLayer, TransposedConvLayer
from thinwire.moments.embedding import EmbeddingLayer
from thinwire.moments.layer import Layer, Setting, per_feature
from thinwire.moments.norm import BatchNormLayer, ChannelNormLayer, FeatureNormLayer, InstanceNormLayer
from thinwire.moments.rows import Outer, Rows


class LinearLayer(Layer):
    """c_z = Σ_t δ_z[t] ⊗ x_z[t], t running over the dimensions between batch and features.

    Without extra dimensions Σ_z c_z² = (δ∘δ)ᵀ(x∘x): one matrix product more, and nothing per sample.
    """

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


EXACT: dict[type[nn.Module], Layer] = {
    nn.Linear: LinearLayer(),
    nn.Conv1d: ConvLayer(),
    nn.Conv2d: ConvLayer(),
    nn.Conv3d: ConvLayer(),
    nn.ConvTranspose1d: TransposedConvLayer(),
    nn.ConvTranspose2d: TransposedConvLayer(),
    nn.ConvTranspose3d: TransposedConvLayer(),
    nn.Embedding: EmbeddingLayer(),
    nn.LayerNorm: FeatureNormLayer(),
    nn.RMSNorm: FeatureNormLayer(),
    nn.GroupNorm: ChannelNormLayer(),
    nn.InstanceNorm1d: InstanceNormLayer(),
    nn.InstanceNorm2d: InstanceNormLayer(),
    nn.InstanceNorm3d: InstanceNormLayer(),
    nn.BatchNorm1d: BatchNormLayer(),
    nn.BatchNorm2d: BatchNormLayer(),
    nn.BatchNorm3d: BatchNormLayer(),
}


def layer_of(module: nn.Module) -> Layer | None:
    """The layer that serves a module: one of the list, or a subclass that computes the same."""
    for known, layer in EXACT.items():
        if isinstance(module, known) and _computes_as(type(module), known):
            return layer
    return None


def _computes_as(kind: type[nn.Module], known: type[nn.Module]) -> bool:
    """Whether a subclass inherits all that its forward pass consists of (it may differ in initialisation, say)."""
    return all(
        getattr(kind, name, None) is getattr(known, name, None)
        for name in ("forward", "_conv_forward", "_output_padding")
    )

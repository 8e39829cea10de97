"""The one list of layers whose second moments are exact."""

from __future__ import annotations

from torch import nn

from thinwire.moments.conv import ConvLayer, TransposedConvLayer
from thinwire.moments.embedding import EmbeddingLayer
from thinwire.moments.layer import Layer
from thinwire.moments.linear import LinearLayer
from thinwire.moments.norm import BatchNormLayer, ChannelNormLayer, FeatureNormLayer, InstanceNormLayer

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

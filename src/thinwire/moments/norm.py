"""Norms with a scale and a shift: c_z(scale) = Σ over positions of x̂_z δ_z, c_z(shift) = Σ over positions of δ_z.

x̂ is the normalised input, computed again from the input. Batch norm in training mode couples the samples of a batch, so
that ∇f_z does not exist; its rows c_z, formed with the statistics of the batch, sum to the batch's gradient and take
the place of ∇f_z / |B|.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from thinwire.moments.layer import Layer, Setting, per_channel, per_feature
from thinwire.moments.rows import Rows, wide


class FeatureNormLayer(Layer):
    """LayerNorm and RMSNorm: one scale for each place in the normalised dimensions, which come last."""

    cost = 1 / 2
    formula = "Σ_z (Σ x̂_z δ_z)²"

    def batched(self, module: nn.Module, input: Tensor) -> bool:
        return input.dim() > len(cast(nn.LayerNorm | nn.RMSNorm, module).normalized_shape)

    def rows(self, module: nn.Module, name: str, setting: Setting, input: Tensor | None, delta: Tensor) -> Rows:
        norm = cast(nn.LayerNorm | nn.RMSNorm, module)
        features = tuple(norm.normalized_shape)
        if name == "bias":
            return per_feature(delta, features)
        assert input is not None
        input, delta = wide(input, delta)
        if isinstance(norm, nn.RMSNorm):
            return per_feature(F.rms_norm(input, features, eps=norm.eps) * delta, features)
        normal = F.layer_norm(input, features, eps=norm.eps)
        last = tuple(range(-len(features), 0))
        return per_feature(normal * delta, features, lambda: _sizes(input, normal, _rate(input, last, norm.eps), delta))


class ChannelNormLayer(Layer):
    """BatchNorm, GroupNorm and InstanceNorm: one scale for each channel."""

    cost = 1 / 2
    formula = FeatureNormLayer.formula

    def rows(self, module: nn.Module, name: str, setting: Setting, input: Tensor | None, delta: Tensor) -> Rows:
        if name == "bias":
            return per_channel(delta)
        assert input is not None
        input, delta = wide(input, delta)
        normal = _normal(module, setting, input)
        sizes = partial(_channel_sizes, module, setting, input, normal, delta)
        return per_channel(normal * delta, sizes)


class BatchNormLayer(ChannelNormLayer):
    """Any dimensions; without running statistics it uses the batch's in evaluation too."""

    formula = "Σ_z (Σ x̂_z δ_z)²; in training mode rows that sum to the batch's gradient"


class InstanceNormLayer(ChannelNormLayer):
    """The one norm over channels that also takes an input without a batch dimension."""

    def batched(self, module: nn.Module, input: Tensor) -> bool:
        dimensions = 3 if isinstance(module, nn.InstanceNorm1d) else 4 if isinstance(module, nn.InstanceNorm2d) else 5
        return input.dim() == dimensions


def _normal(module: nn.Module, setting: Setting, input: Tensor) -> Tensor:
    """x̂, with the statistics that the call used."""
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(input, module.num_groups, eps=module.eps)
    norm: Any = module
    if norm.running_mean is not None and not setting.training:
        shape = (1, -1) + (1,) * (input.dim() - 2)
        mean: Tensor = norm.running_mean.to(input.dtype).reshape(shape)
        variance: Tensor = norm.running_var.to(input.dtype).reshape(shape)
        return (input - mean) * torch.rsqrt(variance + norm.eps)
    if isinstance(module, _InstanceNorm):
        return F.instance_norm(input, eps=module.eps)
    assert isinstance(module, _BatchNorm)
    return F.batch_norm(input, None, None, training=True, eps=module.eps)


def _sizes(input: Tensor, normal: Tensor, rate: Tensor, delta: Tensor) -> Tensor:
    """What rounding in x̂ δ is relative to: x̂ = (x − mean) · rate errs by ε (|x| + |mean|) rate, which is at most
    ε (2 |x| rate + |x̂|), and more than ε |x̂| where the mean is far from zero."""
    return (2 * input.abs() * rate + normal.abs()) * delta.abs()


def _rate(input: Tensor, dimensions: tuple[int, ...], epsilon: float) -> Tensor:
    """1 / the standard deviation over some dimensions."""
    return torch.rsqrt(input.var(dimensions, correction=0, keepdim=True) + epsilon)


def _channel_sizes(module: nn.Module, setting: Setting, input: Tensor, normal: Tensor, delta: Tensor) -> Tensor:
    norm: Any = module
    if isinstance(module, nn.GroupNorm):
        groups = input.reshape(len(input), module.num_groups, -1)
        rate = _rate(groups, (2,), module.eps).expand_as(groups).reshape(input.shape)
    elif norm.running_mean is not None and not setting.training:
        rate = torch.rsqrt(norm.running_var + norm.eps).reshape(1, -1, *[1] * (input.dim() - 2))
    else:
        positions = tuple(range(2, input.dim()))
        rate = _rate(input, positions if isinstance(module, _InstanceNorm) else (0, *positions), norm.eps)
    return _sizes(input, normal, rate, delta)

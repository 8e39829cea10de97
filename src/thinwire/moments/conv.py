"""Convolutions, plain and transposed: c_z[o, c, k] = Σ_l δ_z[o, l] x_z[c, stride·l + dilation·k], within groups."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from thinwire.moments.layer import Layer, Setting, per_channel
from thinwire.moments.rows import Outer, Rows, by_pairs, parts, wide
from thinwire.ops import correlation_squares_, product_epsilon
from thinwire.ops.reference import weight_gradient

WIDE = {"cpu": 256}
"""From so many output positions on, a convolution with a group for each sample beats unfolding (which copies the input
once for each number of the kernel): 64 → 64 channels on 32 × 32, batch 64, two EPYC cores: 123 ms against 315 ms. Not
on a GPU: all moments of a VGG-like net, batch 64, H200: 3.3 ms against 3.0."""


TRANSFORMED = 32
"""cuDNN may compute a weight gradient by Winograd's or Fourier's transform, whose intermediate numbers exceed the
terms: a margin for them, in ε, where gradients are compared."""


@dataclass(frozen=True)
class Kernel:
    """The geometry of a convolution, one number for each spatial dimension."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @staticmethod
    def of(module: _ConvNd) -> Kernel:
        return Kernel(module.kernel_size, module.stride, module.dilation, module.groups)

    def extent(self, outputs: tuple[int, ...]) -> tuple[int, ...]:
        """How much input is needed for so many outputs."""
        dimensions = zip(outputs, self.size, self.stride, self.dilation, strict=True)
        return tuple((n - 1) * stride + dilation * (size - 1) + 1 for n, size, stride, dilation in dimensions)

    def unfold(self, image: Tensor) -> Tensor:
        """The numbers under the kernel at each place: (B, C, *extent) to (B, groups, C / groups · Π size, places)."""
        dimensions = len(self.size)
        image = image.contiguous()  # from channels last, the copy below would gather number by number
        for axis, (size, stride, dilation) in enumerate(zip(self.size, self.stride, self.dilation, strict=True), 2):
            image = image.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
        positions, kernel = range(2, 2 + dimensions), range(2 + dimensions, 2 + 2 * dimensions)
        columns = image.permute(0, 1, *kernel, *positions)
        return columns.reshape(len(image), self.groups, -1, math.prod(image.shape[2 : 2 + dimensions]))


class Correlation(Rows):
    """The per-sample gradients of a kernel.

    On a GPU one kernel (see `ops`). Else three ways, by the number L of output positions: over pairs of positions
    where L is small (see `Outer`); by unfolding the input and one matrix product a sample; and, where L is large, by a
    convolution of its own for each sample (the weight gradient of a convolution with `groups` groups *per sample*).
    """

    def __init__(self, image: Tensor, delta: Tensor, kernel: Kernel, shape: tuple[int, ...]) -> None:
        needed = kernel.extent(tuple(delta.shape[2:]))
        for axis, length in enumerate(needed, 2):
            image = image if image.shape[axis] == length else image.narrow(axis, 0, length)
        self.image, self.delta = wide(image, delta)
        self.kernel, self.shape, self.samples = kernel, shape, len(delta)
        self.positions = math.prod(delta.shape[2:])
        self.addends = self.samples * self.positions
        self._grouped = self.positions >= WIDE.get(delta.device.type, math.inf)

    @property
    def epsilon(self) -> float:
        own = product_epsilon("convolution", self.delta.dtype, self.delta.device.type)
        return max(own, TRANSFORMED * torch.finfo(self.delta.dtype).eps) if self.delta.is_cuda else own

    def magnitude(self) -> Tensor:
        return Correlation(self.image.abs(), self.delta.abs(), self.kernel, self.shape).total()

    def _outer(self, part: slice) -> Outer:
        delta, columns = self.delta[part], self.kernel.unfold(self.image[part])
        left = delta.reshape(len(delta), self.kernel.groups, -1, self.positions).transpose(2, 3)
        return Outer(left, columns.transpose(2, 3), self.shape, "convolution")

    def rows(self, part: slice) -> Tensor:
        if not self._grouped:
            return self._outer(part).rows(slice(None))
        image, delta = (t[part].reshape(1, -1, *t.shape[2:]) for t in (self.image, self.delta))  # samples as channels
        return self._weight_gradient(image, delta, len(self.delta[part])).reshape(-1, *self.shape)

    def part(self, part: slice) -> Correlation:
        return Correlation(self.image[part], self.delta[part], self.kernel, self.shape)

    def total(self) -> Tensor:
        return self._weight_gradient(self.image, self.delta, 1)

    def _weight_gradient(self, image: Tensor, delta: Tensor, kernels: int) -> Tensor:
        """That of a convolution of so many kernels like this one, side by side."""
        kernel, weight = self.kernel, delta.new_empty(1).expand(kernels * self.shape[0], *self.shape[1:])
        return weight_gradient(image, delta, weight, kernel.stride, kernel.dilation, kernels * kernel.groups)

    def _chunks(self) -> Iterator[slice]:
        unfolded = self.image.shape[1] * math.prod(self.kernel.size) * self.positions
        numbers = max(math.prod(self.shape), 0 if self._grouped else unfolded)
        return parts(self.samples, numbers, self.delta.device)

    def _fills_tiles(self) -> bool:
        """Whether a GPU has a kernel for it that never writes a row, and channels enough a group to feed it."""
        channels = self.shape[0] // self.kernel.groups
        return self.image.is_cuda and self.image.dtype is torch.float32 and len(self.shape) <= 4 and channels >= 8

    def squares_(self, out: Tensor, beta: int) -> None:
        if self._fills_tiles():
            kernel = self.kernel
            correlation_squares_(out, beta, self.image, self.delta, kernel.stride, kernel.dilation, kernel.groups)
        elif by_pairs(self.positions):
            self._outer(slice(None)).squares_(out, beta)
        else:
            super().squares_(out, beta)


class _AnyConvLayer(Layer):
    """What a convolution and its transpose share: a weight's rows are correlations of one side with the other."""

    cost = 1 / 3
    formula = "Σ_z (δ_z ⋆ x_z)², by pairs, unfolding or groups"

    def batched(self, module: nn.Module, input: Tensor) -> bool:
        return input.dim() == 2 + len(_convolution(module).kernel_size)

    def rows(self, module: nn.Module, name: str, setting: Setting, input: Tensor | None, delta: Tensor) -> Rows:
        if name == "bias":
            return per_channel(delta)
        assert input is not None
        convolution = _convolution(module)
        padded, other = self._sides(convolution, input, delta)
        return Correlation(padded, other, Kernel.of(convolution), tuple(convolution.weight.shape))

    @abstractmethod
    def _sides(self, convolution: _ConvNd, input: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """The side that is padded, and the one that slides over it."""


class ConvLayer(_AnyConvLayer):
    """The input is padded as the module pads it, so that every padding mode is the same afterwards."""

    def _sides(self, convolution: _ConvNd, input: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        mode = "constant" if convolution.padding_mode == "zeros" else convolution.padding_mode
        return F.pad(input, _padding(convolution), mode=mode), delta


class TransposedConvLayer(_AnyConvLayer):
    """A transposed convolution is a convolution from its output to its input: δ and x change places."""

    def _sides(self, convolution: _ConvNd, input: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        return F.pad(delta, _padding(convolution)), input


def _convolution(module: nn.Module) -> _ConvNd:
    assert isinstance(module, _ConvNd)
    return module


def _padding(module: _ConvNd) -> list[int]:
    """What F.pad takes: (before, after) for each dimension, the last dimension first."""
    sides: list[tuple[int, int]] = []
    for axis, (size, dilation) in enumerate(zip(module.kernel_size, module.dilation, strict=True)):
        match module.padding:
            case "valid":
                sides.append((0, 0))
            case "same":
                reach = dilation * (size - 1)
                sides.append((reach // 2, reach - reach // 2))
            case padding:
                sides.append((int(padding[axis]), int(padding[axis])))
    return [n for side in reversed(sides) for n in side]

"""A VGG-like network for images of 32 × 32 pixels: stages of 3 × 3 convolutions, each with batch norm and ReLU."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import torch
from torch import nn

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Channels of the convolutions of each stage; a 2 × 2 max-pooling ends a stage."""
HIDDEN = 512
EPSILON = 2e-5
"""Batch norm's, as in Chainer (torch's own is 1e-5)."""


def vgg(classes: int = 10, stages: Sequence[Sequence[int]] = STAGES, hidden: int = HIDDEN) -> nn.Module:
    """The network of Chainer's CIFAR example: 14,987,200 parameters as it stands, no biases beside those of batch norm.

    Dropout follows every convolution but the last of a stage (0.3 in the first stage, then 0.4), and stands before and
    after the hidden layer (0.5). Weights start as Chainer starts them: normal, with variance 1 / fan-in.
    """
    return nn.Sequential(OrderedDict(_layers(classes, stages, hidden)))


def _layers(classes: int, stages: Sequence[Sequence[int]], hidden: int) -> Iterator[tuple[str, nn.Module]]:
    channels = 3
    for stage, widths in enumerate(stages, start=1):
        for place, width in enumerate(widths, start=1):
            yield f"conv{stage}_{place}", _lecun(nn.Conv2d(channels, width, 3, padding=1, bias=False))
            yield f"norm{stage}_{place}", nn.BatchNorm2d(width, eps=EPSILON)
            yield f"relu{stage}_{place}", nn.ReLU()
            if place < len(widths):
                yield f"dropout{stage}_{place}", nn.Dropout(0.3 if stage == 1 else 0.4)
            channels = width
        yield f"pool{stage}", nn.MaxPool2d(2)
    yield "flatten", nn.Flatten()
    yield "dropout_before", nn.Dropout(0.5)
    side = 32 >> len(stages)
    yield "hidden", _lecun(nn.Linear(channels * side * side, hidden, bias=False))
    yield "norm_hidden", nn.BatchNorm1d(hidden, eps=EPSILON)
    yield "relu_hidden", nn.ReLU()
    yield "dropout_after", nn.Dropout(0.5)
    yield "out", _lecun(nn.Linear(hidden, classes, bias=False))


@torch.no_grad()
def _lecun(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    """Weights from N(0, 1 / fan-in)."""
    layer.weight.normal_(std=1 / math.sqrt(layer.weight[0].numel()))
    return layer

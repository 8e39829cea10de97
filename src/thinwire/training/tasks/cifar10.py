"""CIFAR-10: 60,000 images of 32 × 32 pixels in ten classes, without augmentation, and a VGG-like network."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.training.tasks.cifar_files import TEST, TRAIN, find_cifar10, read_cifar10
from thinwire.training.tasks.sampling import seeded
from thinwire.training.tasks.task import Batch, Defaults, Images, register

CHUNK = 1000
"""Test images at a time."""
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Channels of the convolutions of each stage; a 2 × 2 max-pooling ends a stage."""
HIDDEN = 512
EPSILON = 2e-5
"""Batch norm's, as in Chainer (torch's own is 1e-5)."""


@register
@final
@dataclass(frozen=True, eq=False)
class Cifar10(Images):
    """Classify an image; test accuracy on CIFAR-10's own test images. Batches are bytes, scaled to [0, 1] by `loss`."""

    name: ClassVar[str] = "cifar10"
    source: ClassVar[str] = "CIFAR-10, no augmentation"
    about: ClassVar[str] = "the images of --data, a VGG-like network"
    reads: ClassVar[str | None] = "the folder of CIFAR-10"
    defaults: ClassVar[Defaults] = Defaults(
        steps=980, batch=64, lr=1e-3, optimizer="adam", schedule="constant", method="vgc(1.0)"
    )

    @classmethod
    def load(cls, data: str | None = None) -> Cifar10:
        """The files in the folder `data`, or in that of the environment's THINWIRE_DATA."""
        folder = find_cifar10(data)
        train, test = (read_cifar10(folder, names) for names in (TRAIN, TEST))
        return cls(*((torch.from_numpy(x), torch.from_numpy(y).long()) for x, y in (train, test)))

    def model(self, seed: int) -> nn.Module:
        return seeded(seed, vgg)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(_scaled(batch[0])), batch[1])

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        training = model.training
        model.eval()
        right = loss = 0.0
        for images, labels in zip(*(torch.split(part, CHUNK) for part in self.test), strict=True):
            logits, labels = model(_scaled(images.to(device))), labels.to(device)
            right += float((logits.argmax(1) == labels).sum())
            loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
        model.train(training)
        return {"accuracy": right / len(self.test[1]), "loss": loss / len(self.test[1])}

    def facts(self) -> dict[str, str | int]:
        return super().facts() | {"sha256": self._digest}

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        for tensor in (*self.train, *self.test):
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()


def _scaled(images: Tensor) -> Tensor:
    """Bytes as numbers in [0, 1], channels last: the order in which a GPU's convolutions run fastest."""
    return images.to(torch.float32, memory_format=torch.channels_last).div_(255)


# --------------------------------------------------------------------------------------------------------- the network


def vgg(classes: int = 10, stages: Sequence[Sequence[int]] = STAGES, hidden: int = HIDDEN) -> nn.Module:
    """Stages of 3 × 3 convolutions, each with batch norm and ReLU: the VGG-like network of Chainer's CIFAR example.

    14,987,200 parameters as it stands, no biases beside those of batch norm.

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

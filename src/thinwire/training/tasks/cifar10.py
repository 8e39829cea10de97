"""CIFAR-10: 60,000 images of 32 × 32 pixels in ten classes, without augmentation, and a VGG-like network."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.training.tasks.cifar_files import TEST, TRAIN, find_cifar10, read_cifar10
from thinwire.training.tasks.order import epoch_slice, seeded
from thinwire.training.tasks.task import Batch, Defaults, Task
from thinwire.training.tasks.vgg import vgg

CHUNK = 1000
"""Test images at a time."""


@final
@dataclass(frozen=True, eq=False)
class Cifar10(Task):
    """Classify an image; test accuracy on CIFAR-10's own test images. Batches are bytes, scaled to [0, 1] by `loss`."""

    train: Batch
    test: Batch
    name: ClassVar[str] = "cifar10"
    metric: ClassVar[str] = "accuracy"
    percent: ClassVar[bool] = True
    higher_is_better: ClassVar[bool] = True
    about: ClassVar[str] = "the images of --data, a VGG-like network"
    reads: ClassVar[str | None] = "the folder of CIFAR-10"
    defaults: ClassVar[Defaults] = Defaults(steps=980, batch=64, lr=1e-3, optimizer="adam", schedule="constant")

    @classmethod
    def load(cls, data: str | None = None) -> Cifar10:
        """The files in the folder `data`, or in that of the environment's THINWIRE_DATA."""
        folder = find_cifar10(data)
        train, test = (read_cifar10(folder, names) for names in (TRAIN, TEST))
        return cls(*((torch.from_numpy(x), torch.from_numpy(y).long()) for x, y in (train, test)))

    def model(self, seed: int) -> nn.Module:
        return seeded(seed, vgg)

    def batch(self, seed: int, step: int, worker: int, workers: int, size: int) -> Batch:
        images, labels = self.train
        chosen = torch.from_numpy(epoch_slice(len(labels), seed, step, worker, workers, size))
        return images[chosen], labels[chosen]

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
        return {
            "source": "CIFAR-10, no augmentation",
            "train_samples": len(self.train[1]),
            "test_samples": len(self.test[1]),
            "sha256": self._digest,
        }

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        for tensor in (*self.train, *self.test):
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()


def _scaled(images: Tensor) -> Tensor:
    """Bytes as numbers in [0, 1], channels last: the order in which a GPU's convolutions run fastest."""
    return images.to(torch.float32, memory_format=torch.channels_last).div_(255)

"""Digits: scikit-learn's 1,797 handwritten digits of 8 by 8 pixels, and a small convolutional network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.extras import require
from thinwire.training.tasks.sampling import seeded, split
from thinwire.training.tasks.task import Batch, Defaults, Images, register


def _network() -> nn.Module:
    """About 55,000 parameters and no batch normalisation, whose statistics would not be exchanged."""
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(1, 16, 3, padding=1),
        "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(16, 32, 3, padding=1),
        "relu2": nn.ReLU(),
        "pool": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "hidden": nn.Linear(32 * 4 * 4, 96),
        "relu3": nn.ReLU(),
        "out": nn.Linear(96, 10),
    }
    return nn.Sequential(OrderedDict(layers))


@register
@final
@dataclass(frozen=True, eq=False)
class Digits(Images):
    """Classify a digit; test accuracy on a fixed fifth of the images."""

    name: ClassVar[str] = "digits"
    source: ClassVar[str] = "scikit-learn load_digits"
    about: ClassVar[str] = "scikit-learn's 8x8 images, a small CNN"
    packages: ClassVar[Mapping[str, str]] = {"sklearn": "tasks"}
    defaults: ClassVar[Defaults] = Defaults(steps=300, batch=32, lr=0.5)

    @classmethod
    def load(cls, data: str | None = None) -> Digits:
        """The images that scikit-learn carries, scaled to [0, 1]."""
        bundle = require("sklearn.datasets", "tasks", "the task 'digits'").load_digits()
        images = torch.as_tensor(bundle.images, dtype=torch.float32).div_(16).unsqueeze(1)
        labels = torch.as_tensor(bundle.target, dtype=torch.int64)
        train, test = (torch.from_numpy(part) for part in split(len(labels), held_out=0.2))
        return cls((images[train], labels[train]), (images[test], labels[test]))

    def model(self, seed: int) -> nn.Module:
        return seeded(seed, _network)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        images, labels = (part.to(next(model.parameters()).device) for part in self.test)
        logits = model(images)
        right = (logits.argmax(1) == labels).float().mean()
        return {"accuracy": float(right), "loss": float(functional.cross_entropy(logits, labels))}

"""A plug-in task: a wide network on scikit-learn's digits, of which nearly all is one matrix; computing it is quick.

thinwire lab --plugin examples/wide_mlp.py --task wide --rate 100mbit,1gbit,none --methods "memsgd(topk(0.001))"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.training.tasks import Digits, register, seeded
from thinwire.training.tasks.task import Defaults, Images

WIDTH = 1104


def network() -> nn.Module:
    """1,302,730 parameters."""
    layers = [nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)]
    return nn.Sequential(*layers)


@register
@dataclass(frozen=True, eq=False)
class Wide(Images):
    """The digits of the task `digits`."""

    name: ClassVar[str] = "wide"
    source: ClassVar[str] = Digits.source
    about: ClassVar[str] = "scikit-learn's 8x8 images, two layers of width 1,104"
    defaults: ClassVar[Defaults] = Defaults(steps=300, batch=32, lr=0.1)

    @classmethod
    def load(cls, data: str | None = None) -> Self:
        digits = Digits.load()
        return cls(digits.train, digits.test)

    def model(self, seed: int) -> nn.Module:
        return seeded(seed, network)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        logits = model(self.test[0])
        return {"accuracy": float((logits.argmax(1) == self.test[1]).float().mean())}

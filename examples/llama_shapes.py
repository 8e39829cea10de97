"""A plug-in task: the shapes of a Llama of 30.8 million parameters, whose gradients are not computed but replayed.

thinwire lab --plugin examples/llama_shapes.py --task llama30m --replay 30 --codec 1 --rate 50mbit,200mbit,1gbit
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self, final

import torch
from torch import Tensor, nn

from thinwire.training.tasks import Task, register
from thinwire.training.tasks.task import Batch, Defaults

WIDTH, LAYERS, VOCABULARY, HIDDEN = 256, 6, 50_257, 768


class Shapes(nn.Module):
    """Embedding and head of 50,257 tokens, six layers of width 256."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    *(nn.Linear(WIDTH, WIDTH, bias=False) for _ in "qkvo"),
                    *(nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2)),
                    nn.Linear(HIDDEN, WIDTH, bias=False),
                    *(nn.RMSNorm(WIDTH) for _ in range(2)),
                ]
            )
            for _ in range(LAYERS)
        )
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)


@register
@final
@dataclass(frozen=True, eq=False)
class Llama(Task):
    """Nothing but the parameters."""

    name: ClassVar[str] = "llama30m"
    about: ClassVar[str] = "the shapes of a Llama of 30.8 million parameters"
    metric: ClassVar[str] = "loss"
    defaults: ClassVar[Defaults] = Defaults(steps=1, batch=1, lr=1e-3, optimizer="adamw")

    @classmethod
    def load(cls, data: str | None = None) -> Self:
        return cls()

    def model(self, seed: int) -> nn.Module:
        return Shapes()

    def batch(self, seed: int, step: int, worker: int, workers: int, size: int) -> Batch:
        return torch.zeros(size, 1, dtype=torch.long), torch.zeros(size, dtype=torch.long)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        raise RuntimeError("llama30m has shapes alone: take it with --replay MS --codec MS")

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"loss": float("nan")}

    def facts(self) -> dict[str, str | int]:
        return {"source": "none: gradients are replayed"}

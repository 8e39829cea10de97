"""Text: the source of Python's standard library, byte by byte, and a small transformer."""

from __future__ import annotations

import hashlib
import math
import sysconfig
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.errors import DataError
from thinwire.training.tasks.sampling import seeded
from thinwire.training.tasks.task import Batch, Defaults, Task, register

CONTEXT = 64
HEADS = 4
TEST_WINDOWS = 256


class _Block(nn.Module):
    """One pre-norm transformer layer: causal attention, then a two-layer perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self._attend(self.qkv(self.norm_attention(x))))
        return x + self.mlp(self.norm_mlp(x))  # type: ignore[no-any-return]

    def _attend(self, qkv: Tensor) -> Tensor:
        batch, length, thrice = qkv.shape
        query, key, value = qkv.view(batch, length, 3, HEADS, thrice // 3 // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, thrice // 3)


class _Transformer(nn.Module):
    """4 heads and a context of 64 bytes; 3 layers of width 96 are about 390,000 parameters."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.position = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        self.blocks = nn.Sequential(*(_Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        x = self.embed(text) + self.position[: text.shape[1]]
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def _windows(data: Tensor, starts: Tensor) -> Batch:
    """Inputs and next bytes of the windows that begin at `starts`."""
    rows = data[starts[:, None] + torch.arange(CONTEXT + 1)].long()
    return rows[:, :-1], rows[:, 1:]


def _read(files: list[Path]) -> Tensor:
    return torch.from_numpy(np.frombuffer(b"".join(file.read_bytes() for file in files), dtype=np.uint8).copy())


@dataclass(frozen=True, eq=False)
class _Source(Task):
    """Predict the next byte of Python source; bits per byte on every tenth file, which training never sees."""

    train: Tensor
    test: Tensor
    width: ClassVar[int]
    layers: ClassVar[int]
    metric: ClassVar[str] = "bits_per_byte"

    @classmethod
    def load(cls, data: str | None = None) -> Self:
        """The top-level modules of the running interpreter's library."""
        folder = Path(sysconfig.get_paths()["stdlib"])
        files = sorted(folder.glob("*.py"))
        if len(files) < 10:
            raise DataError(
                f"{folder} holds {len(files)} .py files; the task {cls.name!r} needs at least 10: take a Python with "
                "sources"
            )
        held_out = files[::10]
        return cls(_read([file for file in files if file not in held_out]), _read(held_out))

    def model(self, seed: int) -> nn.Module:
        return seeded(seed, partial(_Transformer, self.width, self.layers))

    def batch(self, seed: int, step: int, worker: int, workers: int, size: int) -> Batch:
        """Windows at uniform places; `workers` changes nothing, since each worker has its own random stream."""
        starts = np.random.default_rng((seed, step, worker)).integers(0, len(self.train) - CONTEXT, size)
        return _windows(self.train, torch.from_numpy(starts))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        starts = torch.linspace(0, len(self.test) - CONTEXT - 1, TEST_WINDOWS, dtype=torch.float64).long()
        inputs, targets = _windows(self.test, starts)
        logits = model(inputs).flatten(0, 1)
        loss = float(functional.cross_entropy(logits, targets.flatten()))
        right = (logits.argmax(1) == targets.flatten()).float().mean()
        return {"bits_per_byte": loss / math.log(2), "accuracy": float(right), "loss": loss}

    def facts(self) -> dict[str, str | int]:
        return {
            "source": "top-level modules of the standard library",
            "train_bytes": len(self.train),
            "test_bytes": len(self.test),
            "sha256": hashlib.sha256(self.train.numpy().tobytes()).hexdigest(),
        }


@register
@final
@dataclass(frozen=True, eq=False)
class Text(_Source):
    """A model for the demo and for small experiments."""

    width: ClassVar[int] = 96
    layers: ClassVar[int] = 3
    name: ClassVar[str] = "text"
    about: ClassVar[str] = "the source of Python's standard library, a byte-level transformer"
    defaults: ClassVar[Defaults] = Defaults(
        steps=300, batch=8, lr=2e-3, optimizer="adam", method="memadam(topk(0.01, values=power4))"
    )


@register
@final
@dataclass(frozen=True, eq=False)
class WideText(_Source):
    """3.3 million parameters and few windows a step: on a thin wire, nearly all of a dense step is its bytes."""

    width: ClassVar[int] = 256
    layers: ClassVar[int] = 4
    name: ClassVar[str] = "text3m"
    about: ClassVar[str] = "the same, a transformer of 3.3 million parameters"
    defaults: ClassVar[Defaults] = Defaults(
        steps=300, batch=2, lr=1e-3, optimizer="adam", method="memadam(topk(0.01, values=power4))"
    )

"""The transformer of the experiment, and the text that it reads."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.errors import DataError
from thinwire.papers.adaptive.settings import Frame

DROPOUT = 0.2
HELD_OUT = 0.1
"""The share of a text, at its end, on which the loss is measured."""


class _Block(nn.Module):
    """One pre-norm layer without biases: causal attention, then a two-layer perceptron."""

    def __init__(self, scale: Frame) -> None:
        super().__init__()
        self.heads, width = scale.heads, scale.width
        self.norm_attention, self.norm_mlp = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + functional.dropout(self.out(self._attended(self.norm_attention(x))), DROPOUT, self.training)
        inner = functional.gelu(self.up(self.norm_mlp(x)))
        return x + functional.dropout(self.down(inner), DROPOUT, self.training)

    def _attended(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = DROPOUT if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        return mixed.transpose(1, 2).reshape(batch, length, width)


class Transformer(nn.Module):
    """A decoder whose head is its token embedding."""

    def __init__(self, scale: Frame, tokens: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, scale.width)
        self.position = nn.Parameter(torch.zeros(scale.context, scale.width))
        self.blocks = nn.Sequential(*(_Block(scale) for _ in range(scale.depth)))
        self.norm = nn.LayerNorm(scale.width, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * scale.depth) ** 0.5 if last else 0.02)

    def forward(self, text: Tensor) -> Tensor:
        x = functional.dropout(self.embed(text) + self.position[: text.shape[1]], DROPOUT, self.training)
        return functional.linear(self.norm(self.blocks(x)), self.embed.weight)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over all tokens, in nats; in bfloat16 where there is a GPU."""
        with torch.autocast("cuda", torch.bfloat16, enabled=inputs.is_cuda, cache_enabled=False):
            logits = self(inputs)
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as numbers of its own alphabet, cut into what is learnt and what is held out."""

    train: Tensor
    held_out: Tensor
    tokens: int

    @staticmethod
    def read(path: str | None, device: torch.device) -> Corpus:
        """A file, or the top-level modules of Python's own library."""
        raw = np.frombuffer(_bytes(path), dtype=np.uint8)
        alphabet, codes = np.unique(raw, return_inverse=True)
        text = torch.from_numpy(codes.astype(np.int64)).to(device)
        cut = int((1 - HELD_OUT) * len(text))
        return Corpus(text[:cut], text[cut:], len(alphabet))

    def windows(self, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
        """Inputs and next tokens of the windows of the training text that begin there."""
        places = starts[:, None] + torch.arange(context, device=starts.device)
        return self.train[places], self.train[places + 1]

    @torch.no_grad()
    def loss(self, model: Transformer, context: int, most: int = 512) -> float:
        """Over the windows of the held-out text, end to end, without dropout."""
        count = min(most, (len(self.held_out) - 1) // context)
        inputs = self.held_out[: count * context].view(count, context)
        targets = self.held_out[1 : count * context + 1].view(count, context)
        model.eval()
        parts = zip(torch.split(inputs, 64), torch.split(targets, 64), strict=True)
        total = sum(float(model.loss(x, y)) * len(x) for x, y in parts)
        model.train()
        return total / count


def _bytes(path: str | None) -> bytes:
    if path is None:
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        return b"".join(file.read_bytes() for file in files)
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"text {path} cannot be read: {error.strerror}; give --text a file") from None
    if len(text) < 100_000:
        raise DataError(f"text {path} has {len(text):,} bytes; give one of 100,000 or more")
    return text

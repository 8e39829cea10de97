"""The networks that a DDP step is timed with, with their batches and losses: GPT-2, ResNet-50 and a wide MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS, WIDTH, HEADS, TOKENS, CONTEXT = 12, 768, 12, 50_304, 1_024
"""Of GPT-2 small. 50,257 tokens, rounded up to a multiple of 128 as everybody does for speed."""
SPREAD = 0.02
"""Standard deviation of GPT-2's first weights."""
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""ResNet-50's: channels within a bottleneck, and how many of these."""
WIDENED = 4
"""A bottleneck's channels at its end, times those within it."""
CLASSES, PIXELS = 1_000, 224


@dataclass(frozen=True)
class Batch:
    """What a network is given, and what it is to answer."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class TimedModel:
    """A network with the batches that it is trained on; nothing is built before it is asked for."""

    name: str
    network: Callable[[], nn.Module]
    draw: Callable[[int, torch.Generator], Batch]
    """So many samples."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """Of outputs and targets."""
    samples: int
    """Of a batch, where nobody says how many."""

    def built(self, device: torch.device) -> nn.Module:
        """The network, with the same numbers each time."""
        torch.manual_seed(0)
        with device:
            return self.network()

    def batch(self, samples: int, device: torch.device) -> Batch:
        """The same batch each time; every step takes it, so that no step waits for data."""
        drawn = self.draw(samples, torch.Generator().manual_seed(0))
        return Batch(drawn.inputs.to(device), drawn.targets.to(device))


# ---------------------------------------------------------------------------------------------------------------- GPT-2


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Each place looks at those before it."""
        query, key, value = (self._by_head(part) for part in self.mixed(x).chunk(3, dim=-1))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return out

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class DecoderLayer(nn.Module):
    """Attention and two dense layers, each behind its norm and added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads))
        wide, narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dense = nn.Sequential(nn.LayerNorm(width), wide, nn.GELU(approximate="tanh"), narrow)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        x = torch.add(x, self.attention(x))
        return torch.add(x, self.dense(x))


class Decoder(nn.Module):
    """GPT-2's architecture; the head is the embedding of the tokens."""

    def __init__(self, layers: int, width: int, heads: int, tokens: int, context: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(DecoderLayer(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=SPREAD)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token, at every place."""
        found = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        return F.linear(self.blocks(found), self.token.weight)


def gpt2() -> Decoder:
    """GPT-2 small: 124.5 million parameters."""
    return Decoder(LAYERS, WIDTH, HEADS, TOKENS, CONTEXT)


def _text(rows: int, generator: torch.Generator) -> Batch:
    """Random tokens, and those that follow."""
    tokens = torch.randint(TOKENS, (rows, CONTEXT + 1), generator=generator)
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def _token_loss(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


# ------------------------------------------------------------------------------------------------------------ ResNet-50


class Bottleneck(nn.Module):
    """Three convolutions, 1 x 1, 3 x 3 and 1 x 1, added to what came in; the middle one has the stride."""

    def __init__(self, before: int, within: int, stride: int) -> None:
        super().__init__()
        after = WIDENED * within
        self.main = nn.Sequential(
            *(*_convolved(before, within, 1), nn.ReLU(inplace=True)),
            *(*_convolved(within, within, 3, stride), nn.ReLU(inplace=True)),
            *_convolved(within, after, 1),
        )
        same = before == after and stride == 1
        self.past = nn.Identity() if same else nn.Sequential(*_convolved(before, after, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """As many channels as the stage has at its end."""
        return F.relu(self.main(x) + self.past(x))


def _convolved(before: int, after: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """A convolution that keeps the picture's size but for its stride, and its norm."""
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(after)


def resnet50() -> nn.Sequential:
    """ResNet-50: 25.6 million parameters in 161 tensors."""
    layers = [*_convolved(3, STAGES[0][0], 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    channels = STAGES[0][0]
    for place, (within, count) in enumerate(STAGES):
        for number in range(count):
            layers.append(Bottleneck(channels, within, 2 if place and not number else 1))
            channels = WIDENED * within
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def _pictures(count: int, generator: torch.Generator) -> Batch:
    pictures = torch.randn(count, 3, PIXELS, PIXELS, generator=generator)
    return Batch(pictures, torch.randint(CLASSES, (count,), generator=generator))


# ------------------------------------------------------------------------------------------------------------------ MLP


def mlp() -> nn.Sequential:
    """10 million parameters in three layers."""
    return nn.Sequential(nn.Linear(1000, 2500), nn.ReLU(), nn.Linear(2500, 2500), nn.ReLU(), nn.Linear(2500, 500))


def _vectors(count: int, generator: torch.Generator) -> Batch:
    return Batch(torch.randn(count, 1000, generator=generator), torch.zeros(count, 500))


TIMED_MODELS = {
    work.name: work
    for work in (
        TimedModel("gpt2", gpt2, _text, _token_loss, 16),
        TimedModel("resnet50", resnet50, _pictures, F.cross_entropy, 64),
        TimedModel("mlp", mlp, _vectors, F.mse_loss, 32),
    )
}
"""By the names that the command line knows."""

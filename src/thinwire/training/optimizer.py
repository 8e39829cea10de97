"""Optimizers by name, and how the learning rate moves over a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim import Optimizer

Parameters = Iterable[nn.Parameter]

OPTIMIZERS: dict[str, Callable[[Parameters, float, float], Optimizer]] = {
    "sgd": lambda parameters, lr, decay: torch.optim.SGD(parameters, lr=lr, weight_decay=decay),
    "momentum": lambda parameters, lr, decay: torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=decay),
    "adam": lambda parameters, lr, decay: torch.optim.Adam(parameters, lr=lr, weight_decay=decay),
    "adamw": lambda parameters, lr, decay: torch.optim.AdamW(parameters, lr=lr, weight_decay=decay),
}
"""From parameters, learning rate and weight decay. It is added to the exchanged gradient (AdamW: taken off the
parameters), and so never travels."""

FLOOR = 0.01
"""Where the cosine ends, as a share of the first learning rate; never 0, since memory is kept in units of lr."""

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * progress)) / 2,
    "halving": lambda progress: 0.5 ** int(12 * progress),
    "decay": lambda progress: 1.0 if progress < 0.5 else 0.1 if progress < 0.75 else 0.01,
}
"""Factors on the learning rate as functions of the share of steps done, in [0, 1). VGC's paper halves it every
25 of 300 epochs: in 12 equal parts."""


def set_learning_rate_(optimizer: Optimizer, schedule: str, lr: float, step: int, steps: int) -> None:
    """Give every parameter group the learning rate of `step` out of `steps`."""
    for group in optimizer.param_groups:
        group["lr"] = lr * SCHEDULES[schedule](step / steps)

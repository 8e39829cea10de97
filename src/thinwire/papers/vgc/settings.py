"""The settings: the paper's training runs on CIFAR-10, and small ones on digits for a machine without it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.errors import ConfigError
from thinwire.papers.vgc.claims import TABLE
from thinwire.training.config import RunConfig, comparison

EPOCHS, WORKERS, BATCH, WEIGHT_DECAY = 300, 8, 64, 5e-4
OPTIMIZERS = ("adam", "momentum", "adamw")
"""The paper's two. The third is Adam with weight decay beside the gradient rather than in it: in it, a number that is
not sent yet is moved by its decay alone, which Adam scales to a whole step."""


@dataclass(frozen=True)
class VGCSetting:
    """What a run of the experiment takes from the data set that it trains on."""

    task: str
    samples: int
    """Training images: they decide how many steps an epoch has."""
    batch: int
    """Images of one worker's step."""
    epochs: int
    momentum_lr: float
    methods: tuple[str, ...]


CIFAR10 = VGCSetting("cifar10", 50_000, BATCH, EPOCHS, 0.05 * WORKERS, tuple(row.text for row in TABLE))
"""98 steps an epoch. The learning rate of momentum SGD is Chainer's 0.05 times the number of workers."""
SMALL = VGCSetting(
    "digits",
    1_437,
    16,
    10,
    0.05,
    ("dense", "vgc(1.0)", "vgc(1.5)", "vgc(2.0)", "hybrid(0.01, alpha=2.0)", "memsgd(strom(0.01))", "qsgd(3, 128)"),
)
ADAM_LR = 1e-3


def vgc_configs(
    setting: VGCSetting,
    optimizer: str,
    *,
    methods: Sequence[str] = (),
    epochs: int | None = None,
    seeds: Sequence[int] = (0,),
    data: str | None = None,
    device: str = "cpu",
) -> list[RunConfig]:
    """Every method with every seed; weight decay is the optimizer's, and so neither in r nor in v.

    A rule with a momentum of its own, such as DGC, runs beside plain SGD.

    Momentum SGD's learning rate is halved every twelfth of the run, which is 25 of the paper's 300 epochs.
    """
    if optimizer not in OPTIMIZERS:
        raise ConfigError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}")
    epochs = setting.epochs if epochs is None else epochs
    if epochs < 1:
        raise ConfigError(f"epochs must be at least 1, got {epochs}")
    adam = optimizer != "momentum"
    return comparison(
        setting.task,
        ["dense" if method.strip() == "none" else method for method in methods or setting.methods],
        seeds,
        rates=[ADAM_LR if adam else setting.momentum_lr],
        optimizer=optimizer,
        schedule="constant" if adam else "halving",
        weight_decay=WEIGHT_DECAY,
        workers=WORKERS,
        engine="sim",
        batch=setting.batch,
        steps=epochs * math.ceil(setting.samples / (WORKERS * setting.batch)),
        evaluations=epochs,
        data=data,
        device=device,
    )


def split_methods(text: str) -> list[str]:
    """The methods of a list with commas between them; commas within parentheses belong to a method.

    >>> split_methods("none, vgc(1.5), hybrid(0.1, alpha=2)")
    ['none', 'vgc(1.5)', 'hybrid(0.1, alpha=2)']
    """
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]

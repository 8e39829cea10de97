"""The demo: five ways of averaging gradients on the digits task, with the same budget of steps."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.experiments.compare import comparison
from thinwire.experiments.config import RunConfig

LR = 0.5
"""One learning rate for all. Of 0.1, 0.2, 0.4, 0.5 and 0.8 (plain SGD, 300 steps, seed 1, simulated) it is one at
which every method here does about its best: 98.6 to 99.4 %. Momentum in the optimizer helped dense, but broke
EF21-SGDM, which brings its own."""

STEPS = 300

METHODS = (
    "dense",
    "fp16",
    "memsgd(topk(0.01))",
    "ef21sgdm(topk(0.01))",
    "memsgd(topk(0.01, values=exponent4))",
)


def demo_configs(workers: int, engine: str, steps: int, seeds: Sequence[int]) -> list[RunConfig]:
    """The demo's runs: plain SGD with a cosine schedule for all."""
    return comparison("digits", METHODS, seeds, rates=[LR], workers=workers, engine=engine, steps=steps)

"""A comparison: the configurations of several methods over several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thinwire.errors import ConfigError
from thinwire.training.config import RunConfig


def comparison(
    task: str, methods: Sequence[str], seeds: Sequence[int], rates: Sequence[float] = (), **settings: Any
) -> list[RunConfig]:
    """Every method with every seed; `rates` holds no learning rate (the task's), one for all, or one a method."""
    if len(rates) not in (0, 1, len(methods)):
        raise ConfigError(f"--lr takes 1 rate or one for each of the {len(methods)} methods, got {len(rates)}")
    _check_distinct("seeds", seeds)
    each = list(rates) if len(rates) > 1 else [*rates, None][:1] * len(methods)
    configs = [
        RunConfig.of(task, method, lr=rate, seed=seed, **settings)
        for method, rate in zip(methods, each, strict=True)
        for seed in seeds
    ]
    _check_distinct("methods", configs)
    return configs


def _check_distinct(name: str, values: Sequence[object]) -> None:
    if len(set(values)) != len(values):
        raise ConfigError(f"the {name} must differ from each other: one is given twice; remove it")

"""The configuration of one run: everything that decides its numbers, checked when built."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Any

import thinwire
from thinwire.errors import ConfigError, SpecError
from thinwire.training.optimizer import OPTIMIZERS, SCHEDULES
from thinwire.training.peers import PEERS
from thinwire.training.tasks.catalogue import check_task

ENGINES = ("ddp", "sim")
DEVICES = ("cpu", "cuda")
MAX_WORKERS = 256


def canonical_method(text: str) -> str:
    """The one spelling of a method: a peer's name, or the rule's own text.

    >>> canonical_method(" memsgd( topk(0.010) )"), canonical_method("dense")
    ('memsgd(topk(0.01))', 'dense')
    """
    bare = text.strip()
    if bare in PEERS:
        return bare
    try:
        return str(thinwire.parse(text))
    except SpecError as error:
        if bare.isidentifier():
            raise SpecError(error.text, error.column, f"{error.problem}; torch's own are {', '.join(PEERS)}") from None
        raise


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run. `batch` counts the samples of one worker's step."""

    task: str
    method: str
    workers: int
    engine: str
    steps: int
    batch: int
    lr: float
    optimizer: str
    schedule: str
    seed: int = 0
    data: str | None = None
    evaluations: int = 10
    weight_decay: float = 0.0
    device: str = "cpu"

    @classmethod
    def of(cls, task: str, method: str, **given: Any) -> RunConfig:
        """A configuration with the task's defaults for everything that is not given (or given as None)."""
        defaults = dataclasses.asdict(check_task(task).defaults)
        chosen = {name: value for name, value in given.items() if value is not None}
        return cls(**{"workers": 4, "engine": "ddp", **defaults, **chosen, "task": task, "method": method})

    def __post_init__(self) -> None:
        check_task(self.task, self.data)
        object.__setattr__(self, "method", canonical_method(self.method))
        _check_choice("engine", self.engine, ENGINES)
        _check_choice("optimizer", self.optimizer, OPTIMIZERS)
        _check_choice("schedule", self.schedule, SCHEDULES)
        _check_choice("device", self.device, DEVICES)
        _check_range("workers", self.workers, 1, MAX_WORKERS)
        for name in ("steps", "batch", "evaluations"):
            _check_range(name, getattr(self, name), 1, 10**9)
        _check_range("seed", self.seed, 0, 2**31 - 1)
        if not (isinstance(self.lr, int | float) and math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"lr must be a finite number above 0, got {self.lr}; try {self._usual_lr()}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ConfigError(f"weight_decay must be a finite number of at least 0, got {self.weight_decay}")
        if self.engine == "ddp" and self.device != "cpu":
            raise ConfigError(f"real processes train on the CPU here, got device {self.device}; use --engine sim")
        if self.engine == "sim" and self.method in PEERS and not PEERS[self.method].simulated:
            raise ConfigError(f"{self.method!r} is torch's own hook and cannot be simulated; use --engine ddp")

    def _usual_lr(self) -> float:
        return check_task(self.task).defaults.lr

    def asdict(self) -> dict[str, Any]:
        """The configuration as plain values; `RunConfig(**plain)` is its inverse."""
        return dataclasses.asdict(self)


def _check_range(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number from {low} to {high}, got {value}")


def _check_choice(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}")

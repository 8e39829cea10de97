"""The warm-up: a method's first steps on a throw-away run, so that no clock counts what is compiled for it."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable
from typing import final

import torch

from thinwire.errors import NonFiniteGradient
from thinwire.training.config import RunConfig
from thinwire.training.run import Run
from thinwire.training.tasks.task import Task

STEPS = 3
"""DDP cuts its buckets anew after the first; torch's PowerSGD compresses from the third on."""


@final
class WarmUp:
    """Warms up each method once in a process, whatever the seed: kernels, connections and buffers.

    Model, optimizer, rule and state are the throw-away run's own and random keys are functions of seed and step, so the
    run that follows gives the same numbers, bit for bit; torch's generators, which dropout draws from, are put back.
    """

    def __init__(self, kind: Callable[[RunConfig, Task], Run], task: Task) -> None:
        self._kind, self._task = kind, task
        self._warm: set[RunConfig] = set()

    def __call__(self, config: RunConfig) -> float:
        """The seconds it took; 0 for a method that is warm."""
        method = dataclasses.replace(config, seed=0)
        if method in self._warm:
            return 0.0
        self._warm.add(method)
        start = time.perf_counter()
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if config.device == "cuda" else []):
            self._some_steps(config)
        gc.collect()  # the throw-away run holds as much as the one that follows
        return time.perf_counter() - start

    def _some_steps(self, config: RunConfig) -> None:
        run = self._kind(config, self._task)
        try:
            for step in range(min(STEPS, config.steps)):
                run.step(step)
        except NonFiniteGradient:  # the run itself will tell
            pass

"""The training loop: warms a method up, steps a run to its end and tells the recorder what happened."""

from __future__ import annotations

import dataclasses
import gc
import math
import time
from collections.abc import Callable
from typing import final

import torch

from thinwire.errors import NonFiniteGradient, NonFiniteUpdate
from thinwire.training.config import RunConfig
from thinwire.training.recorder import Recorder
from thinwire.training.run import TrainingRun
from thinwire.training.tasks import Task

MAX_STEP_LINES = 100
WARM_UP_STEPS = 3
"""DDP cuts its buckets anew after the first; torch's PowerSGD compresses from the third on."""


@final
class Loop:
    """One run from its first step to its end line.

    Every rank of a distributed run goes through the same calls; rank 0 alone has a recorder. The clock runs
    during training steps only: evaluation and recording are not the method's doing, and compiling is done once.
    """

    def __init__(self, run: TrainingRun, recorder: Recorder | None, warm_up_seconds: float = 0.0) -> None:
        self.run, self.recorder, self.warm_up_seconds = run, recorder, warm_up_seconds
        self.seconds = 0.0
        self.done = 0
        self.values: dict[str, float] = {}

    def go(self) -> None:
        """Train to the end, or until the loss is no longer a number."""
        if self.recorder:
            parameters = sum(parameter.numel() for parameter in self.run.model.parameters())
            self.recorder.run(self.run.config, self.run.task, parameters)
        status = self._train()
        if self.recorder:
            took = {"seconds": round(self.seconds, 6), "warm_up_seconds": round(self.warm_up_seconds, 6)}
            totals = self.run.traffic().plain()
            told = {} if (why := self.run.explained()) is None else {"explained": why}
            self.recorder.write("end", status=status, steps=self.done, **took, **totals, **told, values=self.values)

    def _train(self) -> str:
        config = self.run.config
        every = math.ceil(config.steps / MAX_STEP_LINES)
        evaluate_at = {round(config.steps * part / config.evaluations) for part in range(1, config.evaluations + 1)}
        for step in range(config.steps):
            if not self._step(step):
                return "diverged"
            last = self.done == config.steps
            if (self.done % every == 0 or last) and not math.isfinite(self._log()):
                return "diverged"
            if self.done in evaluate_at:
                self._evaluate()
        return "done"

    def _step(self, step: int) -> bool:
        """One timed step; False when a gradient was no longer finite, which every rank learns together."""
        start = time.perf_counter()
        try:
            self.run.step(step)
        except (NonFiniteGradient, NonFiniteUpdate):
            return False
        finally:
            self.seconds += time.perf_counter() - start
        self.done += 1
        return True

    def _log(self) -> float:
        """The mean loss over workers and over the steps since the last such line."""
        losses = self.run.take_losses()
        loss = sum(losses) / len(losses)
        if self.recorder:
            self.recorder.write("step", step=self.done, loss=loss, **self._so_far())
        return loss

    def _evaluate(self) -> None:
        if self.recorder:
            self.run.settle()
            self.values = self.run.task.evaluate(self.run.model)
            self.recorder.write("eval", step=self.done, values=self.values, **self._so_far())

    def _so_far(self) -> dict[str, float]:
        return {"sent_bytes": self.run.traffic().sent, "seconds": round(self.seconds, 6)}


@final
class WarmUp:
    """Warms up each method once in a process, whatever the seed: kernels, connections and buffers.

    Model, optimizer, rule and state are the throw-away run's own and random keys are functions of seed and step, so the
    run that follows gives the same numbers, bit for bit; torch's generators, which dropout draws from, are put back.
    """

    def __init__(self, kind: Callable[[RunConfig, Task], TrainingRun], task: Task) -> None:
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
            for step in range(min(WARM_UP_STEPS, config.steps)):
                run.step(step)
        except (NonFiniteGradient, NonFiniteUpdate):  # the run itself will tell
            pass

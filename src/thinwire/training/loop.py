"""The training loop: steps a run to its end and tells the recorder what happened."""

from __future__ import annotations

import math
import time
from typing import final

from thinwire.errors import NonFiniteGradient
from thinwire.training.recorder import Recorder
from thinwire.training.run import Run

MAX_STEP_LINES = 100


@final
class Loop:
    """One run from its first step to its end line.

    Every rank of a distributed run goes through the same calls; rank 0 alone has a recorder. The clock runs
    during training steps only: evaluation and recording are not the method's doing, and compiling is done once.
    """

    def __init__(self, run: Run, recorder: Recorder | None, warm_up_seconds: float = 0.0) -> None:
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
            traffic = self.run.traffic()
            self.recorder.end(status, self.done, self.seconds, self.warm_up_seconds, traffic, self.values)

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
        except NonFiniteGradient:
            return False
        finally:
            self.seconds += time.perf_counter() - start
        self.done += 1
        return True

    def _log(self) -> float:
        losses = self.run.take_losses()
        loss = sum(losses) / len(losses)
        if self.recorder:
            self.recorder.step(self.done, loss, self.run.traffic().sent, self.seconds)
        return loss

    def _evaluate(self) -> None:
        if self.recorder:
            self.run.settle()
            self.values = self.run.task.evaluate(self.run.model)
            self.recorder.evaluation(self.done, self.values, self.run.traffic().sent, self.seconds)

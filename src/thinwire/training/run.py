"""A run in progress: a model, its optimizer and the exchange between its workers, one step at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import nn

from thinwire.training.config import RunConfig
from thinwire.training.tasks.task import Task
from thinwire.training.totals import Totals


class Run(ABC):
    """What the training loop asks of an engine."""

    config: RunConfig
    task: Task
    model: nn.Module

    @abstractmethod
    def step(self, step: int) -> None:
        """Train one step on every worker's batch."""

    @abstractmethod
    def settle(self) -> None:
        """Bring the model into the state that is evaluated."""

    @abstractmethod
    def take_losses(self) -> list[float]:
        """The mean loss over workers of each step since the last call; every rank must call it together."""

    @abstractmethod
    def traffic(self) -> Totals:
        """What one worker has sent so far."""

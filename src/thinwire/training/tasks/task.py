"""A task: what is trained, on which batches, and how well it then does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
"""Inputs and targets of one worker's step."""


@dataclass(frozen=True)
class Defaults:
    """The training settings a task is used with when the user says nothing."""

    steps: int
    batch: int
    lr: float
    optimizer: str = "sgd"
    schedule: str = "cosine"


class Task(ABC):
    """A model, its loss, its data and its test, all of them functions of explicit seeds.

    Nothing here knows of workers' processes: a batch depends on (seed, step, worker, workers) alone, so a
    simulation and a real run of n processes see the same numbers.
    """

    name: ClassVar[str]
    metric: ClassVar[str]
    """The key of `evaluate` that a table shows first."""
    percent: ClassVar[bool]
    """Whether the metric is a fraction that reads best as a percentage."""
    higher_is_better: ClassVar[bool]
    about: ClassVar[str]
    """The data and the model, in a few words."""
    reads: ClassVar[str | None] = None
    """What the user may give as data; None where the task brings its own."""
    packages: ClassVar[Mapping[str, str]] = {}
    """Optional packages without which its data cannot be loaded, and the extra that brings each."""
    defaults: ClassVar[Defaults]

    @abstractmethod
    def model(self, seed: int) -> nn.Module:
        """A freshly initialised model; the same seed gives the same numbers."""

    @abstractmethod
    def batch(self, seed: int, step: int, worker: int, workers: int, size: int) -> Batch:
        """The `size` samples that `worker` of `workers` sees at `step`."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean training loss of a batch, a scalar."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Figures on held-out data, `metric` among them."""

    @abstractmethod
    def facts(self) -> dict[str, str | int]:
        """What the data are (counts, source, fingerprint), for the record."""

"""A task: what is trained, on which batches, and how well it then does; and the table of all tasks by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from thinwire.errors import ConfigError
from thinwire.training.tasks.sampling import epoch_slice

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
    method: str = "memsgd(topk(0.01))"
    """A rule that loses little beside that optimizer."""


class Task(ABC):
    """A model, its loss, its data and its test, all of them functions of explicit seeds.

    Nothing here knows of workers' processes: a batch depends on (seed, step, worker, workers) alone, so a
    simulation and a real run of n processes see the same numbers.
    """

    name: ClassVar[str]
    """What configurations and the command line call it."""
    about: ClassVar[str]
    """The data and the model, in a few words."""
    metric: ClassVar[str]
    """The key of `evaluate` that a table shows first."""
    percent: ClassVar[bool] = False
    """Whether the metric is a fraction that reads best as a percentage."""
    higher_is_better: ClassVar[bool] = False
    reads: ClassVar[str | None] = None
    """What the user may give as data; None where the task brings its own."""
    packages: ClassVar[Mapping[str, str]] = {}
    """Optional packages without which its data cannot be loaded, and the extra that brings each."""
    defaults: ClassVar[Defaults]

    @classmethod
    @abstractmethod
    def load(cls, data: str | None = None) -> Self:
        """The task with its data in memory: its own, or where it `reads` some, those that the user named."""

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


# ---------------------------------------------------------------------------------------------------- the tasks by name


@dataclass(frozen=True, eq=False)
class Images(Task):
    """Images to classify, those to train on and those to test with, in epochs that all workers walk through."""

    train: Batch
    test: Batch
    source: ClassVar[str]
    metric: ClassVar[str] = "accuracy"
    percent: ClassVar[bool] = True
    higher_is_better: ClassVar[bool] = True

    def batch(self, seed: int, step: int, worker: int, workers: int, size: int) -> Batch:
        images, labels = self.train
        chosen = torch.from_numpy(epoch_slice(len(labels), seed, step, worker, workers, size))
        return images[chosen], labels[chosen]

    def facts(self) -> dict[str, str | int]:
        return {"source": self.source, "train_samples": len(self.train[1]), "test_samples": len(self.test[1])}


TASKS: dict[str, type[Task]] = {}
"""Help texts, defaults and checks all come from these classes."""
Kind = TypeVar("Kind", bound=type[Task])


def register(kind: Kind) -> Kind:
    """Make a task known by its name to configurations and the command line; usable as a class decorator.

    Real workers are processes of their own, in which the class must be registered as well. They execute the files that
    `thinwire.training.plugins.load_plugin` executed here, as `--plugin FILE` does.
    """
    missing = [name for name in ("name", "about", "metric", "defaults") if not hasattr(kind, name)]
    if missing or inspect.isabstract(kind):
        missing += sorted(getattr(kind, "__abstractmethods__", ()))
        raise ConfigError(f"the task {kind.__name__} lacks {', '.join(missing)}: give the class all of them")
    known = TASKS.setdefault(kind.name, kind)
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ConfigError(f"a task {kind.name!r} exists already, {known.__qualname__}: give yours another name")
    TASKS[kind.name] = kind
    return kind


def check_task(name: str, data: str | None = None) -> type[Task]:
    """The class of the task `name`; nothing is loaded yet."""
    if name not in TASKS:
        raise ConfigError(f"unknown task {name!r}; the tasks are {', '.join(TASKS)}")
    if data is not None and TASKS[name].reads is None:
        readers = " and ".join(f"{reader!r} ({kind.reads})" for reader, kind in TASKS.items() if kind.reads)
        raise ConfigError(f"the task {name!r} brings its own data, got --data {data}; these read some: {readers}")
    return TASKS[name]


def load_task(name: str, data: str | None = None) -> Task:
    """The task `name` with its data in memory."""
    return check_task(name, data).load(data)

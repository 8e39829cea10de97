"""The rounds of a simulated run: gradients of the kinds that a rule asks for, and their exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from thinwire.engines.needs import check_need
from thinwire.engines.simulation import Gradients, Simulation
from thinwire.feedback import Need
from thinwire.ledger import Ledger

Points = Mapping[str, Tensor]
"""Where the workers take their gradients."""
Stacked = Mapping[str, Tensor]
"""Parameter name -> the gradients of all workers, one in each row."""


class Problem(Protocol):
    """n functions whose mean is to be minimised."""

    @property
    def workers(self) -> int:
        """n"""

    def start(self) -> Mapping[str, Tensor]:
        """The point to start from."""

    def gradient(self, worker: int, x: Points, step: int) -> Gradients:
        """One worker's gradient at x, on the samples that are its own at this step."""

    def loss(self, x: Points) -> float:
        """The mean of all functions at x."""


@runtime_checkable
class FullGradients(Protocol):
    """A problem that can give gradients of all samples as well."""

    def full_gradient(self, worker: int, x: Points) -> Gradients:
        """One worker's gradient at x, on all of its samples."""


class Engine(Protocol):
    """What rounds ask of the engine that exchanges gradients."""

    ledger: Ledger

    @property
    def needs(self) -> frozenset[Need]: ...
    @property
    def wants_full(self) -> bool: ...
    @property
    def points(self) -> Points: ...


class Rounds(ABC):
    """Gradients of the kinds that the rule asks for, and their exchange."""

    def __init__(self, problem: Any, engine: Engine) -> None:
        self.problem, self.engine, self.ledger = problem, engine, engine.ledger
        self._before: dict[str, Tensor] | None = None

    def gradients(self, step: int) -> tuple[Any, Any]:
        """Gradients at the workers' points, and those of the same samples at the points of the step before."""
        full, points = self.engine.wants_full, self.engine.points
        now = self._full(points) if full else self._at(points, step)
        if Need.PREVIOUS not in self.engine.needs:
            return now, None
        before, self._before = self._before, {name: point.clone() for name, point in points.items()}
        if before is None or full:  # the first round's is not looked at, nor is that of a round with full gradients
            return now, now
        return now, self._at(before, step)

    @abstractmethod
    def _at(self, points: Points, step: int) -> Any: ...

    @abstractmethod
    def _full(self, points: Points) -> Any: ...

    @abstractmethod
    def stacked(self, gradients: Any, step: int) -> Stacked:
        """All workers' gradients as rows, given this round's."""

    @abstractmethod
    def exchange(self, now: Any, size: float, previous: Any) -> dict[str, Tensor]:
        """What all workers get."""

    @abstractmethod
    def moving(self) -> AbstractContextManager[None]:
        """The block in which the parameters move."""


@final
class OneByOne(Rounds):
    """A channel for each worker, and real messages."""

    engine: Simulation

    def __init__(self, problem: Any, engine: Simulation) -> None:
        super().__init__(problem, engine)
        remedy = "give the problem a method full_gradient(worker, x)"
        check_need(engine.channels[0], Need.FULL, isinstance(problem, FullGradients), remedy)
        remedy = "a problem gives whole gradients only. Drive a Simulation with moments= (thinwire.moments)"
        check_need(engine.channels[0], Need.MOMENTS, False, remedy)

    def _at(self, points: Points, step: int) -> list[Gradients]:
        return [self.problem.gradient(worker, points, step) for worker in range(self.problem.workers)]

    def _full(self, points: Points) -> list[Gradients]:
        return [self.problem.full_gradient(worker, points) for worker in range(self.problem.workers)]

    def stacked(self, gradients: Any, step: int) -> Stacked:
        return {name: torch.stack([own[name] for own in gradients]) for name in gradients[0]}

    def exchange(self, now: Any, size: float, previous: Any) -> dict[str, Tensor]:
        sizes = dict.fromkeys(self.engine.parameters, size)
        return self.engine.exchange(now, sizes, previous=previous)

    def moving(self) -> AbstractContextManager[None]:
        return self.engine.moving()

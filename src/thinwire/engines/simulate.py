"""`simulate`: a problem's n workers and a rule, round after round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from thinwire.engines.crowd import Crowd, Seen, Stacked, can_crowd
from thinwire.engines.needs import check_need
from thinwire.engines.simulation import Gradients, Simulation
from thinwire.errors import ConfigError
from thinwire.feedback import Feedback, Need, Rule
from thinwire.ledger import Ledger
from thinwire.spec import rule_from
from thinwire.theory import Smooth, check_dimension, checked_size, warn_beyond_theory
from thinwire.updates import Descent, Update

FEW = 0.25
"""A share of the workers up to which it is worth while to gather their data. Of 100 workers of a9a, the gradients of a
fifth take 0.42 ms on one core of an EPYC, of half 0.70, of all as they lie 0.48; of 10,000 of w8a 1.3, 4.7 and 4.6."""
Points = Mapping[str, Tensor]
"""Where the workers take their gradients."""


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


@runtime_checkable
class Together(Protocol):
    """A problem that gives the gradients of all workers at once, as rows of one tensor for each parameter.

    Where the rule allows it, one call of its halves then serves all workers (`Crowd`), with the same result.
    """

    def all_gradients(self, x: Points, step: int) -> Stacked:
        """Every worker's gradient at x, of every parameter, on the samples that are its own at this step."""

    def all_full_gradients(self, x: Points) -> Stacked:
        """Every worker's gradient at x, of every parameter, on all of its samples."""


@runtime_checkable
class Partly(Protocol):
    """A problem that gives the gradients of some workers without a pass over the others' data."""

    def some_gradients(self, workers: Sequence[int], x: Points, step: int) -> Stacked:
        """The rows of `all_gradients` of these workers, whose numbers rise."""


@runtime_checkable
class Pointwise(Protocol):
    """A problem that gives some coordinates of the workers' gradients without making the others."""

    def gradients_at(self, places: Tensor, x: Points, step: int) -> Tensor:
        """The numbers of `all_gradients` at rising places of its rows laid side by side; a row has the parameters in
        the order of `start`, each flattened."""


@dataclass(frozen=True)
class Instant:
    """A round of a run, before its exchange."""

    step: int
    x: Points
    ledger: Ledger
    _gradients: Callable[[], Stacked] = field(repr=False)

    @cached_property
    def gradients(self) -> Stacked:
        """Every worker's gradient, one in each row; those of workers who stay away are taken when it is asked for."""
        return self._gradients()


@dataclass
class Trajectory:
    """What a simulated run did: the last point, the losses, and the ledger of one worker's bytes."""

    x: dict[str, Tensor]
    ledger: Ledger
    losses: list[float] = field(default_factory=list)
    sent_bytes: list[float] = field(default_factory=list)


def simulate(
    problem: Problem,
    rule: Rule | str,
    *,
    steps: int,
    step_size: float | Callable[[int], float],
    update: Update | None = None,
    seed: int = 0,
    every: int = 1,
    watch: Callable[[Instant], bool] | None = None,
    beyond_theory: bool = False,
) -> Trajectory:
    """Run x <- x - s_t * exchange(gradients at x) for `steps` steps; the loss is noted every `every` steps and last.

    `update` is another way to step, such as `Proximal(L1(0.1))`. Workers take gradients where they believe x to be.
    `watch` is shown every round, and takes the place of noting losses; where it returns True the run ends.

    Where the problem knows its smoothness (`FiniteSum`), a constant step size beyond all theorems of the rule is a
    `StepSizeWarning` with the bound. `beyond_theory=True` says that it is meant so: nothing is warned of, and the
    eigenvalues for the bound, up to seconds once a problem, are not computed.
    """
    if steps < 0 or every < 1:
        raise ConfigError(f"simulate needs steps >= 0 and every >= 1, got {steps} and {every}")
    rule, update = rule_from(rule), update or Descent()
    if not callable(step_size):
        checked_size(step_size)
    if isinstance(problem, Smooth):
        check_dimension(problem, rule)
        if not (callable(step_size) or beyond_theory) and isinstance(update, Descent):
            warn_beyond_theory(problem, rule, step_size)
    x = {name: tensor.detach().clone() for name, tensor in problem.start().items()}
    rounds = _rounds(problem, x, rule, seed)
    run = Trajectory(x, rounds.ledger)
    for step in range(steps) if watch else _noted(run, problem, steps, every):
        size = checked_size(step_size(step), step) if callable(step_size) else step_size
        now, previous = rounds.gradients(step)
        if watch and watch(Instant(step, x, run.ledger, partial(rounds.stacked, now, step))):
            break
        result = rounds.exchange(now, size, previous)
        with rounds.moving():
            update(x, result, size)
    return run


def _noted(run: Trajectory, problem: Problem, steps: int, every: int) -> Iterator[int]:
    """The steps, with the loss noted before every `every`-th and after the last."""
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            run.losses.append(problem.loss(run.x))
            run.sent_bytes.append(run.ledger.summary()["sent_bytes"])
        if step < steps:
            yield step


def _rounds(problem: Problem, x: dict[str, Tensor], rule: Rule, seed: int) -> _Rounds:
    if isinstance(problem, Together) and isinstance(rule, Feedback) and can_crowd(rule, x):
        return _AtOnce(problem, Crowd(x, rule, problem.workers, seed=seed))
    return _OneByOne(problem, Simulation(x, rule, problem.workers, seed=seed))


class _Rounds(ABC):
    """Gradients of the kinds that the rule asks for, and their exchange."""

    def __init__(self, problem: Any, engine: Simulation | Crowd) -> None:
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
class _AtOnce(_Rounds):
    """All workers in one call; no more of their gradients than the round looks at, where the problem can tell."""

    engine: Crowd

    def __init__(self, problem: Any, engine: Crowd) -> None:
        super().__init__(problem, engine)
        self._partly, self._pointwise = isinstance(problem, Partly), isinstance(problem, Pointwise)
        self._ranks: Sequence[int] | None = None
        """Whose gradients the round's are, where not all workers'."""
        self._watched = self._whole = False
        """Whether somebody asked for all gradients in this round, and in the one before: all are then taken at once."""

    def gradients(self, step: int) -> tuple[Any, Any]:
        self._whole, self._watched = self._watched, False
        return super().gradients(step)

    def _at(self, points: Points, step: int) -> Stacked | Seen:
        self._ranks = self._few()
        if self._ranks is not None:
            some: Stacked = self.problem.some_gradients(self._ranks, points, step)
            return some
        places = self.engine.seen if self._pointwise and not self._whole else None
        if places is not None:
            return Seen(places, self.problem.gradients_at(places, points, step))
        found: Stacked = self.problem.all_gradients(points, step)
        return found

    def _few(self) -> Sequence[int] | None:
        """Who is heard, where that is few and nobody asks for the others."""
        if not self._partly or self._whole:
            return None
        heard = self.engine.heard
        return heard if len(heard) <= FEW * self.engine.workers else None

    def _full(self, points: Points) -> Stacked:
        found: Stacked = self.problem.all_full_gradients(points)
        return found

    def stacked(self, gradients: Any, step: int) -> Stacked:
        self._watched = True
        whole = self._ranks is None and not isinstance(gradients, Seen)
        found: Stacked = gradients if whole else self.problem.all_gradients(self.engine.points, step)
        return found

    def exchange(self, now: Any, size: float, previous: Any) -> dict[str, Tensor]:
        return self.engine.exchange(now, size, previous, self._ranks)

    def moving(self) -> AbstractContextManager[None]:
        return nullcontext()


@final
class _OneByOne(_Rounds):
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

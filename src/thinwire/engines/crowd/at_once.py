"""Rounds in which one call serves all workers, and what they ask of a problem.

A problem must give all gradients at once. One that can also give those of some workers, or some coordinates, is asked
for no more than the round looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, final, runtime_checkable

from torch import Tensor

from thinwire.engines.crowd.crowd import Crowd, Seen
from thinwire.engines.rounds import Points, Rounds, Stacked

FEW = 0.25
"""A share of the workers up to which it is worth while to gather their data. Of 100 workers of a9a, the gradients of a
fifth take 0.42 ms on one core of an EPYC, of half 0.70, of all as they lie 0.48; of 10,000 of w8a 1.3, 4.7 and 4.6."""


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


@final
class AtOnce(Rounds):
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

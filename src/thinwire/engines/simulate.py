"""`simulate`: a problem's n workers and a rule, round after round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

from torch import Tensor

from thinwire.engines.crowd import AtOnce, Crowd, Together, refusal
from thinwire.engines.rounds import OneByOne, Points, Problem, Rounds, Stacked
from thinwire.engines.simulation import Simulation
from thinwire.errors import ConfigError
from thinwire.feedback import Feedback, Rule
from thinwire.ledger import Ledger
from thinwire.spec import rule_from
from thinwire.theory import Smooth, check_dimension, checked_size, warn_beyond_theory
from thinwire.updates import Descent, Update


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

    >>> import torch
    >>> class Pull:
    ...     workers = 3
    ...     def start(self):
    ...         return {"x": torch.zeros(2)}
    ...     def gradient(self, worker, x, step):
    ...         return {"x": x["x"] - worker}
    ...     def loss(self, x):
    ...         return float((x["x"] - 1).square().sum() / 2)
    ...
    >>> run = simulate(Pull(), "ef21(topk(count=1))", steps=100, step_size=0.2)
    >>> round(run.losses[0], 3), round(run.losses[-1], 3)
    (1.0, 0.0)
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


def _rounds(problem: Problem, x: dict[str, Tensor], rule: Rule, seed: int) -> Rounds:
    """By one call for all workers where problem and rule allow it, else by a channel for each; the result is the same
    bit for bit."""
    if isinstance(problem, Together) and isinstance(rule, Feedback) and refusal(rule, x) is None:
        return AtOnce(problem, Crowd(x, rule, problem.workers, seed=seed))
    return OneByOne(problem, Simulation(x, rule, problem.workers, seed=seed))

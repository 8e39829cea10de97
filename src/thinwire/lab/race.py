"""A race: how many steps each method takes to the dense run's last figure, and so how long on any wire.

No number of a training depends on the wire, only its seconds do: every method is trained once, and its steps are
multiplied by what a step takes at each rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch.distributed as dist

from thinwire.lab.setting import ALONE, DENSE, GATHER, LabSetting, powersgd_rank, rule_and_exchange
from thinwire.training.config import comparison
from thinwire.training.run import DistributedRun
from thinwire.training.tasks import Task, check_task

WITHIN = 0.01
"""How near to dense is there, as a share of its figure."""
LOOKS = 40
"""How often a run is evaluated."""
Point = tuple[int, float]
"""Steps done, and the task's figure on held-out data."""


@dataclass(frozen=True)
class Race:
    """Every method's figures on held-out data while it was trained, all from the same start."""

    steps: int
    metric: str
    higher_is_better: bool
    curves: Mapping[str, tuple[Point, ...]]

    @property
    def goal(self) -> float:
        """Within a hundredth of where dense training ended."""
        last = self.last(DENSE)
        return last * (1 - WITHIN if self.higher_is_better else 1 + WITHIN)

    def last(self, method: str) -> float:
        """Where a method ended; NaN where it did not run."""
        return self.curves[method][-1][1] if self.curves.get(method) else math.nan

    def steps_to_goal(self, method: str) -> int | None:
        """Steps after which it first was there; None where it never was."""
        reached = (step for step, value in self.curves.get(method, ()) if self._is_there(value))
        return next(reached, None)

    def _is_there(self, value: float) -> bool:
        return value >= self.goal if self.higher_is_better else value <= self.goal

    def plain(self) -> dict[str, Any]:
        """As a record has it; `of_plain` is the inverse."""
        return asdict(self)

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Race:
        curves = {
            method: tuple((int(step), float(value)) for step, value in curve)
            for method, curve in plain["curves"].items()
        }
        return Race(**{**plain, "curves": curves})

    @staticmethod
    def of(setting: LabSetting, curves: Mapping[str, Sequence[Sequence[float]]]) -> Race:
        """Of what the hosts trained."""
        kind = check_task(setting.task)
        plain = {"steps": setting.train, "metric": kind.metric, "higher_is_better": kind.higher_is_better}
        return Race.of_plain({**plain, "curves": curves})


def races(method: str) -> bool:
    """Whether it is trained: what exchanges nothing trains another model on every host, and `thinwire train` has
    torch's PowerSGD of rank 1 alone, and no exchange but a gather."""
    return method != ALONE and powersgd_rank(method) in (None, 1) and rule_and_exchange(method)[1] == GATHER


def trained(method: str, setting: LabSetting, task: Task) -> list[Point]:
    """Train a method from the start with all hosts; the figures that host 0 finds on the way."""
    name = method if powersgd_rank(method) is None else "powersgd"
    config = comparison(
        setting.task, [name], [0], workers=setting.hosts, batch=setting.batch, data=setting.data, steps=setting.train
    )[0]
    run, curve = DistributedRun(replace(config, rate=None), task), []
    for step in range(setting.train):
        run.step(step)
        if _is_looked_at(step + 1, setting.train) and dist.get_rank() == 0:
            curve.append((step + 1, task.evaluate(run.model)[task.metric]))
    dist.barrier()
    return curve


def _is_looked_at(done: int, steps: int) -> bool:
    return done == steps or done * LOOKS // steps > (done - 1) * LOOKS // steps

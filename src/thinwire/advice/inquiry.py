"""An inquiry: a model, so many workers and their wires; checked when built, and answered by measuring."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from thinwire.advice.actors import MatrixLoad, TaskLoad, Workload
from thinwire.advice.candidates import candidates, outer_of
from thinwire.advice.measure import Programme, rehearse
from thinwire.advice.network import measured_wire
from thinwire.advice.outlook import Advice, tcp, usual_wire
from thinwire.advice.rehearsal import Rehearsal
from thinwire.bench.ddp_step import on_ranks
from thinwire.errors import ConfigError
from thinwire.exchange import Group
from thinwire.lab.namespaces import enter
from thinwire.lab.setting import MOST, Cable, LabSetting
from thinwire.timeline import Wire
from thinwire.training.config import MAX_WORKERS, OPTIMIZERS
from thinwire.training.plugins import LOADED, load_plugin
from thinwire.training.tasks import TASKS, check_task, load_task

UNITS = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
LARGEST = 25_000_000
"""Parameters that are really encoded; bytes and seconds of larger models are worked out from these."""
SMALLEST = 1000
MOST_HERE = 64


def parameters_of(text: str) -> int | None:
    """How many a text names; None where it is no number.

    >>> parameters_of("124m"), parameters_of("3.3M"), parameters_of("text")
    (124000000, 3300000, None)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmbg]?)", text.strip().lower())
    return None if match is None else round(float(match[1]) * UNITS[match[2]])


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """What advice is asked about."""

    model: str
    """A task, or a number of parameters."""
    workers: int
    cables: tuple[Cable, ...] = ()
    """None where the network is measured."""
    methods: str | None = None
    optimizer: str | None = None
    batch: int | None = None
    data: str | None = None
    compute: float | None = None
    """Milliseconds of a step without exchange, where it is not to be measured."""
    every: int = 30
    here: int = 1
    """Workers that share this machine."""
    rounds: int = 3
    steps: int = 5

    def __post_init__(self) -> None:
        _whole("--workers", self.workers, 2, MAX_WORKERS, "one worker alone exchanges nothing")
        _whole("--here", self.here, 1, min(self.workers, MOST_HERE), "workers that share a machine are among all")
        for option in ("rounds", "steps", "every"):
            _whole(f"--{option}", getattr(self, option), 1, MOST, "nothing is measured or exchanged otherwise")
        if self.compute is not None and not (math.isfinite(self.compute) and 0 < self.compute <= 1e6):
            raise ConfigError(f"--compute takes milliseconds above 0 and up to 1,000,000, got {self.compute:g}")
        if parameters_of(self.model) is None:
            self._check_task()
        else:
            self._check_number()
        _ = self.candidates

    def _check_task(self) -> None:
        if self.model not in TASKS:
            raise ConfigError(
                f"--model takes a task ({', '.join(TASKS)}) or a number of parameters such as 124m, got {self.model!r}"
            )
        check_task(self.model, self.data)
        if self.optimizer is not None:
            raise ConfigError(f"the task {self.model!r} brings its optimizer; leave --optimizer {self.optimizer} out")
        _ = self.setting

    def _check_number(self) -> None:
        if self.compute is None:
            raise ConfigError(
                f"a number of parameters ({self.model}) does not say how long computing takes: give --compute MS, the "
                "milliseconds of a forward and backward pass with the optimizer's step on your own machine"
            )
        if self.parameters < SMALLEST:
            raise ConfigError(f"--model takes at least {SMALLEST:,} parameters, got {self.model}; 124m is 124 million")
        if self.optimizer is not None and self.optimizer not in OPTIMIZERS:
            raise ConfigError(f"--optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}")
        for option, value in (("--batch", self.batch), ("--data", self.data)):
            if value is not None:
                raise ConfigError(f"{option} belongs to a task; a number of parameters has none")

    @property
    def parameters(self) -> int:
        """Where no task is named."""
        return parameters_of(self.model) or 0

    @property
    def packages(self) -> Mapping[str, str]:
        """Optional ones that it takes, and the extra that brings each."""
        return {} if self.parameters else check_task(self.model).packages

    @property
    def candidates(self) -> tuple[str, ...]:
        """The methods that are asked about."""
        optimizer = self.optimizer or "adamw" if self.parameters else check_task(self.model).defaults.optimizer
        return candidates(self.methods, optimizer, every=self.every)

    @property
    def setting(self) -> LabSetting:
        """As the laboratory would measure it."""
        return LabSetting(
            hosts=self.workers,
            cables=self.cables,
            task=self.model,
            methods=("alone", *(method for method in self.candidates if outer_of(method) is None)),
            rounds=self.rounds,
            steps=self.steps,
            batch=self.batch,
            data=self.data,
            replay=self.compute,
        )

    def load(self, rank: int) -> Workload:
        """What a rank is to train."""
        if self.parameters:
            return MatrixLoad(min(self.parameters, LARGEST))
        return TaskLoad(load_task(self.model, self.data), self.setting, rank)


def _whole(option: str, value: int, low: int, high: int, why: str) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{option} must be a whole number from {low} to {high:,}, got {value}: {why}")


def rehearsed(inquiry: Inquiry, namespaces: Sequence[str] = ()) -> Rehearsal:
    """Measured by as many processes of this machine as workers are to share it; each has its share of the cores.

    They measure collectives where all workers are here: on the loopback, or each from a network namespace of its own.
    """
    return on_ranks(inquiry.here, _on_rank, inquiry, tuple(LOADED), tuple(namespaces))[0]


def _on_rank(rank: int, inquiry: Inquiry, plugins: tuple[Path, ...], namespaces: tuple[str, ...]) -> Rehearsal:
    for plugin in plugins:
        load_plugin(plugin)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // inquiry.here))
    known = inquiry.here == inquiry.workers
    wire = measured_wire(_group(rank, namespaces), torch.device("cpu")) if known else usual_wire(inquiry.workers)
    return _answered(inquiry, tcp(wire), here=inquiry.here, known=known)


def _group(rank: int, namespaces: tuple[str, ...]) -> Group:
    """All ranks; a group that is made in a namespace has its connections there."""
    if not namespaces:
        return Group()
    enter(namespaces[rank])
    return Group(dist.new_group())


def on_launched_ranks(inquiry: Inquiry, tell: Callable[[str], None]) -> tuple[Rehearsal, int]:
    """Measured by the ranks of a launcher over the network that joins them: the answer of all, and this rank."""
    dist.init_process_group("gloo")
    try:
        tell("the network")
        wire = measured_wire(Group(), torch.device("cpu"))
        return _answered(inquiry, wire, known=True, tell=tell), dist.get_rank()
    finally:
        dist.destroy_process_group()


def _answered(inquiry: Inquiry, wire: Wire, **how: Any) -> Rehearsal:
    load = inquiry.load(dist.get_rank())
    plan = Programme(load, inquiry.candidates, inquiry.workers, inquiry.rounds, inquiry.steps)
    batch = None if inquiry.parameters else inquiry.setting.config("dense").batch
    return scaled(inquiry, rehearse(plan, wire, model=inquiry.model, batch=batch, **how))


def scaled(inquiry: Inquiry, rehearsal: Rehearsal) -> Rehearsal:
    """As many parameters as were asked about, and the time that was given for computing."""
    if inquiry.compute is None:
        return rehearsal
    if not inquiry.parameters:
        return replace(rehearsal, slept=inquiry.compute / 1e3)
    found = rehearsal.found.times(inquiry.parameters / rehearsal.found.parameters)
    return replace(rehearsal, found=found.replayed(inquiry.compute / 1e3))


def advice(inquiry: Inquiry, rehearsal: Rehearsal) -> list[Advice]:
    """One for each wire; without any, for the network as it was measured."""
    if not inquiry.cables:
        return [Advice(rehearsal, rehearsal.wire)]
    return [Advice(rehearsal, rehearsal.wire.shaped(cable.up, cable.down)) for cable in inquiry.cables]

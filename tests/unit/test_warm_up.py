"""The warm-up: compiling is done before a method's clock starts, and changes no number."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from thinwire.errors import NonFiniteGradient
from thinwire.training import RunConfig, read_records, train
from thinwire.training.loop import WARM_UP_STEPS, Loop, WarmUp
from thinwire.training.recorder import Recorder, Totals
from thinwire.training.run import SimulatedRun, TrainingRun
from thinwire.training.sections import verdict
from thinwire.training.summary import summarise
from thinwire.training.tasks import Task, load_task

COMPILING, STEP = 25.0, 0.5


def config(method: str = "memsgd(topk(0.1))", **settings: Any) -> RunConfig:
    return RunConfig.of("logistic", method, **{"engine": "sim", "workers": 2, "steps": 8, "evaluations": 2, **settings})


class Clock:
    """Time that passes only when a step says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


class CompilingRun(TrainingRun):
    """A run whose method's first step in a process takes long, and whose steps draw from torch's generator."""

    clock: ClassVar[Clock]
    compiled: ClassVar[set[str]]
    made: ClassVar[int]

    def __init__(self, config: RunConfig, task: Task) -> None:
        super().__init__(config, task)
        self.draws: list[float] = []
        type(self).made += 1

    def _step(self, step: int) -> None:
        self.clock.now += STEP + (COMPILING if self.config.method not in self.compiled else 0.0)
        self.compiled.add(self.config.method)
        self.draws.append(float(torch.rand(())))
        if self.config.lr > 1e6:
            raise NonFiniteGradient(0, "weight", step)

    def settle(self) -> None: ...

    def take_losses(self) -> list[float]:
        return [1.0]

    def traffic(self) -> Totals:
        return Totals(1, 1, 1)


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> type[CompilingRun]:
    CompilingRun.clock, CompilingRun.compiled, CompilingRun.made = Clock(monkeypatch), set(), 0
    return CompilingRun


def test_the_clock_counts_no_compiling_and_the_record_tells_it_apart(
    compiling: type[CompilingRun], tmp_path: Path
) -> None:
    task = load_task("logistic")
    recorder, warm_up = Recorder(tmp_path / "r.jsonl", {}), WarmUp(compiling, task)
    for one in (config("dense"), config("dense", seed=1), config()):
        seconds = warm_up(one)
        Loop(compiling(one, task), recorder, seconds).go()
    recorder.close()
    ends = [run.end for run in read_records([tmp_path / "r.jsonl"])]
    assert [end["seconds"] for end in ends] == [8 * STEP] * 3
    once = COMPILING + WARM_UP_STEPS * STEP
    assert [end["warm_up_seconds"] for end in ends] == [once, 0, once]
    assert compiling.made == 3 + 2  # a seed more needs no other warm-up
    rows = summarise(read_records([tmp_path / "r.jsonl"]))
    assert [row.warm_up for row in rows] == [once, once]
    assert verdict(rows)[-1] == (
        "Times are of training steps alone; compiling and warming up took 53.0 s (dense 26.5 s) before them."
    )


def test_torchs_generator_is_left_as_it_was(compiling: type[CompilingRun]) -> None:
    task = load_task("logistic")
    state = torch.get_rng_state()
    WarmUp(compiling, task)(config())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_method_that_diverges_at_once_is_left_to_its_run(compiling: type[CompilingRun]) -> None:
    assert WarmUp(compiling, load_task("logistic"))(config(lr=1e30)) == COMPILING + STEP


@pytest.mark.parametrize("method", ["dense", "memsgd(randk(0.1))", "ef21sgdm(topk(0.1))", "vgc(1.0)"])
def test_a_warm_up_changes_no_number(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (warm,) = train([config(method)], tmp_path / "warm.jsonl")
    monkeypatch.setattr("thinwire.training.loop.WARM_UP_STEPS", 0)
    (cold,) = train([config(method)], tmp_path / "cold.jsonl")
    timeless = [[dataclasses.replace(point, seconds=0.0) for point in run.losses] for run in (warm, cold)]
    assert timeless[0] == timeless[1]
    untimed = [{**run.end, "seconds": 0, "warm_up_seconds": 0} for run in (warm, cold)]
    assert untimed[0] == untimed[1]


def test_old_records_without_it_are_read_and_say_nothing(tmp_path: Path) -> None:
    (run,) = train([config()], tmp_path / "r.jsonl")
    old = dataclasses.replace(run, end={name: run.end[name] for name in run.end if name != "warm_up_seconds"})
    assert verdict(summarise([old])) == []


def test_compiled_kernels_are_all_there_after_the_warm_up() -> None:
    """numba compiles, or loads from its cache, once for each signature: none is new in the run itself."""
    pytest.importorskip("numba")
    task, one = load_task("logistic"), config(steps=6)
    WarmUp(SimulatedRun, task)(one)
    before = signatures()
    run = SimulatedRun(one, task)
    for step in range(6):
        run.step(step)
    assert before
    assert signatures() == before


def signatures() -> dict[str, int]:
    """How many versions of each kernel are there."""
    from numba.core.dispatcher import Dispatcher

    modules = [module for name, module in sys.modules.items() if name.startswith("thinwire.ops.cpu")]
    kernels = {id(value): value for module in modules for value in vars(module).values()}
    return {str(value): len(value.signatures) for value in kernels.values() if isinstance(value, Dispatcher)}

"""torch's own test class for several processes, with a hook in every DDP model. `torch_ddp.prepare` comes before it."""

from __future__ import annotations

import logging
import os
import re
import unittest
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import torch
from tests.foreign.attached import (
    ATTACHED,
    BUILT,
    PLAIN,
    REFUSED,
    TORCHS,
    Register,
    register_with_every_model,
    registration,
)
from tests.foreign.cpu_for_gpu import OnCPU, stand_in_for_gpus
from torch.testing._internal import common_distributed

ON_CPU = bool(os.environ["CPU_FOR_GPU"])
if ON_CPU:
    stand_in_for_gpus(int(os.environ["WORLD_SIZE"]))
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402

STEPS = "steps: "
SECOND_HOOK = "register_comm_hook or register_builtin_comm_hook can only be called once"
EXCUSED = {
    **dict.fromkeys(
        ("test_ddp_apply_optim_in_backward", "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false"),
        "compares an attached model with one that attach refuses, for an optimizer lies within its backward pass; the "
        "loss is a sum without a lower bound, so that other rounding grows",
    ),
    "test_ddp_profiling_torch_profiler": "counts the profiler's all_reduce events, and thinwire gathers",
    "test_ddp_sink_noclone": "forbids aten.clone in the whole step, and identity() sends a copy of the bucket",
}

common_distributed.TIMEOUT_OVERRIDE.clear()
common_distributed.logger.setLevel(logging.CRITICAL)


class TorchWorld(TestDistBackend, DistributedTest._DistTestBase):
    """torch's tests. A process for each rank is forked, which takes a tenth of the time of a spawned one."""

    register: ClassVar[Register]
    notes: ClassVar[Path]

    def setUp(self) -> None:
        """Start the ranks, as torch's own subclass does."""
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **options: Any) -> None:
        _silence()
        with open(cls.notes / f"{test_name}.{rank}", "w", buffering=1) as file:
            ledgers = register_with_every_model(cls.register, lambda line: print(" ".join(line.split()), file=file))
            try:
                with OnCPU() if ON_CPU else nullcontext():
                    super()._run(rank, test_name, file_name, pipe, **options)
            finally:
                print(f"{STEPS}{sum(ledger.steps for ledger in ledgers)}", file=file)

    def _barrier(self, *args: Any, **options: Any) -> None:
        """Wait for as long as the test may take: torch's 10 s are too few on a busy machine."""
        super()._barrier(*args, **options | {"timeout": common_distributed.TIMEOUT_DEFAULT})

    def _check_return_codes(self, fn: Any, elapsed_time: float) -> None:
        """Hold every rank to what torch holds rank 0 to."""
        super()._check_return_codes(fn, elapsed_time)
        if fn not in self.skip_return_code_checks:
            codes = [process.exitcode for process in self.processes]
            assert codes == codes[:1] * len(codes), f"the ranks end with different codes: {codes}"


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)


@dataclass(frozen=True)
class Outcome:
    """What became of one test under one hook."""

    verdict: str
    reason: str
    models: int
    attached: int
    steps: int


def names(pattern: str) -> list[str]:
    """The tests whose names hold the pattern."""
    return [name for name in unittest.TestLoader().getTestCaseNames(TorchWorld) if re.search(pattern, name)]


def run(name: str, hook: str, folder: Path) -> Outcome:
    """Run one of torch's tests with the hook in every DDP model."""
    TorchWorld.register, TorchWorld.notes = staticmethod(registration(hook)), folder
    result = unittest.TestResult()
    with redirect_stdout(StringIO()):
        TorchWorld(name).run(result)
    lines = [line for rank in folder.glob(f"{name}.*") for line in rank.read_text().splitlines()]
    models, attached = lines.count(BUILT), lines.count(ATTACHED)
    steps = sum(int(line.removeprefix(STEPS)) for line in lines if line.startswith(STEPS))
    refusals = sorted({line.removeprefix(REFUSED) for line in lines if line.startswith(REFUSED)})
    verdict, reason = _verdict(result, refusals, attached)
    if verdict == "fail" and hook not in (PLAIN, TORCHS):
        verdict, reason = _excused(name, reason, folder)
    return Outcome(verdict, reason, models, attached, steps)


def _excused(name: str, reason: str, folder: Path) -> tuple[str, str]:
    if name in EXCUSED:
        return "excused", EXCUSED[name]
    return ("any hook" if run(name, TORCHS, folder).verdict == "fail" else "fail"), reason


def _verdict(result: unittest.TestResult, refusals: list[str], attached: int) -> tuple[str, str]:
    for _, why in result.skipped:
        return "skipped", why
    for _, text in result.errors + result.failures:
        verdict = (
            "own hook" if SECOND_HOOK in text else "time-out" if "terminated or timed out after" in text else "fail"
        )
        return verdict, text.strip() if verdict == "fail" else ""
    return ("refused" if refusals and not attached else "pass"), "; ".join(refusals)

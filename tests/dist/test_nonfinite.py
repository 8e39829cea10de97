"""Gradients with NaN or infinity, and loss scaling, with real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.dist.training import batch, differences, network
from tests.dist.world import run_world
from tests.methods import DDP_STATES
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.errors import NonFiniteGradient
from thinwire.moments import watch

pytestmark = pytest.mark.dist

BAD_STEP = 4


def poisoned_loss(model: nn.Module, rank: int, step: int, poison: bool) -> torch.Tensor:
    """Rank 1's loss at one step has a gradient that is NaN in one bias only, which one of several buckets holds."""
    x, y = batch(step, rank)
    loss = nn.functional.cross_entropy(model(x), y)
    if poison and rank == 1 and step == BAD_STEP:
        loss = loss + model.module[2].bias[0] * float("nan")  # type: ignore[index, union-attr, operator]
    return loss


def train(
    rank: int, rule: str, *, poison: bool, skip: bool
) -> tuple[dict[str, torch.Tensor], list[str], thinwire.Handle]:
    """10 steps; the poisoned one is dropped by hand where it raises, or by the step that is left out."""
    model = network()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen = thinwire.parse(rule)
    handle = thinwire.attach(ddp, chosen, optimizer, moments=watch(ddp, rule=chosen))
    caught = []
    for step in range(10):
        if skip and step == BAD_STEP:
            continue
        optimizer.zero_grad()
        try:
            poisoned_loss(ddp, rank, step, poison).backward()
        except NonFiniteGradient as error:
            caught.append(f"{error.rank} {error.parameter} {error.step}")
            continue
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}, caught, handle


def raising(rank: int, size: int) -> list[tuple[list[str], bool, float]]:
    answers = []
    for rule in DDP_STATES:
        hit, caught, handle = train(rank, rule, poison=True, skip=False)
        clean, _, _ = train(rank, rule, poison=False, skip=True)
        answers.append((caught, not list(differences(clean, hit)), handle.ledger.summary()["skipped_steps"]))
    return answers


def test_a_nan_names_rank_and_parameter_everywhere_and_the_run_goes_on_unpoisoned(tmp_path: Path) -> None:
    """Bitwise the run in which that step never was, for every bucket's state."""
    for answers in run_world(2, raising, folder=tmp_path):
        for caught, same, skipped in answers:
            assert caught == [f"1 2.bias {BAD_STEP}"]
            assert same
            assert skipped == 1


def scaled_run(
    rank: int, rule: str, scaler: torch.amp.GradScaler, poison: bool
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Training with a loss scaler that grows every 3 steps and backs off at the poisoned one."""
    model = network()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen = thinwire.parse(rule)
    moments = watch(ddp, rule=chosen)
    thinwire.attach(ddp, chosen, optimizer, moments=moments, scaler=scaler, nonfinite="skip")
    scales = []
    for step in range(12):
        if not poison and step == BAD_STEP:
            continue
        optimizer.zero_grad()
        scaler.scale(poisoned_loss(ddp, rank, step, poison)).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return {name: p.detach() for name, p in model.named_parameters()}, scales


def scaled(rank: int, size: int) -> list[Any]:
    answers = []
    for rule in DDP_STATES:
        growing = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        constant = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
        with_nan, scales = scaled_run(rank, rule, growing, poison=True)
        without, _ = scaled_run(rank, rule, constant, poison=False)
        answers.append((scales, not list(differences(without, with_nan))))
    return answers


def test_a_scaler_skips_the_step_and_its_scale_never_reaches_the_state(tmp_path: Path) -> None:
    """Scales are powers of two, so a run whose scale moves equals, bit for bit, one whose scale stands still."""
    for answers in run_world(2, scaled, folder=tmp_path):
        for scales, same in answers:
            assert scales[3:6] == [2048.0, 1024.0, 1024.0]
            assert max(scales) > 1024.0
            assert same


def overflowing(rank: int, size: int) -> tuple[list[bool], float, bool]:
    """float16 gradients whose memory outgrows float16: the result overflows on all ranks alike: refused."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False).half()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    handle = thinwire.attach(ddp, thinwire.MemSGD(thinwire.TopK(count=1)), optimizer, nonfinite="skip")
    finite = []
    for _ in range(6):
        optimizer.zero_grad()
        ddp(torch.full((1, 4), 3e4, dtype=torch.float16)).sum().backward()
        finite.append(bool(torch.isfinite(model.weight.grad).all()))  # type: ignore[arg-type]
    state = handle.state_dict()["slots"][f"error/rank{rank}/weight"]
    return finite, float(state.abs().max()), bool(torch.isfinite(state).all())


def test_an_overflow_of_the_exchanged_value_is_refused_too(tmp_path: Path) -> None:
    for finite, largest, all_finite in run_world(2, overflowing, folder=tmp_path):
        assert finite[0]
        assert not all(finite)
        assert all_finite
        assert largest == 6e4  # two gradients: the third would have made 9e4, beyond float16, and was undone

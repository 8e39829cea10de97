"""Runs of what `authored` adds, in a module that the processes of a world import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.dist.training import Parameters, Run, differences, train_ddp, train_simulated
from tests.dist.world import run_world
from tests.extending import authored

HALF = 6
assert authored  # imported for what it registers, here and in every process of a world


def trained(rank: int, size: int, run: Run) -> tuple[Parameters, Parameters]:
    """The parameters of a run in one go, and of one that is saved and resumed on the way."""
    whole, _, _ = train_ddp(rank, run)
    _, half, _ = train_ddp(rank, run, until=HALF)
    saved: Any = half.saved  # type: ignore[attr-defined]
    resumed, _, _ = train_ddp(rank, run, resume=(HALF, saved))
    return whole, resumed


def check_every_engine(method: str, folder: Path) -> None:
    """Simulation, two real processes, and those saved and resumed give the same parameters, bit for bit."""
    run = Run(method, steps=2 * HALF)
    simulated = train_simulated(run, 2)
    for whole, resumed in run_world(2, trained, run, folder=folder):
        assert not list(differences(simulated, whole))
        assert not list(differences(simulated, resumed))
    assert all(bool(torch.isfinite(parameter).all()) for parameter in simulated.values())

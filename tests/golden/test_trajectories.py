"""Trajectories that must not move by accident: loss, unsaid share and message bytes, for each method.

`pytest tests/golden --regen-golden` writes them anew; the diff is then read like code.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from tests.methods import GOLDEN
from torch import Tensor

from thinwire import Simulation, parse

FOLDER = Path(__file__).parent / "trajectories"
STEPS, EVERY, WORKERS = 40, 5, 3
EPS = torch.finfo(torch.float64).eps
SHAPES = {"w": (6, 5), "b": (5,), "s": (1,)}


def _ramp(name: str, factor: int, shift: int, modulus: int) -> Tensor:
    """Small rational numbers that are the same on every machine."""
    numel = torch.Size(SHAPES[name]).numel()
    return ((torch.arange(numel) * factor + shift) % modulus).to(torch.float64).view(SHAPES[name])


def curvature(worker: int) -> dict[str, Tensor]:
    return {name: (_ramp(name, 7, 3 * worker, 5) + 1) / 4 for name in SHAPES}


def target(worker: int) -> dict[str, Tensor]:
    return {name: (_ramp(name, 5, 11 * worker, 13) - 6) / 3 for name in SHAPES}


def moment(name: str, pull: Tensor) -> Tensor:
    """A second moment with r^2 / v from 1/4 to 9/4 in the first step, for rules that need one."""
    return pull.square() * 4 / (2 * _ramp(name, 2, 1, 5) + 1)


def run(spec: str) -> dict[str, object]:
    """40 steps on three quadratics with a step size that drops once."""
    x = {name: torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for name, shape in SHAPES.items()}
    optimizer = torch.optim.SGD(x.values(), lr=0.125)
    simulation = Simulation(x, parse(spec), WORKERS, optimizer=optimizer, seed=1, ledger_every=1)
    curvatures, targets = [curvature(i) for i in range(WORKERS)], [target(i) for i in range(WORKERS)]
    rows: list[dict[str, float]] = []
    previous: list[dict[str, Tensor]] | None = None
    for step in range(STEPS):
        if step == STEPS // 2:
            optimizer.param_groups[0]["lr"] = 0.05
        points = {n: point.detach() for n, point in simulation.points.items()}
        pulls = [{n: a[n] * (points[n] - b[n]) for n in x} for a, b in zip(curvatures, targets, strict=True)]
        losses = [
            (0.5 * a[n] * (x[n].detach() - b[n]).square()).sum().item()
            for a, b in zip(curvatures, targets, strict=True)
            for n in x
        ]
        simulation.step(pulls, [{n: moment(n, pull) for n, pull in own.items()} for own in pulls], previous or pulls)
        previous = pulls
        if step % EVERY == 0 or step == STEPS - 1:
            last = simulation.ledger.last_step()
            kept = {"residual_ratio": last["residual_ratio"], "message_bytes": last["message_bytes"]}
            rows.append({"step": step, "loss": sum(losses) / WORKERS, **kept})
    return {"spec": spec, "rows": rows}


def path_of(spec: str) -> Path:
    return FOLDER / (re.sub(r"[^a-z0-9.=]+", "_", spec.lower()).strip("_") + ".json")


@pytest.mark.parametrize("spec", GOLDEN)
def test_trajectory_is_the_one_on_file(spec: str, request: pytest.FixtureRequest) -> None:
    now = run(spec)
    if request.config.getoption("--regen-golden"):
        FOLDER.mkdir(exist_ok=True)
        path_of(spec).write_text(json.dumps(now, indent=1) + "\n")
    then = json.loads(path_of(spec).read_text())
    assert now["spec"] == then["spec"]
    for mine, filed in zip(now["rows"], then["rows"], strict=True):
        assert (mine["step"], mine["message_bytes"]) == (filed["step"], filed["message_bytes"])
        for key in ("loss", "residual_ratio"):
            allowed = 64 * EPS * (mine["step"] + 1) * max(1.0, abs(filed[key]))
            assert abs(mine[key] - filed[key]) <= allowed, f"{key} at step {mine['step']}"


def test_every_file_belongs_to_a_method() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == {path_of(spec).name for spec in GOLDEN}

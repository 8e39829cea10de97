"""A task of a user's own, in the user's own file: trained in simulation and by real workers, without an edit here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from thinwire.errors import ConfigError
from thinwire.training import RunConfig, train
from thinwire.training.plugins import LOADED, load_plugin
from thinwire.training.tasks import TASKS, Defaults, Task, register

MINE = '''
"""A plane through noisy points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thinwire.training.tasks import Batch, Defaults, Task, epoch_slice, register, seeded


@register
@dataclass(frozen=True, eq=False)
class Plane(Task):
    """Least squares in ten dimensions."""

    points: Tensor
    heights: Tensor
    name, about, metric = "plane", "200 noisy points, a linear layer", "loss"
    defaults = Defaults(steps=20, batch=8, lr=0.1, schedule="constant")

    @classmethod
    def load(cls, data: str | None = None) -> Plane:
        random = torch.Generator().manual_seed(0)
        points = torch.randn(200, 10, generator=random)
        return cls(points, points.sum(1) + 0.01 * torch.randn(200, generator=random))

    def model(self, seed: int) -> nn.Module:
        return seeded(seed, lambda: nn.Linear(10, 1))

    def batch(self, seed: int, step: int, worker: int, workers: int, size: int) -> Batch:
        chosen = torch.from_numpy(epoch_slice(150, seed, step, worker, workers, size))
        return self.points[chosen], self.heights[chosen]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch[0]).squeeze(1) - batch[1]).square().mean()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"loss": float(self.loss(model, (self.points[150:], self.heights[150:])))}

    def facts(self) -> dict[str, str | int]:
        return {"train_samples": 150, "test_samples": 50}
'''


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Path]:
    """The file of the user, loaded."""
    file = tmp_path / "plane.py"
    file.write_text(MINE)
    load_plugin(file)
    yield file
    del TASKS["plane"], LOADED[file.resolve()]


@pytest.mark.dist
@pytest.mark.usefixtures("forked_workers")
def test_a_task_is_one_file_in_simulation_and_with_real_workers(plane: Path, tmp_path: Path) -> None:
    """Bitwise alike, which also shows that the workers know it."""
    settings = {"workers": 2, "evaluations": 2}
    methods = ("dense", "memsgd(topk(0.2))")
    simulated = [RunConfig.of("plane", method, engine="sim", **settings) for method in methods]
    real = [RunConfig.of("plane", method, engine="ddp", **settings) for method in methods]
    here = train(simulated, tmp_path / "sim.jsonl")
    there = train(real, tmp_path / "ddp.jsonl")
    for one, other in zip(here, there, strict=True):
        assert one.end["values"] == other.end["values"]
        assert [point.value for point in one.losses] == [point.value for point in other.losses]
        assert one.end["values"]["loss"] < 1


def test_a_name_is_taken_once(plane: Path, tmp_path: Path) -> None:
    load_plugin(plane)  # again, which changes nothing
    other = tmp_path / "other.py"
    other.write_text(MINE)
    with pytest.raises(ConfigError, match="a task 'plane' exists already, Plane: give yours another name"):
        load_plugin(other)


def test_what_a_task_lacks_is_named() -> None:
    class Half(Task):
        name, metric, defaults = "half", "loss", Defaults(steps=1, batch=1, lr=1.0)

    with pytest.raises(ConfigError, match="Half lacks about, batch, evaluate, facts, load, loss, model: give"):
        register(Half)
    assert "half" not in TASKS

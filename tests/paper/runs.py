"""The problem that both sides solve, and thinwire's side of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire import Feedback, Simulation, simulate

WORKERS, D, STEPS = 4, 30, 200
EPS = float(np.finfo(np.float64).eps)
Vector = NDArray[np.float64]
Gradient = Callable[[int, Vector, int], Vector]


class Quadratics:
    """f_i(x) = x'A_i x / 2 - b_i'x with curvatures 0.2 .. 2, unlike each other; gradients with noise."""

    def __init__(self, noise: float = 0.1, workers: int = WORKERS, steps: int = STEPS) -> None:
        rng = np.random.default_rng(7)
        self.start = rng.normal(size=D)
        bases = [np.linalg.qr(rng.normal(size=(D, D)))[0] for _ in range(workers)]
        self.A = [q @ np.diag(rng.uniform(0.2, 2, D)) @ q.T for q in bases]
        self.b = [rng.normal(size=D) * 3 for _ in range(workers)]
        self.noise = noise * rng.normal(size=(workers, steps + 1, D))

    def gradient(self, i: int, x: Vector, t: int) -> Vector:
        return self.A[i] @ x - self.b[i] + self.noise[i, t]

    def exact(self, i: int, x: Vector, t: int) -> Vector:
        """The same without noise."""
        return self.A[i] @ x - self.b[i]


def constant(size: float) -> Callable[[int], float]:
    return lambda t: size


def ours(
    rule: Feedback,
    gradient: Callable[[int, Vector, int], Vector],
    x: Vector,
    step: Callable[[int], float],
    steps: int = STEPS,
    workers: int = WORKERS,
    watch: Callable[[Simulation], Any] | None = None,
    moment: Callable[[int, Vector, int], Vector] | None = None,
) -> Vector:
    """Iterates of a simulation in float64; the last step of each round is taken in numpy, as the transcription does."""
    simulation = Simulation({"x": torch.zeros(x.size, dtype=torch.float64)}, rule, workers, seed=5)
    path = [x]
    for t in range(steps):
        gradients = [{"x": torch.from_numpy(gradient(i, x, t))} for i in range(workers)]
        moments = None if moment is None else [{"x": torch.from_numpy(moment(i, x, t))} for i in range(workers)]
        x = x - step(t) * simulation.exchange(gradients, {"x": step(t)}, moments)["x"].numpy()
        path.append(x)
        if watch is not None:
            watch(simulation)
    return np.array(path)


class Recorded:
    """The problem as `simulate` takes it, which keeps every point at which the loss is asked for."""

    def __init__(
        self, gradient: Gradient, start: Vector, workers: int = WORKERS, full: Gradient | None = None, shape: Any = None
    ) -> None:
        self.workers, self.path = workers, list[Vector]()
        self._gradient, self._full, self._start = gradient, full or gradient, start.reshape(shape or start.shape)

    def start(self) -> dict[str, Tensor]:
        return {"x": torch.from_numpy(self._start)}

    def gradient(self, worker: int, x: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        return {"x": torch.from_numpy(self._gradient(worker, x["x"].numpy(), step))}

    def full_gradient(self, worker: int, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"x": torch.from_numpy(self._full(worker, x["x"].numpy(), 0))}

    def loss(self, x: Mapping[str, Tensor]) -> float:
        self.path.append(x["x"].numpy().copy())
        return 0.0


def simulated(rule: Feedback, problem: Recorded, step: Callable[[int], float], **options: Any) -> Vector:
    """The iterates of `simulate`, which evaluates gradients and steps by itself."""
    simulate(problem, rule, steps=STEPS, step_size=step, seed=5, **options)
    return np.array(problem.path)


def tolerance(*paths: Vector) -> float:
    """64 eps a step, of the largest number in the run: the two sides differ in the order of operations only."""
    steps = len(paths[0]) - 1
    return 64 * EPS * steps * max(1.0, *(float(np.abs(path).max()) for path in paths))


def cosine(t: int) -> float:
    """From 0.1 to almost zero over the run."""
    return 0.05 * (1 + math.cos(math.pi * t / STEPS)) + 1e-4


def decay(t: int) -> float:
    """Divided by ten twice, and raised once."""
    return (0.1, 0.01, 0.03, 0.003)[t * 4 // STEPS]


def halving(t: int) -> float:
    """Powers of two: update units and gradient units then differ by exact factors."""
    return (0.125, 0.03125, 0.0625, 0.015625)[t * 4 // STEPS]


def states(simulation: Simulation, slot: str) -> list[Vector]:
    """Each worker's slot."""
    return [channel.worker.view("x", slot).numpy().copy() for channel in simulation.channels]


def assert_close(mine: Vector, paper: Vector) -> None:
    assert mine.shape == paper.shape
    assert float(np.abs(mine - paper).max()) <= tolerance(mine, paper)


def assert_moved(path: Sequence[Vector] | Vector) -> None:
    """The run did something: no test passes on a standstill."""
    assert float(np.abs(np.asarray(path)[-1] - np.asarray(path)[0]).max()) > 0.1

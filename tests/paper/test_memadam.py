"""MemAdam against its formulas, step by step in numpy; and what is left of it without compression: Adam."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.paper.runs import STEPS, WORKERS, Quadratics, Vector, assert_close, assert_moved, cosine, halving

from thinwire import Compressor, Identity, MemAdam, Simulation, TopK
from thinwire.feedback.memadam import EARLY

ROWS, COLUMNS, K = 6, 5, 3
B1, B2, EPS = 0.5, 0.99, 1e-8
Step = Callable[[int], float]


def bfloat16(x: Vector) -> Vector:
    return np.asarray(torch.from_numpy(x).bfloat16().double().numpy())


def transcription(step: Step, k: int, refresh: int, clip: float | None, decay: float) -> Vector:
    """The docstring's lines for one matrix, with its factors kept apart; a step without D says nothing."""
    problem = Quadratics()
    x, n = problem.start.reshape(ROWS, COLUMNS), WORKERS
    m, e = np.zeros((n, ROWS, COLUMNS)), np.zeros((n, ROWS, COLUMNS))  # e in units of updates
    r, c = np.zeros((n, ROWS)), np.zeros((n, COLUMNS))
    D = np.zeros((ROWS, COLUMNS))
    path = [x]
    for t in range(STEPS):
        total, s = np.zeros_like(x), step(t)
        for i in range(n):
            g = problem.gradient(i, x.ravel(), t).reshape(ROWS, COLUMNS)
            m[i] = B1 * m[i] + (1 - B1) * g
            r[i] = B2 * r[i] + (1 - B2) * (g**2).mean(1)
            c[i] = B2 * c[i] + (1 - B2) * (g**2).mean(0)
            u = m[i] / (1 - B1 ** (t + 1)) / (D + EPS) if D.any() else np.zeros_like(x)
            if clip is not None:
                u *= min(1.0, clip * np.sqrt(n) / max(float(np.sqrt((u**2).mean())), 1e-300))
            p = decay * e[i] + s * u
            chosen = np.argsort(-np.abs(p).ravel(), kind="stable")[:k]
            sent = np.zeros(x.size)
            sent[chosen] = p.ravel()[chosen]
            e[i] = p - sent.reshape(x.shape)
            total += sent.reshape(x.shape) / n
        if t < EARLY or t % refresh == 0:
            rows = np.mean([bfloat16(one / (1 - B2 ** (t + 1))) for one in r], 0)
            columns = np.mean([bfloat16(one / (1 - B2 ** (t + 1))) for one in c], 0)
            D = np.sqrt(np.outer(rows, columns) / rows.mean() / n)
        x = x - total
        path.append(x)
    return np.array(path).reshape(STEPS + 1, -1)


def trained(rule: MemAdam, step: Step, shape: tuple[int, ...], workers: int = WORKERS) -> Vector:
    problem = Quadratics(workers=workers)
    x = torch.from_numpy(problem.start.reshape(shape).copy())
    simulation = Simulation({"x": x}, rule, workers)
    path = [problem.start]
    for t in range(STEPS):
        gradients = [problem.gradient(i, x.numpy().ravel(), t) for i in range(workers)]
        told = [{"x": torch.from_numpy(gradient.reshape(shape))} for gradient in gradients]
        x -= step(t) * simulation.exchange(told, {"x": step(t)})["x"]
        path.append(x.numpy().ravel().copy())
    return np.array(path)


@pytest.mark.parametrize("step", [halving, cosine], ids=["halving", "cosine"])
@pytest.mark.parametrize(("refresh", "clip", "decay"), [(1, 1.0, 1.0), (16, None, 1.0), (7, 0.3, 0.9)])
def test_it_is_its_formulas(refresh: int, clip: float | None, decay: float, step: Step) -> None:
    rule = MemAdam(TopK(count=K), refresh=refresh, clip=clip, decay=decay)
    mine = trained(rule, step, (ROWS, COLUMNS))
    assert_moved(mine)
    assert_close(mine, transcription(step, K, refresh, clip, decay))


def test_one_worker_without_compression_is_adam_with_a_factored_second_moment_one_step_late() -> None:
    """Against torch's own Adam on one number, where factors are exact: the same direction, and a step behind in v."""
    x = torch.tensor([[1.0]], dtype=torch.float64)
    simulation = Simulation({"x": x}, MemAdam(Identity(), beta1=0.9, beta2=0.5, clip=None, refresh=1), 1)
    m = v = 0.0
    for t in range(1, 50):
        gradient = float(np.cos(t))
        out = simulation.exchange([{"x": torch.tensor([[gradient]], dtype=torch.float64)}], {"x": 1.0})["x"].item()
        m = 0.9 * m + 0.1 * gradient
        late = float(bfloat16(np.array(v / (1 - 0.5 ** (t - 1))))) if t > 1 else 0.0
        v = 0.5 * v + 0.5 * gradient**2
        expected = m / (1 - 0.9**t) / (np.sqrt(late) + 1e-8) if late else 0.0
        assert out == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("compressor", [TopK(count=K), Identity()], ids=str)
def test_units_of_the_loss_change_nothing(compressor: Compressor) -> None:
    """Adam's law: a loss that is multiplied by a power of two gives the same steps, eps aside."""
    gradients = torch.randn(60, 2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    outs = []
    for unit in (1.0, 1024.0):
        simulation = Simulation({"x": torch.zeros(4, 3, dtype=torch.float64)}, MemAdam(compressor, eps=1e-300), 2)
        outs.append([simulation.exchange([{"x": g * unit} for g in both], {"x": 0.1})["x"] for both in gradients])
    assert all(torch.equal(one, two) for one, two in zip(*outs, strict=True))


def test_a_rate_of_zero_at_first_leaves_no_preconditioner_of_zero() -> None:
    """A warm-up that begins at 0: nothing is known of D then, and nothing is divided by it later."""
    simulation = Simulation({"x": torch.zeros(4, 3)}, MemAdam(TopK(0.5)), 2)
    ones = [{"x": torch.ones(4, 3)}] * 2
    outs = [simulation.exchange(ones, {"x": size})["x"].abs().max().item() for size in (0.0, 0.1, 0.1)]
    assert outs[:2] == [0.0, 0.0]
    assert 0 < outs[2] <= 2 * 2**0.5


def test_a_rate_of_zero_later_leaves_the_preconditioner_as_it_was() -> None:
    """Nobody has anything to say of D at a rate of zero, and the next step is divided by the one that was known."""
    simulation = Simulation({"x": torch.zeros(4, 3)}, MemAdam(Identity()), 2)
    ones = [{"x": torch.ones(4, 3)}] * 2
    outs = [simulation.exchange(ones, {"x": size})["x"].abs().max().item() for size in (0.1, 0.1, 0.0, 0.1)]
    assert outs[2] == 0.0
    assert outs[3] == pytest.approx(outs[1])

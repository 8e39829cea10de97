"""DGC against the paper's algorithms 4 and 5, and what is left of it without compression."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.paper import transcriptions as paper
from tests.paper.runs import (
    STEPS,
    WORKERS,
    D,
    Quadratics,
    Vector,
    assert_close,
    assert_moved,
    cosine,
    decay,
    halving,
    ours,
    tolerance,
)

from thinwire import DGC, Compressor, Identity, MemSGD, RandK, ScaledSign, Simulation, TopK

K = 3


@pytest.mark.parametrize("step", [halving, cosine, decay], ids=["halving", "cosine", "step decay"])
@pytest.mark.parametrize("masking", [False, True], ids=["", "masking"])
@pytest.mark.parametrize("nesterov", [False, True], ids=["heavy ball", "nesterov"])
def test_dgc_under_any_schedule(nesterov: bool, masking: bool, step: Callable[[int], float]) -> None:
    problem = Quadratics()
    theirs = paper.dgc(
        problem.gradient, problem.start, WORKERS, paper.top(K), step, STEPS, 0.5, nesterov=nesterov, masking=masking
    )
    mine = ours(
        DGC(TopK(count=K), momentum=0.5, nesterov=nesterov, masking=masking), problem.gradient, problem.start, step
    )
    assert_moved(mine)
    if step is halving:  # powers of two: products by a half and by the step are exact
        assert np.array_equal(mine, theirs)
    assert_close(mine, theirs)


def test_clipping_and_decay() -> None:
    problem, clip = Quadratics(), 5.0
    norms = [float(np.linalg.norm(problem.gradient(i, problem.start, 0))) for i in range(WORKERS)]
    assert min(norms) > clip
    options = {"nesterov": False, "masking": True, "clip": clip, "decay": 0.75}
    theirs = paper.dgc(problem.gradient, problem.start, WORKERS, paper.top(K), cosine, STEPS, 0.9, **options)
    mine = ours(DGC(TopK(count=K), momentum=0.9, **options), problem.gradient, problem.start, cosine)
    assert_moved(mine)
    assert_close(mine, theirs)


@pytest.mark.parametrize("compressor", [TopK(count=K), RandK(count=5), ScaledSign()], ids=str)
def test_without_momentum_it_is_mem_sgd_bit_for_bit(compressor: Compressor) -> None:
    problem = Quadratics()
    mine = ours(DGC(compressor, momentum=0.0), problem.gradient, problem.start, cosine)
    assert_moved(mine)
    assert np.array_equal(mine, ours(MemSGD(compressor), problem.gradient, problem.start, cosine))


@pytest.mark.parametrize("nesterov", [False, True], ids=["heavy ball", "nesterov"])
def test_without_compression_and_masking_it_is_torchs_momentum(nesterov: bool) -> None:
    """With the learning rate moving: torch's momentum is in units of gradients, and so is u."""
    problem = Quadratics(workers=1)
    x = torch.nn.Parameter(torch.from_numpy(problem.start.copy()))
    optimizer = torch.optim.SGD([x], lr=1.0, momentum=0.5, nesterov=nesterov)
    theirs: list[Vector] = [problem.start]
    for t in range(STEPS):
        x.grad = torch.from_numpy(problem.gradient(0, theirs[-1], t))
        optimizer.param_groups[0]["lr"] = cosine(t)
        optimizer.step()
        theirs.append(x.detach().numpy().copy())
    rule = DGC(Identity(), momentum=0.5, nesterov=nesterov, masking=False)
    mine = ours(rule, problem.gradient, problem.start, cosine, workers=1)
    assert_moved(mine)
    assert float(np.abs(mine - np.array(theirs)).max()) <= tolerance(mine)


def test_masking_stops_the_momentum_of_what_was_sent_and_of_nothing_else() -> None:
    simulation = Simulation({"x": torch.zeros(D)}, DGC(TopK(count=K)), 1)
    gradient = torch.arange(1.0, D + 1)
    simulation.exchange([{"x": gradient}], {"x": 0.1})
    velocity = simulation.channels[0].worker.view("x", "velocity")
    assert velocity[-K:].tolist() == [0.0] * K
    assert torch.equal(velocity[:-K], gradient[:-K])

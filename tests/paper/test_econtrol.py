"""EControl against the paper's algorithm 2."""

from __future__ import annotations

import numpy as np
import pytest
from tests.paper import transcriptions as paper
from tests.paper.runs import STEPS, WORKERS, Quadratics, assert_close, assert_moved, cosine, ours

from thinwire import EControl, TopK


@pytest.mark.parametrize("start", ["gradient", "compressed", "zero"])
@pytest.mark.parametrize("eta", [0.25, 0.1])
def test_econtrol_from_each_start(eta: float, start: str) -> None:
    """The paper's h_0 = 0 is our compressed start; our zero start stays silent in the first round, and remembers it."""
    problem = Quadratics(noise=0.5)

    def compress(v: np.ndarray, t: int, i: int) -> np.ndarray:
        return np.zeros_like(v) if t == 0 and start == "zero" else paper.top(3)(v, t, i)

    theirs = paper.econtrol(problem.gradient, problem.start, WORKERS, compress, cosine, STEPS, eta, start)
    mine = ours(EControl(TopK(count=3), eta=eta, start=start), problem.gradient, problem.start, cosine)
    assert_moved(mine)
    assert_close(mine, theirs)

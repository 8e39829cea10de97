"""ARC-Top-K against a transcription with a matrix V: what the rows of a sketch agree on, under a memory and EF21-M."""

from __future__ import annotations

import numpy as np
import pytest
from tests.paper import transcriptions as paper
from tests.paper.runs import (
    STEPS,
    WORKERS,
    Quadratics,
    Vector,
    assert_close,
    assert_moved,
    constant,
    cosine,
    ours,
    states,
    tolerance,
)

from thinwire import EF21SGDM, ArcTopK, Key, MemSGD, TopK
from thinwire.ops import random_bits

SHAPES = [(4, 2), (4, 4), (7, 1), (15, 3)]
"""Columns and directions for 30 numbers: the last row is whole, or shorter."""


def projection(columns: int, directions: int) -> paper.Project:
    """thinwire's V, taken as given data: random signs, one block of them in each column."""
    blocks = np.kron(np.eye(directions), np.ones((columns // directions, 1)))

    def project(t: int) -> Vector:
        signs = random_bits(Key(seed=5, step=t).shared().at(0).number, columns) < 0
        return blocks * np.where(signs.numpy(), 1.0, -1.0)[:, None]

    return project


@pytest.mark.parametrize(("columns", "directions"), SHAPES)
def test_the_memory_keeps_what_the_agreed_rows_leave(columns: int, directions: int) -> None:
    problem, compressor = Quadratics(), ArcTopK(0.3, columns, directions)
    k = max(1, int(0.3 * -(-30 // columns)))
    project = projection(columns, directions)
    theirs, kept = paper.arc_mem_sgd(problem.gradient, problem.start, WORKERS, project, k, cosine, STEPS)
    memories: list[list[Vector]] = []
    mine = ours(
        MemSGD(compressor),
        problem.gradient,
        problem.start,
        cosine,
        watch=lambda simulation: memories.append(states(simulation, "error")),
    )
    assert_moved(mine)
    assert_close(mine, theirs)
    assert float(np.abs(cosine(STEPS - 1) * np.array(memories[-1]) - kept).max()) <= tolerance(theirs)


@pytest.mark.parametrize(("columns", "directions"), SHAPES)
def test_differences_of_a_momentum(columns: int, directions: int) -> None:
    problem = Quadratics()
    k = max(1, int(0.3 * -(-30 // columns)))
    project = projection(columns, directions)
    theirs = paper.arc_ef21m(problem.gradient, problem.start, WORKERS, project, k, constant(0.1), STEPS, 0.3)
    mine = ours(EF21SGDM(ArcTopK(0.3, columns, directions), eta=0.3), problem.gradient, problem.start, constant(0.1))
    assert_moved(mine)
    assert_close(mine, theirs)


def test_one_worker_with_rows_of_one_number_has_top_k() -> None:
    problem = Quadratics(workers=1)
    found = [
        ours(MemSGD(compressor), problem.gradient, problem.start, cosine, workers=1)
        for compressor in (ArcTopK(0.1, columns=1, directions=1), TopK(0.1))
    ]
    assert np.array_equal(*found)


def test_the_matrix_has_orthogonal_columns_and_scatters_evenly() -> None:
    """V'V = (c/r) I always, and E VV' = I: what the claimed contraction rests on."""
    project = projection(8, 2)
    drawn = [project(t) for t in range(2000)]
    assert all(np.array_equal(V.T @ V, 4 * np.eye(2)) for V in drawn)
    mean = sum(V @ V.T for V in drawn) / len(drawn)
    assert float(np.abs(mean - np.eye(8)).max()) < 6 / np.sqrt(len(drawn))

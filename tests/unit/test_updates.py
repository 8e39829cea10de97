"""Steps of the outer loop."""

from __future__ import annotations

import math

import pytest
import torch

from thinwire.errors import ConfigError
from thinwire.updates import L1, Box, Descent, Muon, Normalised, Proximal

EPS = torch.finfo(torch.float64).eps


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_descent_moves_what_has_a_gradient() -> None:
    x = {"a": vector(1, 2), "b": vector(3)}
    Descent()(x, {"a": vector(1, -1)}, 0.5)
    assert x["a"].tolist() == [0.5, 2.5]
    assert x["b"].tolist() == [3]


def test_parameters_that_require_gradients_can_be_moved() -> None:
    x = torch.nn.Parameter(torch.ones(2, 2))
    for update in (Descent(), Normalised(), Proximal(L1(0.1)), Muon()):
        update({"x": x}, {"x": torch.eye(2)}, 0.1)
    assert x.requires_grad
    assert not torch.equal(x, torch.ones(2, 2))


def test_a_normalised_step_has_one_length_over_all_parameters() -> None:
    x = {"a": vector(0, 0), "b": vector(0)}
    Normalised()(x, {"a": vector(3e9, 0), "b": vector(4e9)}, 0.5)
    assert x["a"].tolist() == pytest.approx([-0.3, 0], abs=EPS)
    assert x["b"].tolist() == pytest.approx([-0.4], abs=EPS)
    Normalised()(x, {"a": vector(0, 0)}, 0.5)
    assert x["a"].tolist() == pytest.approx([-0.3, 0], abs=EPS)


def test_soft_threshold_and_projection() -> None:
    x = {"a": vector(3, -3, 0.1, -0.1)}
    Proximal(L1(2.0))(x, {"a": vector(0, 0, 0, 0)}, 0.5)
    assert x["a"].tolist() == [2, -2, 0, 0]
    assert L1(2.0).value(x) == 8
    assert Box(-1, 1).value(x) == math.inf
    Proximal(Box(-1, 1))(x, {"a": vector(0, 0, 0, 0)}, 0.5)
    assert x["a"].tolist() == [1, -1, 0, 0]
    assert Box(-1, 1).value(x) == 0


def test_the_gradient_mapping_is_zero_at_the_minimum_of_a_lasso() -> None:
    """min (x - 3)^2 / 2 + 2 |x| is at x = 1, where the gradient is -2."""
    assert Proximal(L1(2.0)).mapping(vector(1), vector(-2), 0.25).tolist() == [0]
    assert Proximal(L1(2.0)).mapping(vector(2), vector(-1), 0.25).tolist() == [1]


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (5, 2, 3)])
def test_muons_step_is_orthogonal(shape: tuple[int, ...]) -> None:
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = {"w": torch.zeros(shape, dtype=torch.float64)}
    Muon()(x, {"w": gradient}, 1.0)
    step = x["w"].flatten(1)
    assert torch.linalg.svdvals(step).tolist() == pytest.approx([1.0] * min(step.shape), abs=32 * EPS)
    nuclear = float(torch.linalg.svdvals(gradient.flatten(1)).sum())
    assert float((-step * gradient.flatten(1)).sum()) == pytest.approx(nuclear, rel=32 * EPS)


def test_muon_leaves_directions_alone_of_which_nothing_is_known() -> None:
    x = {"w": torch.zeros(2, 2), "b": torch.zeros(3), "n": torch.zeros(0, 3)}
    gradients = {"w": torch.tensor([[2.0, 0], [0, 0]]), "b": torch.tensor([5.0, -1, 0]), "n": torch.zeros(0, 3)}
    Muon()(x, gradients, 0.5)
    assert x["w"].tolist() == [[-0.5, 0], [0, 0]]
    assert x["b"].tolist() == [-0.5, 0.5, 0]
    Muon()(x, {"w": torch.zeros(2, 2)}, 0.5)
    assert x["w"].tolist() == [[-0.5, 0], [0, 0]]


def test_bounds() -> None:
    with pytest.raises(ConfigError, match="l1 weight must be at least 0, got -1"):
        L1(-1)
    with pytest.raises(ConfigError, match="box needs low <= high, got 1 and 0"):
        Box(1, 0)

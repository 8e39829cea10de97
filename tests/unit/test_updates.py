"""Steps of the outer loop."""

from __future__ import annotations

import math

import pytest
import torch

from thinwire.errors import ConfigError
from thinwire.updates import L1, Box, Descent, Muon, NewtonSchulz, Normalised, Proximal, Sign

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


@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (5, 2, 3), (8, 8)])
def test_newton_schulz_comes_near_the_orthogonal_matrix(shape: tuple[int, ...]) -> None:
    """Its singular values lie where its polynomial brings them, and it turns the same way as Muon's exact step."""
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    near, exact = {"w": torch.zeros_like(gradient)}, {"w": torch.zeros_like(gradient)}
    matrix = gradient.flatten(1)
    NewtonSchulz()(near, {"w": gradient}, 1.0)
    Muon()(exact, {"w": gradient}, 1.0)
    step = near["w"].flatten(1) / (0.2 * max(matrix.shape) ** 0.5)
    found = torch.linalg.svdvals(step)
    x = torch.linalg.svdvals(matrix) / matrix.norm()
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    assert found.sort().values.tolist() == pytest.approx(x.sort().values.tolist(), abs=1024 * EPS)
    assert 0.65 < found.min() <= found.max() < 1.25
    assert torch.nn.functional.cosine_similarity(step.flatten(), exact["w"].flatten(), dim=0) > 0.97


@pytest.mark.parametrize("update", [NewtonSchulz(), Sign()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_of_one_length_does_not_see_the_size_of_a_gradient(
    update: NewtonSchulz | Sign, dtype: torch.dtype
) -> None:
    gradients = {"w": torch.randn(6, 4, dtype=dtype), "b": torch.tensor([5.0, -1, 0], dtype=dtype)}
    steps = []
    for size in (1.0, 2.0**-90, 2.0**90):
        x = {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
        update(x, {name: gradient * size for name, gradient in gradients.items()}, 0.5)
        steps.append(x)
    assert steps[0]["w"].abs().max() > 0
    assert all(torch.equal(step[name], steps[0][name]) for step in steps for name in gradients)
    zero = {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
    update(zero, {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}, 0.5)
    assert not any(tensor.any() for tensor in zero.values())


def test_bounds() -> None:
    with pytest.raises(ConfigError, match="newtonschulz needs iterations of at least 1, got 0"):
        NewtonSchulz(0)
    with pytest.raises(ConfigError, match="l1 weight must be at least 0, got -1"):
        L1(-1)
    with pytest.raises(ConfigError, match="box needs low <= high, got 1 and 0"):
        Box(1, 0)

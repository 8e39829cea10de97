"""Step sizes read from an optimizer."""

from __future__ import annotations

import pytest
import torch

from thinwire.engines.step_sizes import StepSizes
from thinwire.errors import AttachError


def parameters(*names: str) -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter(torch.zeros(2, 3)) for name in names}


def test_each_parameter_has_the_rate_of_its_group_as_it_stands_now() -> None:
    mine = parameters("a", "b", "c")
    optimizer = torch.optim.SGD([{"params": [mine["c"]], "lr": 0.5}, {"params": [mine["a"], mine["b"]]}], lr=0.1)
    sizes = StepSizes(mine, optimizer)
    assert sizes.now() == {"a": 0.1, "b": 0.1, "c": 0.5}
    optimizer.param_groups[1]["lr"] = 0.01
    assert sizes.now() == {"a": 0.01, "b": 0.01, "c": 0.5}


def test_a_rate_kept_in_a_tensor_is_read() -> None:
    mine = parameters("a")
    optimizer = torch.optim.SGD(mine.values(), lr=torch.tensor(0.25))
    assert StepSizes(mine, optimizer).now() == {"a": 0.25}


def test_a_scheduler_moves_the_step_sizes() -> None:
    mine = parameters("a")
    optimizer = torch.optim.SGD(mine.values(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    sizes = StepSizes(mine, optimizer)
    optimizer.step()
    scheduler.step()
    assert sizes.now()["a"] == pytest.approx(0.1)


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(AttachError, match=r"does not hold 1 of the model's 1 parameters, .* of this very model"):
        StepSizes(parameters("a"), torch.optim.SGD(parameters("a").values(), lr=0.1))


def test_a_parameter_that_the_optimizer_lacks_is_named() -> None:
    mine = parameters("a", "b")
    with pytest.raises(AttachError, match="does not hold 1 of the model's 2 parameters, such as 'b'"):
        StepSizes(mine, torch.optim.SGD([mine["a"]], lr=0.1))


def test_an_optimizer_may_hold_more_than_the_model() -> None:
    """One optimizer for two models, or for a model and its loss, is nothing unusual."""
    mine, other = parameters("a"), parameters("z")
    assert StepSizes(mine, torch.optim.SGD([*mine.values(), *other.values()], lr=0.1)).now() == {"a": 0.1}


def test_frozen_parameters_may_stay_in_the_optimizer() -> None:
    mine, frozen = parameters("a"), torch.nn.Parameter(torch.zeros(1), requires_grad=False)
    optimizer = torch.optim.SGD([mine["a"], frozen], lr=0.1)
    assert StepSizes(mine, optimizer).now() == {"a": 0.1}

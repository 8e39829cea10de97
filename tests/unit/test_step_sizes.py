"""Step sizes read from an optimizer."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from tests.methods import RULE_ENTRIES, RuleEntry

from thinwire import DGC, EF21, QSGD, VGC, Hybrid, MemAdam, Plain, Route, Simulation, TopK
from thinwire.engines.step_sizes import StepSizes
from thinwire.errors import AttachError, OptimizerWarning
from thinwire.spec import rule_from

ADAPTIVE = ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "Adafactor", "Muon", "Rprop")


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


class Lion(torch.optim.Optimizer):
    """An optimizer from elsewhere, with moments and no eps."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1, "betas": (0.9, 0.99)})


@pytest.mark.parametrize(
    "kind",
    [getattr(torch.optim, name) for name in ADAPTIVE if hasattr(torch.optim, name)] + [Lion],
    ids=lambda kind: kind.__name__,
)
def test_adaptive_optimizers_are_warned_of_with_the_remedy(kind: type[torch.optim.Optimizer]) -> None:
    mine = parameters("w")
    told = rf"ef21\(topk\(0.01\)\) .*'w' is adaptive, {kind.__name__}: .*memadam\(.*torch.optim.SGD .*attach_outer"
    with pytest.warns(OptimizerWarning, match=told) as caught:
        Simulation(mine, "ef21(topk(0.01))", 2, optimizer=kind(mine.values()))  # type: ignore[call-arg]
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("entry", RULE_ENTRIES, ids=lambda entry: entry.kind.name)
def test_rules_that_hand_over_late_are_warned_of_and_no_others(entry: RuleEntry) -> None:
    mine, rule = parameters("w"), rule_from(entry.golden[0])
    optimizer = torch.optim.AdamW(mine.values())
    if entry.kind in (DGC, MemAdam):
        with pytest.raises(AttachError, match=r"'w' from step to step too: .* Use torch.optim.SGD with momentum=0"):
            Simulation(mine, rule, 3, optimizer=optimizer)
    elif entry.kind in (Plain, VGC, Hybrid):
        Simulation(mine, rule, 3, optimizer=optimizer)  # a warning here is an error
    else:
        with pytest.warns(OptimizerWarning, match="memadam"):
            Simulation(mine, rule, 3, optimizer=optimizer)


def test_linear_optimizers_and_parameters_that_are_sent_at_once_are_not_warned_of() -> None:
    mine = parameters("w", "b")
    Simulation(mine, "ef21(topk(0.1))", 2, optimizer=torch.optim.SGD(mine.values(), lr=0.1, momentum=0.9))
    route = Route({"w": QSGD(15), "b": EF21(TopK(0.1))}, min_numel=0)
    groups = [{"params": [mine["w"]]}, {"params": [mine["b"]]}]
    with pytest.warns(OptimizerWarning, match=r"ef21.* 'b' is adaptive"):
        Simulation(mine, route, 2, optimizer=torch.optim.AdamW(groups))

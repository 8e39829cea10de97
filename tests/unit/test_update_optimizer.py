"""Updates as a torch optimizer."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor

from thinwire import Simulation, simulate
from thinwire.errors import ConfigError, OptimizerWarning, StateError
from thinwire.updates import L1, Descent, NewtonSchulz, Normalised, Proximal, Sign, Update, UpdateOptimizer

BIAS = torch.tensor([1.0, -2.0, 0.5])
STEPS, SIZE, WORKERS = 12, 0.05, 2


def parameters() -> dict[str, torch.nn.Parameter]:
    torch.manual_seed(0)
    return {"w": torch.nn.Parameter(torch.randn(3, 3)), "b": torch.nn.Parameter(torch.randn(3))}


def with_gradients(mine: dict[str, torch.nn.Parameter]) -> None:
    for parameter in mine.values():
        parameter.grad = torch.sin(3 * parameter.detach())


class Rotated:
    """Each worker wants another point; its gradient is a function of where it is."""

    workers = WORKERS

    def start(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in parameters().items()}

    def gradient(self, worker: int, x: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        return {name: torch.sin(tensor.detach() + worker + 0.1 * step) for name, tensor in x.items()}

    def loss(self, x: dict[str, Tensor]) -> float:
        return 0.0


@pytest.mark.parametrize("update", [NewtonSchulz(), Sign(), Normalised(), Proximal(L1(0.1)), Descent()], ids=str)
def test_simulate_by_an_update_is_a_simulation_with_its_optimizer_bit_for_bit(update: Update) -> None:
    problem, rule = Rotated(), "ef21sgdm(topk(0.3))"
    run = simulate(problem, rule, steps=STEPS, step_size=SIZE, update=update)
    mine = parameters()
    simulation = Simulation(mine, rule, WORKERS, optimizer=UpdateOptimizer(mine.values(), update, SIZE))
    for step in range(STEPS):
        simulation.step([problem.gradient(worker, dict(mine), step) for worker in range(WORKERS)])
    assert all(torch.equal(run.x[name], parameter) for name, parameter in mine.items())
    assert not torch.equal(run.x["w"], problem.start()["w"])


def test_each_group_steps_by_its_own_update_at_its_own_rate_after_its_decay() -> None:
    mine = parameters()
    before = {name: parameter.detach().clone() for name, parameter in mine.items()}
    groups = [{"params": [mine["w"]]}, {"params": [mine["b"]], "update": Sign(), "lr": 0.5, "weight_decay": 0.0}]
    optimizer = UpdateOptimizer(groups, Descent(), 0.25, weight_decay=0.5)
    mine["w"].grad, mine["b"].grad = torch.ones(3, 3), BIAS.clone()
    optimizer.step()
    assert torch.equal(mine["w"], before["w"] * (1 - 0.25 * 0.5) - 0.25)
    assert torch.equal(mine["b"], before["b"] - 0.5 * BIAS.sign())
    mine["w"].grad = None
    still = mine["w"].detach().clone()
    optimizer.step()
    assert torch.equal(mine["w"], still)  # what has no gradient does not decay either


def test_a_closure_is_called_and_a_rate_may_be_a_tensor() -> None:
    mine = parameters()
    optimizer = UpdateOptimizer(mine.values(), Sign(), torch.tensor(0.5))

    def closure() -> float:
        loss = mine["b"].sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    before = mine["b"].detach().clone()
    assert optimizer.step(closure) == before.sum().item()
    assert torch.equal(mine["b"], before - 0.5)


def stepped(optimizer: UpdateOptimizer, schedule: Any, mine: dict[str, torch.nn.Parameter], steps: int) -> None:
    for _ in range(steps):
        with_gradients(mine)
        optimizer.step()
        schedule.step()


def built(mine: dict[str, torch.nn.Parameter]) -> tuple[UpdateOptimizer, Any]:
    groups = [{"params": [mine["w"]]}, {"params": [mine["b"]], "update": Sign()}]
    optimizer = UpdateOptimizer(groups, NewtonSchulz(), 0.1, weight_decay=0.1)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def test_a_run_goes_on_from_a_state_bit_for_bit_with_its_schedule() -> None:
    """Saved and loaded by torch with weights only."""
    whole = parameters()
    stepped(*built(whole), whole, 7)
    first = parameters()
    optimizer, schedule = built(first)
    stepped(optimizer, schedule, first, 3)
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), schedule.state_dict()], file)
    file.seek(0)
    again, later = built(first)
    saved = torch.load(file, weights_only=True)
    again.load_state_dict(saved[0])
    later.load_state_dict(saved[1])
    assert [group["lr"] for group in again.param_groups] == [0.05, 0.05]
    stepped(again, later, first, 4)
    assert all(torch.equal(first[name], whole[name]) for name in whole)


def test_a_state_of_other_updates_is_refused_and_changes_nothing() -> None:
    mine = parameters()
    optimizer, _ = built(mine)
    other = UpdateOptimizer([{"params": [mine["w"]]}, {"params": [mine["b"]]}], Descent(), 0.3)
    with pytest.raises(StateError, match=r"updates \['descent\(\)', 'descent\(\)'\], this one has \['newtonschulz"):
        optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1
    with pytest.raises(StateError, match=r"updates \[None\], this one has"):
        optimizer.load_state_dict(torch.optim.SGD(mine.values(), lr=0.1).state_dict())


def test_a_copy_steps_as_its_original() -> None:
    mine = parameters()
    optimizer, _ = built(mine)
    theirs = copy.deepcopy((optimizer, mine))
    for own, points in ((optimizer, mine), theirs):
        with_gradients(points)
        own.step()
    assert all(torch.equal(mine[name], theirs[1][name]) for name in mine)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"update": "muon()"}, r"takes one such as NewtonSchulz\(\), got 'muon\(\)'"),
        ({"update": NewtonSchulz}, "takes one such as NewtonSchulz"),
        ({"lr": -0.1}, "lr must be a number of at least 0, got -0.1"),
        ({"lr": float("nan")}, "lr must be a number of at least 0, got nan"),
        ({"lr": "fast"}, "lr must be a number of at least 0, got 'fast'"),
        ({"lr": torch.ones(2)}, "lr must be a number of at least 0, got tensor"),
        ({"weight_decay": float("inf")}, "weight_decay must be a number of at least 0, got inf"),
    ],
)
def test_bad_settings_are_refused_of_the_optimizer_and_of_a_group(settings: dict[str, Any], words: str) -> None:
    good = {"update": Sign(), "lr": 0.1}
    with pytest.raises(ConfigError, match=words):
        UpdateOptimizer(parameters().values(), **{**good, **settings})
    with pytest.raises(ConfigError, match=words):
        UpdateOptimizer([{"params": parameters().values(), **settings}], **good)  # type: ignore[arg-type]


def test_complex_parameters_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"moves real floating-point parameters, got one of torch\.complex64"):
        UpdateOptimizer([torch.zeros(2, dtype=torch.complex64)], Sign(), 0.1)


@pytest.mark.parametrize("rule", ["memsgd(topk(0.1))", "dgc(topk(0.1))", "memadam(topk(0.1))"])
def test_a_memory_behind_a_step_of_one_length_is_warned_of(rule: str) -> None:
    mine = parameters()
    with pytest.warns(OptimizerWarning, match=r"update of 'w', newtonschulz\(\), .*Use ef21sgdm") as caught:
        Simulation(mine, rule, 2, optimizer=built(mine)[0])
    assert [warning.filename for warning in caught] == [__file__]


def test_estimates_and_steps_that_are_proportional_are_not_warned_of() -> None:
    mine = parameters()
    for rule in ("ef21sgdm(topk(0.1))", "ef21(topk(0.1))", "plain(qsgd(15))"):
        Simulation(mine, rule, 2, optimizer=built(mine)[0])
    for update in (Descent(), Proximal(L1(0.1))):
        Simulation(mine, "memsgd(topk(0.1))", 2, optimizer=UpdateOptimizer(mine.values(), update, 0.1))

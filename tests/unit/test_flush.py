"""What was not sent is handed over at last: nothing that was given is lost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire import Simulation
from thinwire.errors import ConfigError

RULES = ["memsgd(topk(0.1))", "memsgd(sign())", "memsgd(randk(0.2))", "econtrol(topk(0.2))", "vgc(1.0)", "hybrid(0.05)"]
WORKERS, NUMBERS = 3, 40


def gradient(step: int, worker: int) -> torch.Tensor:
    return torch.randn(NUMBERS, generator=torch.Generator().manual_seed(97 * step + worker), dtype=torch.float64)


def run(rule: str, rates: list[float], maximize: bool = False) -> tuple[Simulation, torch.Tensor]:
    """A run under plain SGD, flushed, and what x would be had every worker sent everything at once."""
    x = torch.nn.Parameter(torch.zeros(NUMBERS, dtype=torch.float64))
    optimizer = torch.optim.SGD([x], lr=1.0, maximize=maximize)
    simulation = Simulation({"x": x}, rule, WORKERS, optimizer=optimizer)
    whole = torch.zeros(NUMBERS, dtype=torch.float64)
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        own = [gradient(step, worker) for worker in range(WORKERS)]
        moments = [{"x": g.square() / 2} for g in own] if rule.startswith(("vgc", "hybrid")) else None
        simulation.step([{"x": g} for g in own], moments)
        whole -= rate * torch.stack(own).mean(0)
    simulation.flush()
    return simulation, -whole if maximize else whole


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "vgc(1.0)"])
@pytest.mark.parametrize("maximize", [False, True])
def test_what_is_applied_and_flushed_is_all_that_was_given(rule: str, maximize: bool) -> None:
    """x_T = x_0 - sum_t s_t mean_i g_i; VGC is apart: what its 4 bits round is not fed back."""
    rates = [0.1] * 12
    simulation, whole = run(rule, rates, maximize)
    x = simulation.parameters["x"].detach()
    assert float((x - whole).abs().max()) <= 64 * torch.finfo(torch.float64).eps * len(rates) * float(whole.abs().max())
    assert simulation.flush() == 0.0


@settings(max_examples=30)
@given(rates=st.lists(st.sampled_from([0.0, 1e-6, 0.01, 0.1, 1.0]), min_size=1, max_size=8))
def test_mem_sgd_conserves_updates_under_any_schedule(rates: list[float]) -> None:
    """Rates of zero apply nothing and owe nothing: that gradient was given at a step size of zero."""
    simulation, whole = run("memsgd(topk(0.1))", rates)
    bound = 1e3 * torch.finfo(torch.float64).eps * len(rates) * max(float(whole.abs().max()), 1e-12)
    assert float((simulation.parameters["x"].detach() - whole).abs().max()) <= bound


@pytest.mark.parametrize("rule", ["memsgd(topk(0.1))", "dgc(topk(0.1), masking=False)"])
def test_after_a_flush_no_gradient_moves_nothing(rule: str) -> None:
    """Momentum that goes on would move the model once more for what was handed over."""
    simulation, _ = run(rule, [0.1] * 3)
    before = simulation.parameters["x"].detach().clone()
    simulation.step([{"x": torch.zeros(NUMBERS, dtype=torch.float64)}] * WORKERS)
    assert torch.equal(simulation.parameters["x"].detach(), before)


def test_a_rule_of_differences_owes_nothing() -> None:
    simulation, _ = run("ef21(topk(0.1))", [0.1] * 3)
    assert simulation.flush() == 0.0


def test_flush_counts_its_bytes_and_needs_step_sizes() -> None:
    simulation, _ = run("memsgd(topk(0.1))", [0.1] * 3)
    before = simulation.ledger.summary()["sent_bytes"]
    simulation.flush()
    assert simulation.ledger.summary()["sent_bytes"] - before >= 2 * 8 * NUMBERS  # dense, to two others
    without = Simulation({"x": torch.zeros(4)}, "econtrol(topk(0.5))", 1)
    without.exchange([{"x": torch.randn(4)}])
    with pytest.raises(ConfigError, match="needs its step size: pass the optimizer"):
        without.flush()

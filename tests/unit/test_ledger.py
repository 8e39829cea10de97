"""What was really sent, and how much is still unsaid."""

from __future__ import annotations

import math

import pytest
import torch

from thinwire import EF21, EF21P, QSGD, HardThreshold, Identity, Key, Layout, MemSGD, Plain, Simulation, TopK
from thinwire.errors import NonFiniteGradient
from thinwire.exchange import Traffic
from thinwire.ledger import Ledger
from thinwire.outgoing import Norms


def norms(gradient: float, residual: float | None) -> Norms:
    return Norms(torch.tensor(gradient), None if residual is None else torch.tensor(residual))


def test_totals_and_last_step() -> None:
    ledger = Ledger(4)
    for size in (100, 300):
        ledger.add(Traffic(size, 3 * size, 3 * size), 50, {})
        ledger.add(Traffic(10, 30, 30), 5, {})
        ledger.finish(skipped=False)
    total, last = ledger.summary(), ledger.last_step()
    assert (total["steps"], total["message_bytes"], total["sent_bytes"], total["received_bytes"]) == (
        2,
        420,
        1260,
        1260,
    )
    assert (last["step"], last["message_bytes"], last["sent_bytes"]) == (1, 310, 930)
    assert total["dense_fp32_bytes"] == 2 * 3 * 4 * 110 // 4
    assert total["ratio_fp32"] == total["dense_fp32_bytes"] / 1260
    assert total["ratio_bf16"] == total["dense_bf16_bytes"] / 1260
    assert last["dense_bf16_bytes"] == 2 * 3 * 2 * 55 // 4


def test_what_a_server_tells_is_counted_apart() -> None:
    """The model's change travels as a worker's message does: one number of seven in both."""
    x = torch.nn.Parameter(torch.zeros(7))
    rule = EF21P(EF21(TopK(count=1), start="compressed"), TopK(count=1))
    simulation = Simulation({"x": x}, rule, 2, optimizer=torch.optim.SGD([x], lr=1.0))
    for _ in range(3):
        simulation.step([{"x": torch.arange(7.0)}] * 2)
    total, last = simulation.ledger.summary(), simulation.ledger.last_step()
    assert total["broadcast_bytes"] == total["message_bytes"] == 3 * last["broadcast_bytes"] > 0


def test_a_skipped_step_counts_its_bytes() -> None:
    ledger = Ledger(2)
    ledger.add(Traffic(10, 10, 10), 5, {})
    ledger.finish(skipped=True)
    assert ledger.summary()["skipped_steps"] == 1
    assert ledger.summary()["sent_bytes"] == 10


def test_before_anything_was_sent_there_is_no_ratio() -> None:
    summary = Ledger(2).summary()
    assert summary["steps"] == summary["sent_bytes"] == 0
    assert math.isnan(summary["ratio_fp32"])
    assert all(isinstance(value, int | float) for value in summary.values())


def test_residual_ratio_is_that_of_the_norms_over_all_parameters() -> None:
    ledger = Ledger(2)
    ledger.add(Traffic(0, 0, 0), 1, {"a": norms(9, 16), "b": norms(16, 9), "plain": norms(100, None)})
    ledger.finish(skipped=False)
    assert ledger.summary()["residual_ratio"] == 1.0
    assert ledger.per_parameter()["a"] == pytest.approx(4 / 3)
    assert ledger.per_parameter()["b"] == pytest.approx(3 / 4)


@pytest.mark.parametrize(("gradient", "residual", "ratio"), [(0, 0, 0.0), (0, 1, math.inf)])
def test_a_vanished_gradient(gradient: float, residual: float, ratio: float) -> None:
    ledger = Ledger(2)
    ledger.add(Traffic(0, 0, 0), 1, {"a": norms(gradient, residual)})
    assert ledger.summary()["residual_ratio"] == ratio


@pytest.mark.parametrize(("every", "due"), [(0, []), (1, [0, 1, 2, 3, 4, 5]), (3, [0, 3])])
def test_norms_are_due_at_every_nth_step(every: int, due: list[int]) -> None:
    assert [step for step in range(6) if Ledger(2, every=every).due(step)] == due


def test_a_simulation_books_its_true_message_lengths() -> None:
    """Dense float32 with 3 workers: 4 bytes a number, and envelope (16), length (8) and tag (4)."""
    simulation = Simulation({"x": torch.zeros(100)}, Plain(Identity()), 3)
    for _ in range(2):
        simulation.exchange([{"x": torch.ones(100)}] * 3)
    summary = simulation.ledger.summary()
    assert summary["message_bytes"] == 2 * (400 + 28)
    assert summary["sent_bytes"] == summary["received_bytes"] == 2 * 2 * 428
    assert summary["dense_fp32_bytes"] == 2 * 2 * 800 // 3


def test_both_ratios_of_a_message_are_means_over_the_workers() -> None:
    """Three workers send 8, 2 and 2 of 8 numbers: the mean is 4, and no worker's own message stands for all."""
    simulation = Simulation({"x": torch.zeros(8)}, Plain(HardThreshold(1.0)), 3)
    few = torch.tensor([1.0, 1.0] + [0.0] * 6)
    simulation.exchange([{"x": torch.ones(8)}, {"x": few}, {"x": few}])
    summary = simulation.ledger.summary()
    lengths = [Simulation({"x": few}, Plain(HardThreshold(1.0)), 1) for _ in range(2)]
    for alone, given in zip(lengths, (torch.ones(8), few), strict=True):
        alone.exchange([{"x": given}])
    many, some = (alone.ledger.summary()["message_bytes"] for alone in lengths)
    assert summary["ratio_elements"] == 2
    assert summary["message_bytes"] == (many + 2 * some) / 3 < many
    assert summary["ratio_message"] == 4 * 8 / summary["message_bytes"]


def test_qsgd_counts_the_numbers_that_are_not_zero() -> None:
    """c = N over the non-zeros of the decoded message, as VGC's paper must have counted; the other worker has none."""
    x, rule = torch.randn(1000, generator=torch.Generator().manual_seed(0)), Plain(QSGD(3, 128))
    layout = Layout.of([("x", 0, (1000,))])
    payload = QSGD(3, 128)(x, layout, Key())
    assert payload.elements is not None
    sent = int(payload.elements)
    assert 0 < sent == int(payload.decode(layout, torch.float32).count_nonzero()) < 1000
    simulation = Simulation({"x": x}, rule, 2)
    simulation.exchange([{"x": x}, {"x": torch.zeros(1000)}])
    summary = simulation.ledger.summary()
    assert summary["ratio_elements"] == 1000 / (sent / 2)
    assert summary["ratio_effective"] == 2 * summary["ratio_elements"] / 4
    assert isinstance(summary["ratio_elements"], float)


def test_the_residual_is_what_the_memory_holds() -> None:
    simulation = Simulation({"x": torch.zeros(4)}, MemSGD(TopK(count=1)), 2, ledger_every=1)
    simulation.exchange([{"x": torch.tensor([3.0, 4, 0, 0])}, {"x": torch.ones(4)}], {"x": 1.0})
    assert simulation.ledger.per_parameter()["x"] == pytest.approx(3 / 5)
    simulation = Simulation({"x": torch.zeros(4)}, EF21(TopK(count=1)), 2, ledger_every=1)
    simulation.exchange([{"x": torch.tensor([3.0, 4, 0, 0])}, {"x": torch.ones(4)}])
    assert simulation.ledger.per_parameter()["x"] == 0.0


def test_a_refused_step_is_booked_as_skipped() -> None:
    simulation = Simulation({"x": torch.zeros(4)}, Plain(Identity()), 2)
    with pytest.raises(NonFiniteGradient):
        simulation.exchange([{"x": torch.full((4,), math.nan)}, {"x": torch.ones(4)}])
    summary = simulation.ledger.summary()
    assert (summary["steps"], summary["skipped_steps"]) == (1, 1)
    assert summary["sent_bytes"] > 0


# ------------------------------------------------------------------------------------------- learning rates that move


def ratios(rates: list[float]) -> list[float]:
    """residual_ratio of Mem-SGD, step by step, on gradients of one size."""
    x = torch.nn.Parameter(torch.zeros(400))
    optimizer = torch.optim.SGD([x], lr=1.0)
    simulation = Simulation({"x": x}, "memsgd(topk(0.02))", 2, optimizer=optimizer, ledger_every=1)
    found = []
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        generator = torch.Generator().manual_seed(step)
        simulation.step([{"x": torch.randn(400, generator=generator)} for _ in range(2)])
        found.append(simulation.ledger.summary()["residual_ratio"])
    return found


def test_the_residual_is_measured_in_units_of_updates_whatever_the_rate() -> None:
    """By the present rate, the end of a cosine looked forty times as bad as a constant rate. In its very last steps,
    where the rate falls faster than the memory can follow, it now looks better than it is."""
    steps = 400
    constant = ratios([0.1] * steps)
    cosine = ratios([0.05 * (1 + math.cos(math.pi * step / steps)) for step in range(steps)])
    assert max(constant[100:]) / min(constant[100:]) < 2
    assert all(c / 3 < ours < 3 * c for ours, c in zip(cosine[50:-20], constant[50:-20], strict=True))
    warmed_up = ratios([0.0, 0.01, 0.02, 0.05, *[0.1] * 40])
    assert max(warmed_up) < 3 * max(constant[:44])


def test_the_fall_of_the_rate_is_told_also_after_a_resume() -> None:
    ledger = Ledger(2)
    ledger.see([0.1, 0.2], [0.1, 0.2])
    ledger.see([0.1, 0.002, 0.5], [0.1, 0.2, 0.5])  # one more group
    assert ledger.rate_fall == 100
    resumed = Ledger(2)
    resumed.see([0.001], [0.1])
    assert resumed.rate_fall == pytest.approx(100)
    resumed.see([0.0], [0.1])
    assert resumed.rate_fall == 1.0
    assert "rate_fall" not in Ledger(2).summary()

"""Outer steps in one process: the algorithm, its laws, its checkpoints, and what other implementations get wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire
from thinwire import Outer, OuterSimulation
from thinwire.engines.outer.point import cut
from thinwire.errors import AttachError, ConfigError, NonFiniteUpdate, StateError

WORKERS = 3
Workers = list[dict[str, Tensor]]


def begun(dtype: torch.dtype = torch.float32, workers: int = WORKERS) -> Workers:
    generator = torch.Generator().manual_seed(0)
    shapes = {"w": (6, 5), "b": (5,), "v": (40,)}
    start = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    return [{name: tensor.clone() for name, tensor in start.items()} for _ in range(workers)]


def move_(workers: Workers, step: int) -> list[dict[str, Tensor]]:
    """What optimizers do, a random step for each worker; gives the moves."""
    moves = []
    for rank, worker in enumerate(workers):
        generator = torch.Generator().manual_seed(100 * step + rank)
        before = {name: tensor.clone() for name, tensor in worker.items()}
        for tensor in worker.values():
            tensor.sub_((0.1 * torch.randn(tensor.shape, generator=generator)).to(tensor.dtype))
        moves.append({name: before[name].double() - tensor.double() for name, tensor in worker.items()})
    return moves


def run(simulation: OuterSimulation, workers: Workers, steps: range) -> list[list[dict[str, Tensor]]]:
    made = []
    for step in steps:
        made.append(move_(workers, step))
        simulation.step()
    return made


def point(simulation: OuterSimulation) -> dict[str, Tensor]:
    points = simulation.replicas[0].points
    return {name: view for p in points for name, view in p.fragment.views(p.flats).items()}


def memory(simulation: OuterSimulation, rank: int, name: str) -> Tensor:
    channel = next(c for c in simulation.replicas[rank].channels if name in c.parameters)
    return channel.worker.view(name, "error")


def same(a: Workers, b: Workers) -> bool:
    return all(torch.equal(x[name], y[name]) for x, y in zip(a, b, strict=True) for name in x)


def test_dense_outer_steps_are_diloco() -> None:
    """Against the formulas: Nesterov with lr 0.7 and 0.9, the mean over workers, every 4 steps."""
    workers = begun(torch.float64)
    theta, v = {n: t.clone() for n, t in workers[0].items()}, {n: torch.zeros_like(t) for n, t in workers[0].items()}
    simulation = OuterSimulation(workers, "plain(identity())", every=4, lr=0.7, momentum=0.9)
    for step in range(12):
        move_(workers, step)
        if step % 4 == 3:
            for name in theta:
                d = torch.stack([theta[name] - worker[name] for worker in workers]).mean(0)
                v[name] = 0.9 * v[name] + d
                theta[name] = theta[name] - 0.7 * (d + 0.9 * v[name])
        simulation.step()
        if step % 4 == 3:
            for worker in workers:
                assert all(torch.allclose(worker[n], theta[n], rtol=1e-13, atol=1e-13) for n in theta)


def test_the_mean_is_over_workers_not_over_those_who_sent() -> None:
    """One of three workers sends a coordinate: it is applied by a third of itself, as the memory subtracts it once."""
    workers = [{"x": torch.zeros(3)} for _ in range(3)]
    simulation = OuterSimulation(workers, "memsgd(topk(count=1))", every=1)
    for rank, worker in enumerate(workers):
        worker["x"][rank] -= 3.0 + rank
    simulation.step()
    assert workers[0]["x"].equal(torch.tensor([-3.0, -4.0, -5.0]) / 3)
    assert all(worker["x"].equal(workers[0]["x"]) for worker in workers)


@pytest.mark.parametrize("lr", [0.4, 0.9])
def test_the_outer_rate_is_applied_once(lr: float) -> None:
    workers = [{"x": torch.zeros(2, dtype=torch.float64)} for _ in range(2)]
    simulation = OuterSimulation(workers, "memsgd(identity())", every=1, lr=lr)
    for worker in workers:
        worker["x"] -= 1.0
    simulation.step()
    assert workers[0]["x"].tolist() == pytest.approx([-lr, -lr], rel=1e-15)


@pytest.mark.parametrize(
    "settings",
    [{}, {"lr": 0.6}, {"fragments": 3}, {"delay": 2}, {"fragments": 2, "delay": 3, "alpha": 0.5}],
    ids=str,
)
def test_every_move_counts_once(settings: dict[str, float]) -> None:
    """Once what is unsaid is flushed, the outer point has moved by lr times the mean of all moves, delayed or not."""
    workers = begun(torch.float64)
    start = {name: tensor.clone() for name, tensor in workers[0].items()}
    simulation = OuterSimulation(workers, "memsgd(topk(0.1))", every=4, **settings)
    moves = run(simulation, workers, range(11))
    assert simulation.flush() > 0
    for name, begin in start.items():
        total = torch.stack([step[rank][name] for step in moves for rank in range(WORKERS)]).sum(0) / WORKERS
        assert torch.allclose(begin - point(simulation)[name], simulation.lr * total, atol=1e-12)
        assert all(torch.equal(worker[name], point(simulation)[name]) for worker in workers)


def test_no_parameter_is_left_out_however_they_are_cut() -> None:
    """Sizes at which a public implementation forgets tensors: [50, 50] and [10, 200, 10]."""
    for sizes in ([50, 50], [10, 200, 10], [1, 1, 1, 500]):
        for fragments in range(1, len(sizes) + 1):
            parameters = {str(i): torch.zeros(size) for i, size in enumerate(sizes)}
            parts = cut(parameters, fragments)
            assert len(parts) == fragments
            assert all(parts)
            assert [name for part in parts for name in part] == list(parameters)
            workers = [{n: torch.zeros_like(p) for n, p in parameters.items()} for _ in range(2)]
            simulation = OuterSimulation(workers, "plain(identity())", every=2, fragments=fragments)
            for _ in range(4):
                workers[1]["0"].sub_(1.0)
                for name in parameters:
                    workers[0][name].sub_(1.0)
                simulation.step()
            simulation.flush()
            assert all(float(workers[1][name].max()) == -2.0 for name in parameters if name != "0")


def test_one_fragment_without_delay_is_the_plain_algorithm() -> None:
    ways: list[dict[str, Any]] = [{}, {"fragments": 1, "delay": 0, "alpha": 0.0}]
    results = []
    for settings in ways:
        workers = begun()
        run(OuterSimulation(workers, "memsgd(topk(0.2))", every=3, **settings), workers, range(9))
        results.append(workers)
    assert same(*results)


def test_fragments_are_exchanged_in_turn() -> None:
    outer = Outer("plain(identity())", every=6, fragments=3, delay=2)  # type: ignore[arg-type]
    assert [outer.sent_at(step) for step in range(1, 9)] == [[], [1], [], [2], [], [0], [], [1]]
    assert [outer.landing_at(step) for step in range(1, 9)] == [[], [], [], [1], [], [2], [], [0]]


def test_a_delayed_result_is_applied_late_and_keeps_the_progress_meanwhile() -> None:
    """Dense, two workers, α = 1/4: the point moves by the mean of step 2's Δ at step 3; steps meanwhile count later."""
    workers = [{"x": torch.zeros(1, dtype=torch.float64)} for _ in range(2)]
    simulation = OuterSimulation(workers, "plain(identity())", every=2, delay=1, alpha=0.25)
    seen = []
    for _ in range(4):
        workers[0]["x"] -= 1.0
        workers[1]["x"] -= 3.0
        simulation.step()
        seen.append([float(worker["x"]) for worker in workers])
    # Δ = 2, 6 at step 2: θ = -4. At step 3: 0.25 (-3) + 0.75 (-4), 0.25 (-9) + 0.75 (-4); then a step more of each.
    assert seen == [[-1, -3], [-2, -6], [-3.75, -5.25], [-4.75, -8.25]]
    assert [float(m[0]) for m in (r.moves(0, r.flights[0].left) for r in simulation.replicas)] == [2.0, 6.0]


@pytest.mark.parametrize("rule", ["memsgd(topk(0.2))", "ef21(topk(0.2))", "plain(qsgd(15, 8))", "memsgd(randk(0.2))"])
@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.9, "lr": 0.7}, {"fragments": 2, "delay": 3, "alpha": 0.5, "momentum": 0.8}], ids=str
)
def test_resuming_in_the_middle_of_a_window_is_bitwise(rule: str, settings: dict[str, float]) -> None:
    workers = begun()
    simulation = OuterSimulation(workers, rule, every=5, seed=3, **settings)
    run(simulation, workers, range(7))
    saved, held = simulation.state_dict(), copy.deepcopy(workers)
    assert saved["step"] == 7
    run(simulation, workers, range(7, 17))
    others = begun()
    resumed = OuterSimulation(others, rule, every=5, seed=3, **settings)
    for other, kept in zip(others, held, strict=True):
        for name, tensor in kept.items():
            other[name].copy_(tensor)
    resumed.load_state_dict(saved)
    run(resumed, others, range(7, 17))
    assert same(workers, others)
    assert all(torch.equal(point(simulation)[name], view) for name, view in point(resumed).items())


def test_bfloat16_parameters_keep_the_outer_point_in_float32() -> None:
    """Moves of a bfloat16 model are counted as it holds them; the point's own digits are not lost to rounding."""
    workers = begun(torch.bfloat16)
    simulation = OuterSimulation(workers, "memsgd(topk(0.1))", every=2, lr=0.3)
    start = {name: tensor.double() for name, tensor in workers[0].items()}
    moves = run(simulation, workers, range(8))
    for name, view in point(simulation).items():
        assert view.dtype == torch.float32
        total = torch.stack([step[rank][name] for step in moves for rank in range(WORKERS)]).sum(0) / WORKERS
        errors = [memory(simulation, rank, name) for rank in range(WORKERS)]
        unsaid = torch.stack(errors).double().mean(0).view(view.shape)
        assert torch.allclose(start[name] - view.double(), 0.3 * (total - unsaid), atol=8 * 2.0**-22)
        assert torch.equal(workers[0][name], view.to(torch.bfloat16))


def test_parameters_of_several_types() -> None:
    workers = [{"a": torch.zeros(4), "b": torch.zeros(4, dtype=torch.float64)} for _ in range(2)]
    simulation = OuterSimulation(workers, "memsgd(topk(0.5))", every=1)
    workers[0]["a"][1] = 2.0
    workers[1]["b"][2] = 4.0
    simulation.step()
    assert workers[1]["a"].tolist() == [0, 1, 0, 0]
    assert workers[0]["b"].tolist() == [0, 0, 2, 0]


def test_a_new_outer_rate_leaves_what_is_remembered_alone() -> None:
    """The memory is in units of updates: what was put in at rate 1 comes out at rate 1, after the rate has fallen."""
    workers = [{"x": torch.zeros(2, dtype=torch.float64)} for _ in range(1)]
    simulation = OuterSimulation(workers, "memsgd(topk(count=1))", every=1)
    workers[0]["x"] -= torch.tensor([4.0, 2.0])
    simulation.step()
    simulation.lr = 0.5
    simulation.step()
    assert workers[0]["x"].tolist() == [-4.0, -2.0]


def test_nan_moves_nobody() -> None:
    workers = begun()
    simulation = OuterSimulation(workers, "memsgd(topk(0.2))", every=2)
    run(simulation, workers, range(3))
    before = {name: view.clone() for name, view in point(simulation).items()}
    workers[1]["b"][2] = torch.nan
    with pytest.raises(NonFiniteUpdate, match=r"rank 1 holds NaN or infinity in parameter 'b' at outer step 1"):
        simulation.step()
    assert all(torch.equal(view, before[name]) for name, view in point(simulation).items())
    assert not torch.equal(workers[0]["w"], before["w"])


def test_after_a_bad_step_every_worker_remembers_what_it_did_before() -> None:
    workers = begun()
    simulation = OuterSimulation(workers, "memsgd(topk(0.2))", every=2)
    run(simulation, workers, range(3))
    before = [memory(simulation, rank, "w").clone() for rank in range(WORKERS)]
    workers[1]["b"][2] = torch.nan
    with pytest.raises(NonFiniteUpdate):
        simulation.step()
    assert all(bool(kept.any()) for kept in before)
    assert all(torch.equal(memory(simulation, rank, "w"), kept) for rank, kept in enumerate(before))


def test_skipping_goes_back_to_the_last_outer_point() -> None:
    workers = begun()
    simulation = OuterSimulation(workers, "memsgd(topk(0.2))", every=2, nonfinite="skip", delay=1)
    run(simulation, workers, range(4))
    workers[1]["b"][2] = torch.inf
    run(simulation, workers, range(4, 7))
    assert simulation.ledger.summary()["skipped_steps"] == 1
    assert all(torch.equal(worker[name], view) for worker in workers for name, view in point(simulation).items())


def test_bytes_are_those_of_the_messages() -> None:
    workers = begun()
    simulation = OuterSimulation(workers, "memsgd(topk(0.1))", every=2)
    sizes = []
    for step in range(4):
        move_(workers, step)
        if step % 2:
            probe = copy.deepcopy(simulation.replicas[0])
            sizes.append(sum(sent.message.numel() for sent in probe.send(0, 0, measure=False).sent))
        simulation.step()
    summary = simulation.ledger.summary()
    assert summary["steps"] == 2
    assert summary["message_bytes"] == sum(sizes)
    assert summary["sent_bytes"] == (WORKERS - 1) * (sum(sizes) + 2 * 8)  # at this density sizes are told first


def test_another_number_of_workers_loads_what_was_flushed() -> None:
    workers = begun()
    simulation = OuterSimulation(workers, "memsgd(topk(0.1))", every=3)
    run(simulation, workers, range(4))
    two = [{name: tensor.clone() for name, tensor in workers[0].items()} for _ in range(2)]
    smaller = OuterSimulation(two, "memsgd(topk(0.1))", every=3)
    with pytest.raises(StateError, match=r"middle of a window.*flush\(\)"):
        smaller.load_state_dict(simulation.state_dict(), on_resize="redistribute")
    simulation.flush()
    smaller.load_state_dict(simulation.state_dict(), on_resize="redistribute")
    assert all(torch.equal(two[1][name], view) for name, view in point(simulation).items())
    assert smaller.steps == 4


def test_an_outer_rate_that_was_changed_is_loaded() -> None:
    simulation, resumed = (OuterSimulation(begun(), "memsgd(topk(0.1))", every=3) for _ in range(2))
    simulation.lr = 0.5
    resumed.load_state_dict(simulation.state_dict())
    assert [replica.lr for replica in resumed.replicas] == [0.5] * WORKERS


def test_states_that_do_not_fit_are_refused() -> None:
    workers = begun()
    simulation = OuterSimulation(workers, "memsgd(topk(0.1))", every=3)
    run(simulation, workers, range(2))
    state = simulation.state_dict()
    with pytest.raises(StateError, match="saved with every=3, this run has every=4"):
        OuterSimulation(begun(), "memsgd(topk(0.1))", every=4).load_state_dict(state)
    with pytest.raises(StateError, match="save the model on every rank, and load it before"):
        OuterSimulation(begun(), "memsgd(topk(0.1))", every=3).load_state_dict(state)
    with pytest.raises(StateError, match="not a state of outer steps"):
        simulation.load_state_dict(thinwire.Simulation({"x": torch.zeros(2)}, "memsgd(sign())", 1).state_dict())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "say every how many steps"),
        ({"every": 0}, "every must be a whole number of steps, at least 1, got 0"),
        ({"every": 2.5}, "every must be a whole number"),
        ({"every": 3, "delay": 3}, "delay must be a whole number from 0 to 2: less than every=3, got 3"),
        ({"every": 3, "delay": -1}, "delay must be .* got -1"),
        ({"every": 3, "fragments": 0}, "fragments must be at least 1, got 0"),
        ({"every": 3, "fragments": 4}, "4 fragments of 3 parameters.*use at most fragments=3"),
        ({"every": 3, "lr": 0.0}, "lr must be a finite number above 0"),
        ({"every": 3, "momentum": 1.0}, r"momentum must be in \[0, 1\)"),
        ({"every": 3, "alpha": 1.0}, r"alpha must be in \[0, 1\)"),
    ],
)
def test_settings_out_of_bounds_are_refused(settings: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        OuterSimulation(begun(), "memsgd(topk(0.1))", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "need"),
    [
        ("vgc(1.0)", "second moments"),
        ("marina(unbias(randk(0.1)), probability=0.1)", "previous point"),
        ("ef21page(topk(0.1), probability=0.1)", "all of a worker's samples|previous point"),
        ("ef21p(ef21(topk(0.1)), topk(0.1))", "broadcasts the model"),
    ],
)
def test_rules_that_need_gradients_are_refused(rule: str, need: str) -> None:
    with pytest.raises(AttachError, match=rf"{need}.*Use memsgd, ef21, ef21sgdm or plain"):
        OuterSimulation(begun(), rule, every=2)


def test_workers_that_begin_apart_are_refused() -> None:
    workers = begun()
    workers[2]["b"][0] += 1
    with pytest.raises(ConfigError, match="worker 2's 'b' begins elsewhere"):
        OuterSimulation(workers, "memsgd(topk(0.1))", every=2)


@pytest.mark.parametrize("change", [0.1, 10.0])
def test_the_inner_rate_may_change_in_the_middle_of_a_window(change: float) -> None:
    """Δ is in units of parameters: all that both optimizers moved arrives, whatever their rates were."""
    models = [nn.Linear(4, 3, dtype=torch.float64) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    start = {name: p.detach().clone() for name, p in models[0].named_parameters()}
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    simulation = OuterSimulation([dict(m.named_parameters()) for m in models], "memsgd(topk(0.3))", every=4)
    moved = {name: torch.zeros_like(p) for name, p in start.items()}
    for step in range(8):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            if step == 2:
                optimizer.param_groups[0]["lr"] *= change
            optimizer.zero_grad()
            x = torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * step + rank), dtype=torch.float64)
            model(x).square().sum().backward()
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            optimizer.step()
            for name, p in model.named_parameters():
                moved[name] += (before[name] - p.detach()) / 2
        simulation.step()
    simulation.flush()
    for name, p in models[1].named_parameters():
        assert torch.allclose(start[name] - p.detach(), moved[name], rtol=1e-12, atol=1e-12)

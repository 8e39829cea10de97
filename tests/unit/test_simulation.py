"""n workers in one process."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from thinwire import (
    EF21,
    EF21P,
    EF21PAGE,
    EF21SGDM,
    MARINA,
    VGC,
    EControl,
    EF21Plus,
    Feedback,
    Identity,
    MemSGD,
    Plain,
    RandK,
    Route,
    Simulation,
    TopK,
    Unbias,
    simulate,
    theory,
)
from thinwire.errors import AttachError, ConfigError, NonFiniteGradient, StepSizeWarning, ThinwireError
from thinwire.feedback import Need
from thinwire.outgoing import Given
from thinwire.problems import FiniteSum, file_order, load_dataset, logistic_regression
from thinwire.problems.minibatches import Minibatches
from thinwire.updates import Normalised


def grads(*values: float, numel: int = 3) -> list[dict[str, Tensor]]:
    return [{"x": torch.full((numel,), value)} for value in values]


def memory(made: Simulation) -> list[list[float]]:
    return [channel.worker.view("x", "error").tolist() for channel in made.channels]


def test_dense_exchange_is_the_mean() -> None:
    made = Simulation({"x": torch.zeros(3)}, Identity(), 4)
    assert made.exchange(grads(1, 2, 3, 6))["x"].tolist() == [3, 3, 3]


def test_results_have_the_parameters_shapes_and_types() -> None:
    parameters = {
        "m": torch.zeros(2, 3),
        "s": torch.zeros(()),
        "e": torch.zeros(0),
        "h": torch.zeros(4, dtype=torch.float16),
        "d": torch.zeros(2, 2, dtype=torch.float64),
    }
    made = Simulation(parameters, EF21(TopK(0.5)), 2)
    out = made.exchange([{name: torch.ones_like(p) for name, p in parameters.items()}] * 2)
    assert {name: (g.shape, g.dtype) for name, g in out.items()} == {
        n: (p.shape, p.dtype) for n, p in parameters.items()
    }


def test_a_gradient_that_one_worker_lacks_counts_as_zero() -> None:
    made = Simulation({"x": torch.zeros(2), "y": torch.zeros(2)}, Identity(), 2)
    out = made.exchange([{"x": torch.ones(2), "y": torch.ones(2)}, {"y": torch.ones(2)}])
    assert out["x"].tolist() == [0.5, 0.5]
    assert out["y"].tolist() == [1, 1]


def test_a_parameter_that_all_workers_lack_is_left_alone() -> None:
    x, y = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    made = Simulation({"x": x, "y": y}, MemSGD(TopK(count=1)), 2, optimizer=torch.optim.SGD([x, y], lr=1.0))
    made.step([{"x": torch.tensor([1.0, 2]), "y": torch.tensor([1.0, 2])}] * 2)
    before = made.channels[0].worker.view("y", "error").tolist()
    made.step([{"x": torch.tensor([1.0, 2])}] * 2)
    assert y.grad is None
    assert made.channels[0].worker.view("y", "error").tolist() == before == [1, 0]
    assert y.tolist() == [0, -2]


def test_non_contiguous_gradients_and_gradients_with_a_graph() -> None:
    made = Simulation({"x": torch.zeros(3, 2)}, Identity(), 1)
    gradient = torch.arange(6.0, requires_grad=True).view(2, 3).t()
    out = made.exchange([{"x": gradient}])["x"]
    assert torch.equal(out, gradient.detach())
    assert not out.requires_grad


def test_step_writes_grad_and_lets_the_optimizer_step() -> None:
    x = torch.nn.Parameter(torch.ones(3))
    made = Simulation({"x": x}, Identity(), 2, optimizer=torch.optim.SGD([x], lr=0.5, momentum=0.9))
    made.step(grads(1, 3))
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]
    assert x.tolist() == [0, 0, 0]


def test_a_bad_gradient_names_its_worker_and_leaves_everything() -> None:
    x = torch.nn.Parameter(torch.zeros(3))
    made = Simulation({"x": x}, MemSGD(TopK(count=1)), 2, optimizer=torch.optim.SGD([x], lr=1.0))
    made.step(grads(1, 2))
    before, place = memory(made), x.tolist()
    with pytest.raises(NonFiniteGradient, match=r"rank 1 .* parameter 'x' at step 1") as caught:
        made.step(grads(1, math.nan))
    assert caught.value.rank == 1
    assert memory(made) == before
    assert x.tolist() == place
    made.step(grads(1, 2))
    assert all(math.isfinite(v) for row in memory(made) for v in row)


def test_one_buffer_in_another_type_fails_and_all_are_undone() -> None:
    """Parameters of two types are exchanged one after the other; a fault in the second undoes the first."""
    parameters = {"a": torch.zeros(3), "b": torch.zeros(3, dtype=torch.float64)}
    made = Simulation(parameters, MemSGD(TopK(count=1)), 2)
    good = {"a": torch.tensor([1.0, 2, 3]), "b": torch.ones(3, dtype=torch.float64)}
    sizes = dict.fromkeys(parameters, 1.0)
    with pytest.raises(NonFiniteGradient):
        made.exchange([good, {**good, "b": good["b"] / 0}], sizes)
    assert all(torch.count_nonzero(channel.worker.view("a", "error")) == 0 for channel in made.channels)


@pytest.mark.parametrize("workers", [0, -1])
def test_a_simulation_needs_a_worker(workers: int) -> None:
    with pytest.raises(ConfigError, match=f"at least 1 worker, got {workers}"):
        Simulation({"x": torch.zeros(3)}, Identity(), workers)


@pytest.mark.parametrize("count", [1, 3])
def test_every_worker_gives_a_gradient(count: int) -> None:
    with pytest.raises(ConfigError, match=f"2 workers need 2 gradients, got {count}"):
        Simulation({"x": torch.zeros(3)}, Identity(), 2).exchange(grads(*range(count)))


def test_memory_without_step_sizes_is_refused_with_its_remedy() -> None:
    made = Simulation({"x": torch.zeros(3)}, MemSGD(TopK(0.5)), 2)
    with pytest.raises(AttachError, match=r"needs the step size of every parameter: pass optimizer= .* or step_sizes="):
        made.exchange(grads(1, 2))
    assert memory(made) == [[0, 0, 0]] * 2


@pytest.mark.parametrize("rule", [0.1, None])
def test_a_rule_must_be_a_rule(rule: object) -> None:
    with pytest.raises(ConfigError, match="expected a rule such as"):
        Simulation({"x": torch.zeros(3)}, rule, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(2,), (4,), ()], ids=str)
def test_a_gradient_of_another_shape_is_refused_and_nothing_changes(shape: tuple[int, ...]) -> None:
    made = Simulation({"x": torch.zeros(3), "y": torch.zeros(4)}, MemSGD(TopK(0.4)), 2)
    sizes = {"x": 1.0, "y": 1.0}
    good = {"x": torch.ones(3), "y": torch.ones(4)}
    made.exchange([good, good], sizes)
    before = memory(made)
    with pytest.raises(ConfigError, match="'x'"):
        made.exchange([good, {"x": torch.ones(shape), "y": torch.ones(4)}], sizes)
    assert memory(made) == before
    twin = Simulation({"x": torch.zeros(3), "y": torch.zeros(4)}, MemSGD(TopK(0.4)), 2)
    twin.exchange([good, good], sizes)
    assert torch.equal(made.exchange([good, good], sizes)["x"], twin.exchange([good, good], sizes)["x"])


def test_a_gradient_of_an_unknown_parameter_is_refused() -> None:
    made = Simulation({"x": torch.zeros(3)}, Identity(), 1)
    with pytest.raises(ConfigError, match="'z'"):
        made.exchange([{"x": torch.ones(3), "z": torch.ones(3)}])


def test_step_sizes_must_name_every_parameter() -> None:
    made = Simulation({"x": torch.zeros(3), "y": torch.zeros(3)}, MemSGD(TopK(0.5)), 1)
    with pytest.raises(ThinwireError, match="'y'"):
        made.exchange([{"x": torch.ones(3), "y": torch.ones(3)}], {"x": 0.1})


def test_the_optimizer_must_hold_the_parameters() -> None:
    x, z = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    with pytest.raises(AttachError, match="does not hold 1 of the model's 1 parameters"):
        Simulation({"x": x}, MemSGD(TopK(0.5)), 2, optimizer=torch.optim.SGD([z], lr=0.1))


def test_an_exchange_that_broke_off_is_undone_by_the_next() -> None:
    """As by Ctrl-C between two workers: what the first had sent must not be counted twice."""
    broken, whole = (Simulation({"x": torch.zeros(4)}, EF21(TopK(0.5)), 2) for _ in range(2))
    gradients = [{"x": torch.tensor([4.0, 3.0, 2.0, 1.0])}, {"x": torch.tensor([1.0, 2.0, 3.0, 4.0])}]
    broken.channels[0].send(broken._layouts[0], Given(gradients[0]["x"]))
    for _ in range(3):
        assert torch.equal(broken.exchange(gradients)["x"], whole.exchange(gradients)["x"])


class Bowl:
    """f_i(x) = |x - i|^2 / 2 for worker i."""

    workers = 3

    def start(self) -> Mapping[str, Tensor]:
        return {"x": torch.full((4,), 10.0, dtype=torch.float64, requires_grad=True)}

    def gradient(self, worker: int, x: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        return {"x": x["x"] - worker}

    def loss(self, x: Mapping[str, Tensor]) -> float:
        return sum(float((x["x"] - i).square().sum()) / 2 for i in range(3)) / 3


@pytest.mark.parametrize(
    ("rule", "floor"),
    [(Plain(Identity()), 1e-6), (EF21(TopK(count=1)), 1e-6), (MemSGD(TopK(count=1)), 0.1 * 4)],
    ids=["plain", "ef21", "memsgd"],
)
def test_simulate_walks_to_the_minimum(rule: Plain | MemSGD | EF21, floor: float) -> None:
    """Memory of workers that disagree leaves a floor of the order step size * d / k; the others leave none."""
    run = simulate(Bowl(), rule, steps=200, step_size=0.1)
    assert run.x["x"].tolist() == pytest.approx([1, 1, 1, 1], abs=floor)
    assert len(run.losses) == len(run.sent_bytes) == 201
    assert run.losses[0] == 4 * (100 + 81 + 64) / 2 / 3
    assert run.losses[-1] == Bowl().loss(run.x)
    assert run.sent_bytes[0] == 0
    assert run.sent_bytes == sorted(run.sent_bytes)
    assert run.sent_bytes[-1] == run.ledger.summary()["sent_bytes"]


def test_simulate_takes_the_loss_every_so_often_and_at_the_end() -> None:
    assert len(simulate(Bowl(), Identity(), steps=10, step_size=0.1, every=4).losses) == 4  # 0, 4, 8 and 10
    assert len(simulate(Bowl(), Identity(), steps=8, step_size=0.1, every=4).losses) == 3
    assert len(simulate(Bowl(), Identity(), steps=0, step_size=0.1).losses) == 1


def test_simulate_follows_a_schedule_and_its_seed() -> None:
    def decay(t: int) -> float:
        return 0.1 if t < 5 else 0.01

    runs = [simulate(Bowl(), MemSGD(RandK(0.5)), steps=9, step_size=decay, seed=s).x["x"].tolist() for s in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    assert runs[0] != simulate(Bowl(), MemSGD(RandK(0.5)), steps=9, step_size=0.1).x["x"].tolist()


def test_simulate_equals_a_simulation_with_an_optimizer() -> None:
    problem = Bowl()
    x = torch.nn.Parameter(problem.start()["x"].detach().clone())
    made = Simulation({"x": x}, MemSGD(TopK(count=1)), 3, optimizer=torch.optim.SGD([x], lr=0.1))
    for t in range(20):
        made.step([problem.gradient(i, {"x": x.detach()}, t) for i in range(3)])
    run = simulate(problem, MemSGD(TopK(count=1)), steps=20, step_size=0.1)
    assert torch.equal(run.x["x"], x.detach())


@pytest.mark.parametrize(("steps", "every"), [(-1, 1), (5, 0)])
def test_simulate_bounds(steps: int, every: int) -> None:
    with pytest.raises(ConfigError, match=f"got {steps} and {every}"):
        simulate(Bowl(), Identity(), steps=steps, step_size=0.1, every=every)


@pytest.mark.parametrize("size", [-1.0, math.nan, math.inf])
def test_a_step_size_that_is_none_is_refused_at_once(size: float) -> None:
    with pytest.raises(ConfigError, match=f"finite number of at least 0, got {size}$"):
        simulate(Bowl(), Identity(), steps=0, step_size=size)
    with pytest.raises(ConfigError, match=f"at least 0, got {size} at step 2"):
        simulate(Bowl(), Identity(), steps=5, step_size=lambda t: size if t == 2 else 0.1)


def cancer() -> FiniteSum:
    data = load_dataset()
    return logistic_regression(data, file_order(len(data), 4))


@pytest.mark.parametrize(
    "rule", [EF21(TopK(count=1)), EF21SGDM(TopK(count=1)), MARINA(Unbias(RandK(0.5)), 0.5), Plain(Identity())], ids=str
)
def test_a_step_size_beyond_theory_is_a_warning_with_the_bound(rule: Feedback) -> None:
    problem = cancer()
    largest = max(each.step for each in theory.admissible(rule, problem.smoothness(), problem.d))
    simulate(problem, rule, steps=1, step_size=largest)  # a warning would be an error here
    with pytest.warns(StepSizeWarning, match=f"is 2 × the largest that .* admits, {largest:g}") as caught:
        simulate(problem, rule, steps=2, step_size=2 * largest)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    simulate(problem, rule, steps=1, step_size=2 * largest, beyond_theory=True)
    simulate(problem, rule, steps=1, step_size=lambda t: 2 * largest)


def test_no_theorem_means_no_warning() -> None:
    """Of EF with many workers, of EControl, of another step; and mini-batches know no constants."""
    problem = cancer()
    for rule in (MemSGD(TopK(count=1)), EControl(TopK(count=1)), EF21Plus(RandK(count=1))):
        simulate(problem, rule, steps=1, step_size=1e3)
    simulate(problem, EF21(TopK(count=1)), steps=1, step_size=1e3, update=Normalised())
    simulate(Minibatches(problem, 0.5), EF21(TopK(count=1)), steps=1, step_size=1e3)


def test_a_count_beyond_d_is_refused_where_there_is_one_vector() -> None:
    with pytest.raises(ConfigError, match=r"topk\(count=999\) keeps 999 numbers of 30; take a count of at most 30"):
        simulate(cancer(), EF21(TopK(count=999)), steps=0, step_size=0.0)
    with pytest.raises(ConfigError, match="keeps 31 numbers of 30"):
        simulate(cancer(), Route({"*": MemSGD(RandK(count=31))}, min_numel=0), steps=0, step_size=lambda t: 0.1)
    simulate(cancer(), EF21(TopK(count=30)), steps=1, step_size=0.0)
    Simulation({"bias": torch.zeros(10)}, EF21(TopK(count=999)), 2)  # of a network's small parameters it keeps all


def test_what_will_be_given_can_be_told_and_a_rule_that_needs_more_is_refused_at_construction() -> None:
    x = torch.nn.Parameter(torch.zeros(6))
    page = EF21PAGE(TopK(count=1), 0.5)
    Simulation({"x": x}, page, 2)  # not told: the first exchange looks
    with pytest.raises(AttachError, match=r"needs the gradient at the previous point.*previous= .*name it in gives="):
        Simulation({"x": x}, page, 2, gives=[])
    with pytest.raises(AttachError, match=r"needs the gradient of all of a worker's samples.* wants_full is true"):
        Simulation({"x": x}, page, 2, gives=[Need.PREVIOUS])
    Simulation({"x": x}, page, 2, gives=[Need.PREVIOUS, Need.FULL])
    with pytest.raises(AttachError, match="needs the second moments"):
        Simulation({"x": x}, VGC(1.5), 2, gives=[Need.PREVIOUS])
    with pytest.raises(AttachError, match="needs the step size"):
        Simulation({"x": x}, MemSGD(TopK(count=1)), 2, gives=[])
    Simulation({"x": x}, MemSGD(TopK(count=1)), 2, gives=[], optimizer=torch.optim.SGD([x], lr=0.1))
    Simulation({"x": x}, EF21P(EF21(TopK(count=1)), TopK(count=1)), 2, gives=[])


def test_simulate_says_at_once_that_a_problem_has_no_second_moments() -> None:
    with pytest.raises(AttachError, match=r"vgc.* needs the second moments .*: a problem gives whole gradients only"):
        simulate(Bowl(), VGC(1.5), steps=0, step_size=0.1)


def test_a_simulation_leaves_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    simulate(Bowl(), MemSGD(RandK(0.5)), steps=3, step_size=0.1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_gradient_of_none_is_one_that_the_worker_lacks() -> None:
    """`{name: p.grad ...}` holds None for parameters that took no part."""
    made = Simulation({"x": torch.zeros(2), "y": torch.zeros(2)}, MemSGD(TopK(count=1)), 2)
    gradients = [{"x": torch.ones(2), "y": None}, {"x": torch.ones(2), "y": None}]
    out = made.exchange(gradients, {"x": 1.0, "y": 1.0})  # type: ignore[arg-type]
    assert list(out) == ["x"]
    assert made.channels[0].started == {"x"}


@pytest.mark.gpu
@pytest.mark.parametrize("start", ["gradient", "compressed", "zero"])
@pytest.mark.parametrize("kind", [EF21, EF21Plus, EF21SGDM, EControl], ids=lambda kind: kind.name)
def test_every_start_runs_on_a_gpu_as_on_the_cpu(kind: type[EF21], start: str) -> None:
    """An empty first message has no device of its own; the sums differ in fused roundings at most."""
    runs: list[list[float]] = []
    for device in ("cpu", "cuda"):
        made = Simulation({"x": torch.zeros(100, device=device)}, kind(TopK(0.1), start=start), 2)
        for t in range(4):
            drawn = [torch.randn(100, generator=torch.Generator().manual_seed(10 * t + w)) for w in range(2)]
            out = made.exchange([{"x": gradient.to(device)} for gradient in drawn])
        runs.append(out["x"].tolist())
    assert runs[0] == pytest.approx(runs[1], abs=16 * torch.finfo(torch.float32).eps)

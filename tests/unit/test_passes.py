"""n simulated workers on one model compute what n models of their own would."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire import VGC
from thinwire.errors import AttachError, ConfigError
from thinwire.moments import watch
from thinwire.papers.vgc.settings import SMALL, vgc_configs
from thinwire.training.config import RunConfig
from thinwire.training.gradients import ByName, SeparatePasses, WorkerGradient, dropout_seed
from thinwire.training.joined_pass import JoinedPass, can_join
from thinwire.training.run import SimulatedRun
from thinwire.training.tasks import Batch, Defaults, Task, load_task
from thinwire.training.tasks.cifar10 import vgg

WORKERS, SIZE, STEPS = 3, 6, 2


class Noise(Task):
    """Random images and a VGG-like network of two small stages."""

    name, metric, percent, higher_is_better = "noise", "loss", False, False
    defaults = Defaults(steps=STEPS, batch=SIZE, lr=0.1)

    @classmethod
    def load(cls, data: str | None = None) -> Noise:
        return cls()

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return vgg(stages=((4, 6), (8, 8)), hidden=12)

    def batch(self, seed: int, step: int, worker: int, workers: int, size: int) -> Batch:
        random = torch.Generator().manual_seed(1 + 10 * step + worker)
        return torch.randn(size, 3, 32, 32, generator=random), torch.randint(10, (size,), generator=random)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"loss": 0.0}

    def facts(self) -> dict[str, str | int]:
        return {}

    def batches(self, step: int) -> list[Batch]:
        return [self.batch(0, step, worker, WORKERS, SIZE) for worker in range(WORKERS)]


def separate(task: Noise, models: Sequence[nn.Module]) -> Iterator[list[tuple[float, ByName, ByName]]]:
    """Each step's losses, gradients and moments of models that share nothing."""
    watched = [watch(own) for own in models]
    for step in range(STEPS):
        found = []
        for worker, (own, batch) in enumerate(zip(models, task.batches(step), strict=True)):
            own.zero_grad()
            torch.manual_seed(dropout_seed(0, step, worker))
            loss = task.loss(own, batch)
            loss.backward()
            gradient = {name: p.grad.clone() for name, p in own.named_parameters() if p.grad is not None}
            found.append((float(loss.detach()), gradient, watched[worker].take()))
        yield found


def assert_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_workers_compute_what_models_of_their_own_would() -> None:
    task = Noise()
    shared = task.model(0)
    models = [copy.deepcopy(shared) for _ in range(WORKERS)]
    workers = SeparatePasses(shared, task, VGC(), WORKERS, seed=0)
    for step, expected in enumerate(separate(task, models)):
        found = workers.compute(step, task.batches(step))
        for computed, (loss, gradient, moment) in zip(found, expected, strict=True):
            assert float(computed.loss) == loss
            assert_equal(computed.gradient, gradient)
            assert computed.moment is not None
            assert_equal(computed.moment, moment)
    workers.settle()
    own = [dict(one.named_buffers()) for one in models]
    for name, buffer in shared.named_buffers():
        if buffer.is_floating_point():
            torch.testing.assert_close(buffer, torch.stack([one[name] for one in own]).mean(0))
            assert not torch.equal(buffer, own[0][name])


def test_the_generator_is_left_alone_and_moments_are_computed_only_where_needed() -> None:
    task = Noise()
    model = task.model(0)
    before = torch.random.get_rng_state()
    found = SeparatePasses(model, task, None, WORKERS, seed=0).compute(0, task.batches(0))
    assert torch.equal(before, torch.random.get_rng_state())
    assert [one.moment for one in found] == [None] * WORKERS


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def no_tf32() -> Iterator[None]:
    """Products of float32 as they are on a CPU."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.mark.usefixtures("no_tf32")
@pytest.mark.parametrize("rule", [VGC(), None], ids=["moments", "no moments"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_together_they_compute_what_they_do_one_by_one(device: str, dtype: torch.dtype, rule: VGC | None) -> None:
    """Without dropout, which draws once for all. The bound is √ε: another batch or set of statistics would be off by a
    share near 1. (A GPU has a kernel of its own for float32.)"""
    task = Noise()
    model = without_dropout(task.model(0)).to(device, dtype)
    twin = copy.deepcopy(model)
    single = SeparatePasses(model, task, rule, WORKERS, seed=0)
    batches = [[(x.to(device, dtype), y.to(device)) for x, y in task.batches(step)] for step in range(STEPS)]
    joined = JoinedPass(twin, task, rule is not None, batches[0], seed=0)
    for step, given in enumerate(batches):
        expected, found = single.compute(step, given), joined.compute(step, given)
        mean = torch.stack([one.loss for one in expected]).mean()
        for one, other in zip(expected, found, strict=True):
            assert_near(one, other, mean)
    single.settle()
    joined.settle()
    for buffer, other in zip(model.buffers(), twin.buffers(), strict=True):
        if buffer.is_floating_point():
            torch.testing.assert_close(buffer, other)


def test_together_dropout_draws_anew_at_each_step_and_alike_at_the_same() -> None:
    task = Noise()
    joined = JoinedPass(task.model(0), task, False, task.batches(0), seed=0)
    first, again, other = (float(joined.compute(step, task.batches(0))[0].loss) for step in (0, 0, 1))
    assert first == again != other


def test_a_joined_model_is_evaluated_as_it_was() -> None:
    task = Noise()
    model = task.model(0)
    x = task.batches(0)[0][0]
    expected = copy.deepcopy(model).eval()(x)
    JoinedPass(model, task, False, task.batches(0), seed=0)
    assert torch.equal(model.eval()(x), expected)


@pytest.mark.parametrize(
    ("model", "joins"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4)), True),
        (nn.BatchNorm1d(4, momentum=None), False),
        (nn.BatchNorm1d(4, affine=False), False),
        (nn.PReLU(), False),
        (nn.InstanceNorm1d(4, track_running_stats=True), False),
    ],
)
def test_which_models_can_be_joined(model: nn.Module, joins: bool) -> None:
    assert can_join(model) is joins


def test_tied_weights_are_not_joined() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    assert not can_join(tied)


@pytest.mark.parametrize(
    "config",
    [
        RunConfig.of("digits", "vgc(64)", engine="sim", workers=2, batch=16),
        *vgc_configs(SMALL, "adam", methods=["hybrid(0.01, alpha=16)"]),
    ],
    ids=["train", "reproduce"],
)
def test_a_simulated_run_refuses_batches_that_alpha_does_not_allow(config: RunConfig) -> None:
    run = SimulatedRun(config, load_task(config.task, None))
    before = {name: p.detach().clone() for name, p in run.parameters.items()}
    with pytest.raises(ConfigError, match=r"16 on some rank, so nothing could pass alpha = \d+"):
        run.step(0)
    assert_equal(run.parameters, before)


@pytest.mark.parametrize("text", ["vgc()", "route({'head.*': identity(), '*': vgc()}, min_numel=100)"])
def test_a_parameter_without_an_exact_layer_is_refused_with_a_method_that_works(text: str) -> None:
    config = RunConfig.of("text", text, engine="sim", workers=1, batch=4)
    task = load_task("text", None)
    with pytest.raises(AttachError, match=r"position \(_Transformer has no exact formula here\)") as caught:
        SimulatedRun(config, task)
    method = str(caught.value).split('--method "')[1].rstrip('"')
    assert method.startswith("route({'position': plain(identity()), ")
    run = SimulatedRun(RunConfig.of("text", method, engine="sim", workers=2, batch=4), task)
    run.step(0)
    assert run.traffic().sent > 0


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def assert_near(one: WorkerGradient, other: WorkerGradient, mean: Tensor) -> None:
    pairs = [(mean, other.loss)]
    pairs += [(one.gradient[name], other.gradient[name]) for name in one.gradient]
    assert (one.moment is None) == (other.moment is None)
    if one.moment is not None and other.moment is not None:
        pairs += [(one.moment[name], other.moment[name]) for name in one.moment]
    for a, b in pairs:
        assert float((a - b).norm()) <= torch.finfo(a.dtype).eps ** 0.5 * float(a.norm())

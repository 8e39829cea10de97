"""n simulated workers on one model compute what n models of their own would."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.experiments.backward import ByName, Computed, GraphedBackward, PlainBackward
from thinwire.experiments.workers import Workers, dropout_seed
from thinwire.moments import watch
from thinwire.problems.task import Batch, Defaults, Task
from thinwire.problems.vgg import vgg

WORKERS, SIZE, STEPS = 3, 6, 2


class Noise(Task):
    """Random images and a VGG-like network of two small stages."""

    name, metric, percent, higher_is_better = "noise", "loss", False, False
    defaults = Defaults(steps=STEPS, batch=SIZE, lr=0.1)

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
    workers = Workers(shared, PlainBackward(shared, task, moments=True), WORKERS, seed=0)
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
    found = Workers(model, PlainBackward(model, task, moments=False), WORKERS, seed=0).compute(0, task.batches(0))
    assert torch.equal(before, torch.random.get_rng_state())
    assert [one.moment for one in found] == [None] * WORKERS


@pytest.mark.gpu
@pytest.mark.parametrize("moments", [True, False])
def test_the_cuda_graph_computes_what_the_plain_pass_does(moments: bool) -> None:
    """Dropout included. The bound is √ε: another batch, mask or set of statistics would be off by a share near 1."""
    task = Noise()
    model = task.model(0).cuda()
    twin = copy.deepcopy(model)
    plain = Workers(model, PlainBackward(model, task, moments), WORKERS, seed=0)
    graphed = GraphedBackward(PlainBackward(twin, task, moments), task.batches(0)[0], WORKERS)
    graph = Workers(twin, graphed, WORKERS, seed=0)
    for step in range(STEPS):
        batches = [(x.cuda(), y.cuda()) for x, y in task.batches(step)]
        expected, found = plain.compute(step, batches), graph.compute(step, task.batches(step))
        for one, other in zip(expected, found, strict=True):
            assert_near(one, other)
    plain.settle()
    graph.settle()
    for buffer, other in zip(model.buffers(), twin.buffers(), strict=True):
        if buffer.is_floating_point():
            torch.testing.assert_close(buffer, other)


def assert_near(one: Computed, other: Computed) -> None:
    pairs = [(one.loss, other.loss)]
    pairs += [(one.gradient[name], other.gradient[name]) for name in one.gradient]
    if one.moment is not None:
        assert other.moment is not None
        pairs += [(one.moment[name], other.moment[name]) for name in one.moment]
    for a, b in pairs:
        assert float((a - b).norm()) <= torch.finfo(a.dtype).eps ** 0.5 * float(a.norm())

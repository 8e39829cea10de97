"""What is deleted is freed: models, DDP, handles and moments, and no hooks are left behind."""

from __future__ import annotations

import copy
import gc
import io
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.moments import MicroBatches, Moments, watch

RULES = ["vgc(alpha=1.0)", "hybrid(alpha=1.0, tau=0.1)", "memsgd(topk(0.5))", "ef21(topk(0.5))", "plain(qsgd(4))"]
DDP_OPTIONS: list[dict[str, bool]] = [{}, {"static_graph": True}, {"find_unused_parameters": True}]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process alone."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("world") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Forked(nn.Module):
    """A model with a part that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(6, 5), nn.Linear(5, 3), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.first(x).tanh())
        return y


def network(options: dict[str, bool]) -> nn.Module:
    return Forked() if options else nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 6)).square().mean().backward()
        optimizer.step()


def attached(model: nn.Module, rule: str, **options: bool) -> tuple[DistributedDataParallel, Any]:
    ddp = DistributedDataParallel(model, **options)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    moments = watch(ddp) if "alpha" in rule else None
    handle = thinwire.attach(ddp, thinwire.parse(rule), optimizer, moments=moments)
    train(ddp, optimizer)
    return ddp, handle


def assert_freed(left: list[weakref.ref[Any]]) -> None:
    """The collector sees no cycle through C++: one that DDP's reducer is part of would stay for ever."""
    gc.collect()
    assert [one() for one in left] == [None] * len(left)


def hooks_on(model: nn.Module) -> int:
    """How many hooks modules and parameters carry."""
    modules = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    found = (
        getattr(p, kind, None)
        for p in model.parameters()
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")
    )
    return modules + sum(len(hooks) for hooks in found if hooks is not None)


@pytest.mark.parametrize("options", DDP_OPTIONS, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_everything_is_freed(rule: str, options: dict[str, bool], alone: None) -> None:
    model = network(options)
    ddp, handle = attached(model, rule, **options)
    left = [weakref.ref(one) for one in (model, ddp, handle, handle.channel, *model.parameters())]
    del model, ddp, handle
    assert_freed(left)


@pytest.mark.parametrize("options", DDP_OPTIONS, ids=str)
@pytest.mark.parametrize("rule", RULES[:1] + RULES[-1:])
def test_one_ddp_after_another_leaves_no_hooks_on_the_model(rule: str, options: dict[str, bool], alone: None) -> None:
    model = network(options)
    for _ in range(2):
        ddp, handle = attached(model, rule, **options)
        del ddp, handle
        gc.collect()
        assert hooks_on(model) == 0


def test_a_ddp_model_outlives_the_names_it_was_given(alone: None) -> None:
    model = network({})
    ddp, _ = attached(model, "vgc(alpha=1.0)")
    train(ddp, torch.optim.SGD(model.parameters(), 0.1))  # the handle and its moments are DDP's now
    assert hooks_on(model) > 0


def exact(model: nn.Module) -> Moments:
    moments = watch(model)
    model(torch.ones(4, 6)).square().mean().backward()
    return moments


def in_micro_batches(model: nn.Module) -> Moments:
    moments = watch(model, sources=(MicroBatches(2),))
    moments.backward(lambda x: model(x).square().mean(), torch.ones(4, 6))
    return moments


@pytest.mark.parametrize("used", [watch, exact, in_micro_batches])
def test_a_watched_model_is_freed(used: Any) -> None:
    model = network({})
    moments = used(model)
    left = [weakref.ref(one) for one in (model, moments, *model.parameters())]
    del model, moments
    assert_freed(left)


@pytest.mark.parametrize("used", [watch, exact, in_micro_batches])
def test_watching_again_piles_up_no_hooks(used: Any) -> None:
    model = network({})
    moments = used(model)
    once = hooks_on(model)
    assert once > 0
    for _ in range(3):
        moments.remove()
        assert hooks_on(model) == 0
        moments = used(model)
        assert hooks_on(model) == once
    del moments  # those who forget `remove` leave nothing either
    gc.collect()
    assert hooks_on(model) == 0


def test_a_copy_does_not_keep_a_watched_model_alive() -> None:
    model = network({})
    moments = exact(model)
    copied = copy.deepcopy(model)
    left = [weakref.ref(one) for one in (model, moments, *model.parameters())]
    del model, moments
    assert_freed(left)
    copied(torch.ones(4, 6)).square().mean().backward()


def test_a_watched_model_can_be_written_to_a_file_and_is_not_watched_when_read() -> None:
    model = network({})
    moments = exact(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    moments.clear()
    read(torch.ones(4, 6)).square().mean().backward()
    assert all(q.count_nonzero() == 0 for q in moments.take().values())


def test_a_model_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    """On a GPU nobody can wait for it: the next model would not fit. A process of its own: the first DDP of a process
    leaves circles of torch's own behind."""
    program = f"""
import gc, weakref, torch, torch.distributed as dist, thinwire
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", store=dist.FileStore({str(tmp_path / "store")!r}, 1), rank=0, world_size=1)
gone = []
for _ in range(2):
    model = torch.nn.Linear(20, 20)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = thinwire.attach(ddp, "ef21(topk(0.1))", optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        ddp(torch.randn(4, 20)).sum().backward()
        optimizer.step()
    gc.collect()
    gc.disable()
    watched = weakref.ref(handle)
    del model, ddp, optimizer, handle
    gone.append(watched() is None)
    gc.enable()
print(gone)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True]", done.stdout + done.stderr

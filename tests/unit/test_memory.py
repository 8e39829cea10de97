"""How much memory a rule takes beside dense training: its state, once more to undo a step, and little else."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.moments import watch

WIDTH, LAYERS = 256, 6
PARAMETERS = LAYERS * WIDTH**2
BYTES = {  # a parameter, float32, beside dense DDP: docs/ddp.md states them
    "memsgd(topk(0.01))": 8,
    "memsgd(sign())": 8,
    "ef21(topk(0.01))": 16,
    "ef21sgdm(topk(0.01))": 24,
    "econtrol(topk(0.01))": 24,
    "vgc(1.5)": 20,  # with the second moments themselves
}


@pytest.fixture(scope="module")
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path_factory.mktemp("alone") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def live() -> int:
    """Bytes of all storages that some tensor in Python holds."""
    gc.collect()
    tensors = (thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, nn.Parameter))
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def after_steps(rule: str | None) -> int:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.5, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if rule is not None:
        chosen = thinwire.parse(rule)
        moments = watch(ddp, rule=chosen) if rule.startswith("vgc") else None
        thinwire.attach(ddp, chosen, optimizer, moments=moments)
    for _ in range(5):
        optimizer.zero_grad()
        ddp(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
    return live()


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(("rule", "expected"), BYTES.items())
def test_a_rule_takes_its_state_and_one_copy_to_undo_a_step(rule: str, expected: int) -> None:
    taken = (after_steps(rule) - after_steps(None)) / PARAMETERS
    assert expected <= taken <= expected * 1.1 + 0.5, taken


@pytest.mark.usefixtures("_alone")
def test_attaching_takes_no_memory_before_the_first_step() -> None:
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    ddp = DistributedDataParallel(model)
    before = live()
    handle = thinwire.attach(ddp, "ef21(topk(0.01))")
    assert live() - before < WIDTH**2
    assert not handle.state_dict()["slots"]["mean/weight"].any()

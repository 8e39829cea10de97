"""The private parts of torch's FSDP2: there in the version that is installed, and named where they are missing."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.checkpoint import checkpoint

import thinwire
from thinwire.engines.fsdp.innards import OF_GROUP, reduced_together
from thinwire.errors import AttachError


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("site", "shard"))
    dist.destroy_process_group()


def sharded(mesh: DeviceMesh) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    fully_shard(model[1], mesh=mesh["shard"])
    return fully_shard(model, mesh=mesh["shard"])


def test_the_installed_torch_has_all_that_is_read(mesh: DeviceMesh) -> None:
    model = sharded(mesh)
    last, first = reduced_together(model)
    assert (last.name, first.name) == ("1", "the root")
    assert last.parameters == [model[1].weight, model[1].bias]
    assert first.parameters == [model[0].weight, model[0].bias]
    assert not [*last.refusals, *first.refusals]
    assert last.hook is None
    assert not last.is_underway
    assert [last.divisor(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", OF_GROUP)
def test_what_another_torch_keeps_elsewhere_is_named(name: str, mesh: DeviceMesh) -> None:
    model = sharded(mesh)
    group = reduced_together(model)[0].group
    delattr(group, name)
    with pytest.raises(
        AttachError, match=rf"{torch.__version__.split('+')[0]}.*FSDPParamGroup\.{name}.*knows torch 2\.11 to 2\.13"
    ):
        thinwire.attach_fsdp(model, "ef21(topk(0.1))", mesh=mesh)


def test_several_groups_of_one_module_are_refused(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharded(mesh)
    state = model._get_fsdp_state()  # type: ignore[attr-defined]
    if not hasattr(state, "_fsdp_param_groups"):
        pytest.skip("before torch 2.12 a module has at most one")
    monkeypatch.setattr(state, "_fsdp_param_groups", state._fsdp_param_groups * 2)
    with pytest.raises(AttachError, match="2 groups of parameters"):
        thinwire.attach_fsdp(model, "ef21(topk(0.1))", mesh=mesh)


class Nested(nn.Module):
    """A layer within a reentrant checkpoint, between two others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.layers
        return third(checkpoint(second, first(x), use_reentrant=True))  # type: ignore[no-any-return]


def test_backward_passes_within_the_backward_pass_are_refused(mesh: DeviceMesh) -> None:
    model = Nested()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    handle = thinwire.attach_fsdp(model, "ef21(topk(0.1))", mesh=mesh)
    with pytest.raises(AttachError, match="use_reentrant=False"):
        model(torch.ones(2, 3)).sum().backward()
    assert handle.channel.step == 0


class Turns(nn.Module):
    """Two layers, one of which each call uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x: torch.Tensor, turn: int) -> torch.Tensor:
        return self.layers[turn](x).tanh()  # type: ignore[no-any-return]


class Called(nn.Module):
    """A module that is called twice, between two others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.turns, self.last = nn.Linear(3, 3), Turns(), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.turns(self.turns(self.first(x), 0), 1))  # type: ignore[no-any-return]


@pytest.mark.skipif(
    not hasattr(FSDPModule, "set_reduce_scatter_unused_params"),
    reason="torch before 2.13 has no set_reduce_scatter_unused_params",
)
def test_gradients_that_come_in_two_parts_are_added(mesh: DeviceMesh) -> None:
    """FSDP hands over a module's gradients after each of its calls, with zeros for what that call did not use."""
    model = Called()
    plain = copy.deepcopy(model)
    for module in (model.first, model.turns, model.last, model):
        fully_shard(module, mesh=mesh["shard"])
    for each in model.modules():
        if isinstance(each, FSDPModule):
            each.set_reduce_scatter_unused_params(True)
    thinwire.attach_fsdp(model, "plain(identity())", mesh=mesh)
    x = torch.arange(6.0).view(2, 3)
    with pytest.raises(AttachError, match="'turns' gave gradients a second time"):
        model(x).sum().backward()
    model.zero_grad()  # from now on the module waits for the end of the pass
    for one in (model, plain):
        one(x).sum().backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        assert torch.equal(mine.grad.full_tensor(), theirs.grad)  # type: ignore[attr-defined,arg-type]

"""How an FSDP2 model is sharded: which ranks hold its shards, and which of its parameters are reduced together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Shard as Placement

from thinwire.engines.ddp.holding import Holding
from thinwire.engines.flush import apply_
from thinwire.engines.fsdp.innards import ReducedTogether, local, reduced_together
from thinwire.engines.fsdp.plug import Hook, Unit
from thinwire.engines.sites.resharding import Resharding
from thinwire.engines.sites.shard import Shard
from thinwire.engines.sites.site_grid import Grid
from thinwire.errors import AttachError
from thinwire.exchange import Exchange, Group

HOW = (
    'mesh = init_device_mesh(device, (sites, members), mesh_dim_names=("site", "shard")); fully_shard(model, '
    'mesh=mesh["shard"]); attach_fsdp(model, rule, optimizer, mesh=mesh)'
)


@dataclass(frozen=True)
class Sharding:
    """A model's trained parameters by name, the mesh of its site, and its units in the order of their exchange."""

    named: Mapping[str, DTensor]
    parts: Mapping[str, Tensor]
    shards: Mapping[str, Shard]
    mesh: DeviceMesh
    units: Sequence[Unit]

    @staticmethod
    def of(model: nn.Module) -> Sharding:
        """As it stands; what cannot be served is an `AttachError`."""
        names = {id(p): name.replace("_orig_mod.", "") for name, p in model.named_parameters()}
        groups = [group for group in _groups(model) if group.parameters]
        named = {names[id(p)]: _checked(names[id(p)], p) for p in _in_model_order(names, groups)}
        if not named:
            raise AttachError(f"{type(model).__name__} has no parameters that are sharded and trained. {HOW}")
        mesh = next(iter(named.values())).device_mesh
        dims = {name: _placed(name, p, mesh).dim for name, p in named.items()}
        place_in_site = mesh.get_local_rank(), mesh.size()
        shards = {name: Shard(tuple(p.shape), dims[name], *place_in_site) for name, p in named.items()}
        parts = {name: local(p).detach() for name, p in named.items()}
        units = [
            Unit(
                group,
                place,
                place == len(groups) - 1,
                group.parameters,
                [parts[names[id(p)]] for p in group.parameters],
                [shards[names[id(p)]] for p in group.parameters],
            )
            for place, group in enumerate(groups)
        ]
        return Sharding(named, parts, shards, mesh, units)

    def grid(self, mesh: DeviceMesh | None, group: Any) -> Grid:
        """This rank's site and its counterparts."""
        if (mesh is None) == (group is None):
            raise AttachError(f"attach_fsdp takes either mesh= or group=, which join the sites: {HOW}")
        inside = self.mesh.get_group()
        if mesh is not None:
            return Grid.of_mesh(mesh, dist.get_process_group_ranks(inside))
        return Grid(Group(group), Group(inside))

    def check(self) -> None:
        """Refuse modules whose gradients cannot be exchanged."""
        for unit in self.units:
            name = unit.reduced.name
            for why in unit.reduced.refusals:
                raise AttachError(f"module {name!r} {why}")
            hook = unit.reduced.hook
            if isinstance(hook, Hook) and hook.plug.handle is not None:
                raise AttachError(
                    f"module {name!r} is attached already: call detach() on the handle that attach_fsdp returned"
                )
            if hook is not None and not isinstance(hook, Hook):
                raise AttachError(f"module {name!r} has an all-reduce hook already: set_all_reduce_hook(None) first")

    def holding(self, grid: Grid) -> Holding:
        """What a handle is made for."""
        apply = partial(_apply_, self.named, grid.inside)
        resharding = Resharding(self.shards, self.mesh)
        return Holding(self.named, self.parts, grid.council, apply, shard=grid.shard, resharding=resharding)

    def describe(self) -> dict[str, str]:
        """What must be the same on every rank beside the parameters: which of them are reduced together."""
        names = {id(part): name for name, part in self.parts.items()}
        return {
            f"FSDP's module {unit.place}": f"{unit.reduced.name}: {[names[id(part)] for part in unit.parts]}"
            for unit in self.units
        }


def _groups(model: nn.Module) -> list[ReducedTogether]:
    if not any(isinstance(module, FSDPModule) for module in model.modules()):
        raise AttachError(
            f"attach_fsdp takes a model to which fully_shard was applied, got {type(model).__name__}: {HOW}"
        )
    return reduced_together(model)


def _in_model_order(names: Mapping[int, str], groups: Sequence[ReducedTogether]) -> list[nn.Parameter]:
    """The trained parameters of all groups, in the order of the model: the same for every way to wrap it."""
    found = {id(parameter): parameter for group in groups for parameter in group.parameters}
    return [found[place] for place in names if place in found]


def _checked(name: str, parameter: Any) -> DTensor:
    if not isinstance(parameter, DTensor) or local(parameter).is_meta:
        raise AttachError(f"parameter {name!r} has no numbers yet: attach_fsdp comes after to_empty() and the start")
    if not parameter.is_floating_point():
        raise AttachError(f"parameter {name!r} is {parameter.dtype}; only real floating-point ones can be exchanged")
    if getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise AttachError(
            f"parameter {name!r} has a hook that uses its gradient within the backward pass, before sites have "
            "exchanged it: step an ordinary optimizer after backward()"
        )
    return parameter


def _placed(name: str, parameter: DTensor, mesh: DeviceMesh) -> Placement:
    """How a parameter is sharded; refused where it is not over the one dimension of a site."""
    (placement, *more) = parameter.placements
    if more or not isinstance(placement, Placement) or parameter.device_mesh != mesh:
        raise AttachError(
            f"parameter {name!r} is placed as {parameter.placements} on a mesh of shape "
            f"{tuple(parameter.device_mesh.shape)}: only Shard over the one mesh of a site is served. Native HSDP (a "
            "mesh of two dimensions) calls its hook after torch's own dense all-reduce between sites, and saves "
            f"nothing there; with tensor parallelism or other meshes use DDP's attach or none. {HOW}"
        )
    return placement


@torch.no_grad()
def _apply_(named: Mapping[str, DTensor], inside: Exchange, updates: Mapping[str, Tensor]) -> float:
    """Each member's shards; the norm of all of them together."""
    mine = apply_({name: local(named[name]) for name in updates}, updates)
    bits = torch.tensor([mine], dtype=torch.float64).view(torch.int64).tolist()
    rows = torch.tensor(inside.everyone(bits, "the norm of an update")).view(torch.float64)
    return math.sqrt(float(rows.square().sum()))

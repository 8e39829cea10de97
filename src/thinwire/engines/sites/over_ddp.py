"""`attach(..., exchange=Hierarchy(...))`: a DDP model whose gradients are averaged inside sites before they travel."""

from __future__ import annotations

import secrets
import weakref
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from thinwire.engines.ddp.agreement import agreement
from thinwire.engines.ddp.attachment import Attachment, check_model, trained
from thinwire.engines.ddp.handle import Handle
from thinwire.engines.ddp.holding import Holding
from thinwire.engines.ddp.hook import plug_in
from thinwire.engines.ddp.making import handle_of
from thinwire.engines.sites.resharding import Resharding
from thinwire.engines.sites.site_grid import Grid
from thinwire.engines.sites.site_mean import Held, SiteMean
from thinwire.errors import AttachError
from thinwire.exchange.group import assemble
from thinwire.exchange.hierarchy import Hierarchy
from thinwire.feedback import Auto, Rule
from thinwire.spec import rule_from


def attach_hierarchy(
    ddp: DistributedDataParallel, hierarchy: Hierarchy, rule: Rule | Auto | str, given: Attachment, patience: float
) -> Handle:
    """Give a DDP model a hook that averages inside a site and exchanges between sites."""
    assemble(ddp.process_group, "attach", timedelta(seconds=patience))
    mesh = mesh_of(ddp, hierarchy)
    grid = Grid.of_mesh(mesh, dist.get_process_group_ranks(mesh.get_group(1)))
    grid.check()
    with agreement(grid.council) as mine:
        check_model(ddp)
        held = Held(trained(ddp), grid.inside.rank, grid.inside.size)
        resharding = Resharding(held.shards, DeviceMesh.from_group(mesh.get_group(1), mesh.device_type))
        holding = Holding(
            held.named,
            held.parts,
            grid.council,
            partial(held.apply_, grid.inside),
            weakref.ref(ddp),
            grid.shard,
            resharding,
        )
        handle = handle_of(holding, grid.between, rule_from(rule), given, call="attach(ddp, rule, optimizer)", depth=5)
        mine |= handle.describe()
    handle.channel.run = grid.council.everyone([secrets.randbits(62)], "attach")[0][0]
    handle.plug = weakref.ref(plug_in(ddp, SiteMean(handle, grid.inside, held)))
    return handle


def mesh_of(ddp: DistributedDataParallel, hierarchy: Hierarchy) -> DeviceMesh:
    """Sites and their members: the user's own, or ranks one behind the other."""
    ranks = dist.get_process_group_ranks(ddp.process_group)
    members = hierarchy.members(len(ranks))
    if hierarchy.mesh is not None:
        if sorted(hierarchy.mesh.mesh.flatten().tolist()) != sorted(ranks):
            raise AttachError(
                f"the mesh holds the ranks {hierarchy.mesh.mesh.tolist()}, the model's process group {ranks}: build "
                "DDP over all of the mesh's ranks"
            )
        return hierarchy.mesh
    if len(ranks) < dist.get_world_size():
        raise AttachError(
            "sites= needs a model over all ranks: make a mesh of its ranks, and pass Hierarchy(mesh=mesh)"
        )
    kind = next(iter(trained(ddp).values())).device.type
    return DeviceMesh(kind, torch.tensor(ranks).view(-1, members), mesh_dim_names=("site", "member"))

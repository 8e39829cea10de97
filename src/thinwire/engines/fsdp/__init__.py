"""FSDP2: `attach_fsdp` has a sharded model average dense inside a site, and exchange by a rule between sites.

`fully_shard` over the ranks of a site reduces and scatters gradients there. The hook that it calls next, which
`plug.FsdpPlug` holds, hands this rank's shard to a DDP handle, among whose ranks are those that hold the same shard at
other sites:

    in the pass       each module's shards -> channel.send -> exchange.gather, which goes on beside the pass
    end of the pass   all messages are received; all ranks of all sites agree on whether the step is taken; gradients
                      are written, or NaN
"""

from __future__ import annotations

import secrets
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from thinwire.engines.ddp.agreement import agreement
from thinwire.engines.ddp.attachment import Attachment
from thinwire.engines.ddp.handle import Handle
from thinwire.engines.ddp.making import handle_of
from thinwire.exchange import Group
from thinwire.exchange.group import assemble
from thinwire.feedback import Rule
from thinwire.spec import rule_from

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

CALL = "attach_fsdp(model, rule, optimizer, mesh=mesh)"


def attach_fsdp(
    model: nn.Module,
    rule: Rule | str,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    mesh: DeviceMesh | None = None,
    group: Any = None,
    scaler: torch.amp.GradScaler | None = None,
    nonfinite: Literal["raise", "skip"] = "raise",
    seed: int = 0,
    ledger_every: int = 10,
    patience: float = 60.0,
) -> Handle:
    """Have a `fully_shard` model exchange its gradients between sites by `rule` (or its text); returns the handle.

    The model is sharded over the ranks of its site, one dimension of `mesh`; the other dimension joins the ranks that
    hold the same shard at other sites. In place of a mesh `group` may hold those. Each rank's memory covers its shard.
    A mesh of one rank a site is data parallelism without DDP. The other arguments are those of `attach`.

    Call it on every rank of every site, once, after the optimizer is built.

    >>> import torch
    >>> import torch.distributed as dist
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> from torch.distributed.fsdp import fully_shard
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("site", "shard"))
    >>> model = fully_shard(torch.nn.Linear(10, 1), mesh=mesh["shard"])
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> handle = attach_fsdp(model, "memsgd(topk(0.1))", optimizer, mesh=mesh)
    >>> model(torch.ones(4, 10)).mean().backward()
    >>> model.weight.grad.full_tensor().count_nonzero().item()
    1
    >>> dist.destroy_process_group()
    """
    from thinwire.engines.fsdp.plug import FsdpPlug  # torch.distributed.tensor takes a second to import
    from thinwire.engines.fsdp.sharding import Sharding

    sharding = Sharding.of(model)
    grid = sharding.grid(mesh, group)
    between = grid.between
    assert isinstance(between, Group)
    assemble(between.group, "attach_fsdp", timedelta(seconds=patience))
    grid.check()
    with agreement(grid.council) as mine:
        given = Attachment(optimizer, None, scaler, nonfinite, seed, ledger_every)
        sharding.check()
        handle = handle_of(sharding.holding(grid), between, rule_from(rule), given, call=CALL)
        mine |= handle.describe() | sharding.describe()
    handle.channel.run = grid.council.everyone([secrets.randbits(62)], "attach_fsdp")[0][0]
    plug = FsdpPlug(sharding.units, between.group)
    plug.handle, handle.plug = handle, weakref.ref(plug)
    return handle

"""Outer steps: every worker's own optimizer for some steps, then one exchange of how far the parameters moved.

After each step of the optimizer its hook calls `OuterHandle.advance`. When a fragment is due:

    send    Δ = start - θ of this worker (replica.Replica) -> channel.send -> exchange.gather
    land    at once, or `delay` steps later: channel.receive; ranks agree on whether the step is taken (as under DDP);
            the outer point steps (point.OuterPoint), and the parameters follow it
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.engines.ddp.agreement import agreement
from thinwire.engines.outer.attached import OuterAttachment
from thinwire.engines.outer.attached import OuterHandle as OuterHandle
from thinwire.engines.outer.replica import Replica
from thinwire.engines.outer.schedule import Outer as Outer
from thinwire.engines.outer.schedule import outer_from
from thinwire.engines.outer.schedule import sparse_loco as sparse_loco
from thinwire.engines.outer.simulated import OuterSimulation as OuterSimulation
from thinwire.errors import AttachError
from thinwire.exchange import Exchange, Group
from thinwire.exchange.group import assemble
from thinwire.feedback import Rule

_ATTACHED: weakref.WeakKeyDictionary[nn.Module, weakref.ref[OuterHandle]] = weakref.WeakKeyDictionary()
"""Models that have a handle, as long as it lives: their optimizer's hook keeps it."""


def attach_outer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    rule: Rule | str | Outer,
    every: int | None = None,
    *,
    lr: float | None = None,
    momentum: float | None = None,
    fragments: int | None = None,
    delay: int | None = None,
    alpha: float | None = None,
    group: Any = None,
    exchange: Exchange | None = None,
    nonfinite: Literal["raise", "skip"] = "raise",
    seed: int = 0,
    ledger_every: int = 10,
    patience: float = 60.0,
) -> OuterHandle:
    """Have workers exchange, every so many steps of their own optimizer, how far their parameters moved: see `Outer`.

    The training loop stays as it is; of several optimizers the last one's steps are counted. `rule` may be a rule, its
    text, or settings such as `sparse_loco()`, of which what is given here takes the place. A plain model exchanges with
    the ranks of `group` (by default all); with a DistributedDataParallel model inside each site, `group` holds this
    rank's counterparts, one of every site.

    Parameters with NaN or infinity raise `NonFiniteUpdate` on all ranks, or with `nonfinite="skip"` all go back to the
    last outer point. Buffers (batch norm's statistics) are each worker's own. Call it on every rank, once, with equal
    parameters.

    >>> import torch
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> model = torch.nn.Linear(10, 1)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> handle = attach_outer(model, optimizer, "memsgd(topk(0.1))", every=30)
    >>> model(torch.ones(4, 10)).mean().backward()
    >>> optimizer.step()  # the 30th exchanges
    >>> dist.destroy_process_group()
    """
    carrier: Exchange = Group(group) if exchange is None else exchange
    if exchange is None:
        assemble(carrier.group, "attach_outer", timedelta(seconds=patience))  # type: ignore[attr-defined]
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    module = _unwrapped(model)
    with agreement(carrier) as mine:
        settings = {"every": every, "lr": lr, "momentum": momentum, "fragments": fragments, "delay": delay}
        outer = outer_from(rule, **settings, alpha=alpha)
        parameters = _trained(module, optimizers)
        given = OuterAttachment(nonfinite, seed, ledger_every)
        replica = Replica(outer, parameters, rank=carrier.rank, size=carrier.size, seed=seed)
        handle = OuterHandle(replica, carrier, given)
        mine |= handle.settings()
    run = carrier.everyone([secrets.randbits(62)], "attach_outer")[0][0]
    for channel in replica.channels:
        channel.run = run
    handle.unhook = optimizers[-1].register_step_post_hook(handle.advance).remove
    _ATTACHED[module] = weakref.ref(handle)
    return handle


def _unwrapped(model: nn.Module) -> nn.Module:
    """The module itself, from inside torch.compile and DistributedDataParallel."""
    module = getattr(model, "_orig_mod", model)
    return module.module if isinstance(module, DistributedDataParallel) else module


def _trained(module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """The parameters that are exchanged, by their names in the plain module; refuses what cannot be."""
    known = _ATTACHED.get(module)
    if known is not None and (handle := known()) is not None and not handle.detached:
        raise AttachError(
            "this model takes outer steps already: call detach() on the handle that attach_outer returned"
        )
    pairs = [(name.replace("_orig_mod.", ""), p) for name, p in module.named_parameters() if p.requires_grad]
    if not pairs:
        raise AttachError("the model has no parameter that is trained (requires_grad=True)")
    held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, parameter in pairs if id(parameter) not in held]
    if missing:
        raise AttachError(
            f"the optimizer does not hold {len(missing)} of the model's {len(pairs)} parameters, such as "
            f"{missing[0]!r}: build it from the parameters of this very model, give all optimizers in a list, or set "
            "requires_grad=False on what is not trained"
        )
    for name, parameter in pairs:
        if not parameter.is_floating_point() or type(parameter).__name__ == "DTensor":
            kind = f"{parameter.dtype} {type(parameter).__name__}"
            raise AttachError(f"parameter {name!r} is a {kind}; only whole, real floating-point ones can be exchanged")
    return dict(pairs)

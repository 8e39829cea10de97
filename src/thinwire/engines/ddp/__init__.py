"""DistributedDataParallel: `attach` gives a model a comm hook that exchanges its buckets through a channel.

When a bucket is ready, DDP calls `hook.hook`, and that `Handle.exchange`:

    first bucket     the step begins: ranks look at what they must have in common, such as step sizes (verdict.Common)
    each bucket      gradients in logical order (bucket.MemoryOrder) -> channel.send -> exchange.gather, which goes on
                     beside the backward pass
    last bucket      all messages are awaited and received (channel.receive), and ranks agree on whether the step is
                     taken (verdict.Verdict); DDP gets the gradients, or NaN
    end of backward  channel.finish: states advance on all ranks, or on none
"""

from __future__ import annotations

import logging
import secrets
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import torch

from thinwire.checkpoint import OnResize
from thinwire.engines.ddp.agreement import agreement
from thinwire.engines.ddp.attachment import Attachment, check_exchange, check_model, unwrapped
from thinwire.engines.ddp.beside import Folder, warn_of_nothing
from thinwire.engines.ddp.handle import Handle as Handle
from thinwire.engines.ddp.holding import Holding
from thinwire.engines.ddp.hook import plug_in
from thinwire.engines.ddp.making import WATCHED, handle_of
from thinwire.exchange import Exchange, Group, exchange_of
from thinwire.exchange.group import assemble
from thinwire.exchange.hierarchy import Hierarchy
from thinwire.feedback import Auto, Rule
from thinwire.spec import method_from

if TYPE_CHECKING:
    from thinwire.moments import Moments

LOG = logging.getLogger("thinwire")


def attach(
    ddp: torch.nn.Module,
    rule: Rule | Auto | str,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    moments: Moments | None = None,
    scaler: torch.amp.GradScaler | None = None,
    nonfinite: Literal["raise", "skip", "late"] = "raise",
    seed: int = 0,
    ledger_every: int = 10,
    patience: float = 60.0,
    exchange: Exchange | Hierarchy | str | None = None,
) -> Handle:
    """Make a DistributedDataParallel model exchange its gradients by `rule` (or its text), and return the handle.

    Call it on every rank, once, after the optimizer is built. `optimizer` tells the step sizes that `MemSGD` needs,
    `moments=thinwire.moments.watch(ddp)` the second moments that `VGC` needs; `scaler` the loss scale, if there is one.
    A gradient with NaN or infinity on any rank raises `NonFiniteGradient` on all at the end of `backward()`, or with
    `nonfinite="skip"` gives NaN gradients, so that the scaler skips the step, or with `nonfinite="late"` makes a fused
    optimizer skip it and raises when the next forward pass begins, so that no GPU waits; no state advances. Ranks that
    do not come to `attach` within `patience` seconds of each other are named. `exchange` moves the bytes: "gather" (or
    None) gives everyone's messages to all, "server" makes each rank the server of a share of the numbers, a
    `thinwire.exchange.Hierarchy` is dense inside sites and by the rule between them, and an object takes the place of
    the model's process group (`thinwire.exchange.Exchange` says what it must offer).

    >>> import torch
    >>> import torch.distributed as dist
    >>> from torch.nn.parallel import DistributedDataParallel
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> ddp = DistributedDataParallel(torch.nn.Linear(10, 1))
    >>> optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    >>> handle = attach(ddp, "memsgd(topk(0.1))", optimizer)
    >>> ddp(torch.ones(4, 10)).mean().backward()  # .grad now holds what was exchanged: 1 weight of 10, and the bias
    >>> ddp.module.weight.grad.count_nonzero().item()
    1
    >>> dist.destroy_process_group()
    """
    module = unwrapped(ddp)
    if isinstance(exchange, Hierarchy):
        from thinwire.engines.sites.over_ddp import attach_hierarchy  # torch's device meshes take a second to import

        given = Attachment(optimizer, None, scaler, nonfinite, seed, ledger_every)
        return attach_hierarchy(module, exchange, rule, given, patience)
    carrier = exchange_of(exchange, lambda: Group(module.process_group))
    check_exchange(carrier, module)
    assemble(module.process_group, "attach", timedelta(seconds=patience))
    with agreement(carrier) as mine:
        check_model(module)
        given = Attachment(optimizer, moments, scaler, nonfinite, seed, ledger_every)
        holding, call = Holding.of_ddp(module, carrier), "attach(ddp, rule, optimizer)"
        handle = handle_of(holding, carrier, method_from(rule), given, call=call, moments=WATCHED)
        mine |= handle.describe()
    handle.channel.run = carrier.everyone([secrets.randbits(62)], "attach")[0][0]
    handle.plug = weakref.ref(plug_in(module, handle))
    return handle


@dataclass(frozen=True)
class Wish:
    """What the doors to frameworks hold until the framework has wrapped the model: a method, and what `attach` is to be
    given beside it."""

    rule: Rule | Auto
    on_resize: OnResize = "raise"
    """What becomes of a state that another number of ranks saved."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `attach`; `moments` may be a function that is given the wrapped model, such as `thinwire.moments.watch`."""

    @staticmethod
    def of(rule: Rule | Auto | str, on_resize: OnResize, options: Mapping[str, Any]) -> Wish:
        """Read the rule, so that a mistake in it is found here and not when training starts."""
        return Wish(method_from(rule), on_resize, dict(options))

    def attach(self, model: torch.nn.Module, optimizer: Any, scaler: Any, ranks: int) -> Handle | None:
        """The handle; None where there is one process and the framework has wrapped nothing: nothing travels there."""
        if ranks == 1 and not hasattr(model, "register_comm_hook"):
            LOG.warning("one process and no DistributedDataParallel: nothing to exchange, so thinwire stands aside")
            return None
        options = dict(self.options)
        if callable(options.get("moments")):
            options["moments"] = options["moments"](model)
        if scaler is not None:
            options = {"scaler": scaler, "nonfinite": "skip", **options}
        bare = getattr(optimizer, "optimizer", optimizer)  # frameworks put wrappers around torch's
        return attach(model, self.rule, bare, **options)

    def load(self, handle: Handle, folder: Folder) -> None:
        """Load the parts in a framework's checkpoint folder; it is said if there are none."""
        if not handle.load(folder, on_resize=self.on_resize):
            warn_of_nothing(folder)

"""What a DDP model holds of thinwire: a plug, into which one handle at a time is put."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with the types themselves.

import logging
from typing import Protocol

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from thinwire.errors import AttachError

LOG = logging.getLogger("thinwire")


class Exchanges(Protocol):
    """What exchanges buckets: a handle."""

    def exchange(self, bucket: GradBucket) -> Future[Tensor]: ...


class Plugs(Protocol):
    """What a handle is put into."""

    def unplug(self) -> None:
        """Take the handle out: gradients are averaged dense from now on."""


class Plug:
    """The state of DDP's hook. DDP cannot drop a hook: without a handle it averages gradients as DDP itself does.

    A copy of the model (`copy.deepcopy`, `torch.save`, an `AveragedModel`) has a reducer of its own, without any hook:
    its plug is loose, and the copy exchanges nothing through thinwire until it is attached itself.
    """

    def __init__(self, group: dist.ProcessGroup | None, *, loose: bool = False) -> None:
        self.group, self.loose = group, loose
        self.handle: Exchanges | None = None

    def unplug(self) -> None:
        """Take the handle out."""
        self.handle = None

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        if self.handle is not None:
            LOG.warning("a copy of an attached DDP model is not attached: call thinwire.attach on it to compress there")
        return _loose, ()


def _loose() -> Plug:
    return Plug(None, loose=True)


def hook(plug: Plug, bucket: GradBucket) -> Future[Tensor]:
    """The hook that DDP calls for each bucket; all is in the handle."""
    if plug.handle is not None:
        return plug.handle.exchange(bucket)
    assert plug.group is not None  # a loose plug is in no reducer
    return allreduce_hook(plug.group, bucket)


def plug_of(ddp: DistributedDataParallel) -> Plug | None:
    """The model's empty plug, if it had a handle before; refuses a model whose only hook is taken."""
    hooks = [state for _, state in getattr(ddp, "_comm_hooks", [])]
    plugs = [state for state in hooks if isinstance(state, Plug)]
    if len(hooks) > len(plugs):
        raise AttachError("this DDP model has a comm hook already, and DDP takes only one: build a new DDP model")
    if any(plug.handle is not None for plug in plugs):
        raise AttachError(
            "this DDP model is attached already: call detach() on the handle that attach returned, or build a new DDP "
            "model"
        )
    return next((plug for plug in plugs if not plug.loose), None)


def plug_in(ddp: DistributedDataParallel, handle: Exchanges) -> Plug:
    """Have a model's buckets exchanged by a handle."""
    plug = plug_of(ddp)
    if plug is None:
        plug = Plug(ddp.process_group)
        ddp._comm_hooks.clear()  # loose plugs, which came with a copy
        ddp.register_comm_hook(plug, hook)
    plug.handle = handle
    return plug

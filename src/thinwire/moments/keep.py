"""Hold a tensor from the forward to the backward pass as autograd holds its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from thinwire.errors import MomentError


class _Saved(torch.autograd.Function):
    """A node beside the graph, whose only purpose is what it saves."""

    @staticmethod
    def forward(ctx: Any, trigger: Tensor, tensor: Tensor) -> Tensor:
        ctx.save_for_backward(tensor)
        return trigger.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None


@cache
def _trigger() -> Tensor:
    """What makes autograd record a node: a tensor that requires a gradient."""
    return torch.empty(0, requires_grad=True)


def keep(tensor: Tensor) -> Callable[[], Tensor]:
    """A function that gives the tensor back, once.

    It is saved through autograd, so checkpointing recomputes it, offloading fetches it, and a change in place since
    then is an error, all as for the tensors that the module itself saves; and it shares their memory.
    """
    beside = _Saved.apply(_trigger(), tensor.detach())  # type: ignore[no-untyped-call]

    def back() -> Tensor:
        # Through the output: before torch 2.13 a node dies with it, whoever holds the node's Python object.
        saved: tuple[Tensor, ...] = beside.grad_fn.saved_tensors
        if not saved:  # torch.compile has traced the hooks, and the node with them
            raise MomentError("the model was compiled while it was watched: call torch.compile first, then watch")
        return saved[0]

    return back

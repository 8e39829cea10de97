"""Late: a step that may not be taken is skipped by the optimizer on the device, and the host hears of it afterwards.

With `nonfinite="raise"` the host waits at the end of each backward pass until it knows that the step stands. A GPU has
nothing to do in that time, and while the host then launches the optimizer: 1.2 ms of a step of 45 on an H200 (GPT-2,
124 M parameters, fused AdamW). torch's fused optimizers look at a number on the device, `found_inf`, and leave
everything as it is where that is 1: this is how a gradient scaler makes them skip a step. So the verdict goes there,
and the host looks at it in the next backward pass. (Not earlier where it happens to know it: ranks would look at
different moments, between which there are collectives of others.)
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from thinwire.errors import AttachError


def check_late(optimizer: Optimizer | None, scaler: torch.amp.GradScaler | None) -> None:
    """Refuse what cannot skip a step on the device."""
    fused = optimizer is not None and all(group.get("fused") for group in optimizer.param_groups)
    if not fused:
        raise AttachError(
            'nonfinite="late" needs an optimizer that can skip a step on the device: one of torch\'s with fused=True '
            '(Adam, AdamW, SGD, Adagrad), given as attach(ddp, rule, optimizer). Else use nonfinite="raise"'
        )
    if optimizer is not None and any(g.get("momentum") and g.get("dampening") for g in optimizer.param_groups):
        raise AttachError(
            'nonfinite="late" cannot begin a momentum with dampening, for torch dampens no first gradient: use '
            'dampening=0 or nonfinite="raise"'
        )
    if scaler is not None and scaler.is_enabled():
        raise AttachError('a gradient scaler skips steps itself: use nonfinite="skip" with it in place of "late"')


class Late:
    """What one optimizer is told of the step under way, and whether the host has still to hear of it."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer: weakref.ref[Any] = weakref.ref(optimizer)
        begin_momentum_(optimizer)
        self._refused: Tensor | None = None
        self._event: torch.cuda.Event | None = None

    @property
    def is_pending(self) -> bool:
        """Whether a step was given to the optimizer, and the host does not know yet whether it was taken."""
        return self._refused is not None

    def tell(self, refused: Tensor) -> None:
        """Have the optimizer skip its step where this is 1; all ranks say the same."""
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.found_inf = refused
        self._refused, self._event = refused, None
        if refused.is_cuda:
            self._refused = torch.empty((), dtype=refused.dtype, pin_memory=True)
            self._refused.copy_(refused, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def heard(self) -> bool:
        """Whether the step was refused; from now on it is not in doubt."""
        refused, self._refused = self.is_refused, None
        return refused

    @property
    def is_refused(self) -> bool:
        """Whether the step in doubt was refused: waits until the device has got so far."""
        assert self._refused is not None
        if self._event is not None:
            self._event.synchronize()
        return bool(self._refused)

    def release(self) -> None:
        """The optimizer takes every step again."""
        optimizer = self._optimizer()
        if optimizer is not None and hasattr(optimizer, "found_inf"):
            del optimizer.found_inf


def begin_momentum_(optimizer: Optimizer) -> None:
    """Zeros where SGD has no momentum yet: without them a first step that is skipped leaves what is not initialised."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("momentum") else ():
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)

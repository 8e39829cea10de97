"""Late: a step that may not be taken is skipped by the optimizer on the device, and the host hears of it afterwards.

With `nonfinite="raise"` the host waits at the end of each backward pass until it knows that the step stands. A GPU has
nothing to do in that time, and while the host then launches the optimizer: 1.2 ms of a step of 45 on an H200 (GPT-2,
124 M parameters, fused AdamW). torch's fused optimizers look at a number on the device, `found_inf`, and leave
everything as it is where that is 1: this is how a gradient scaler makes them skip a step. So the verdict goes there,
and the host looks at it when the next forward pass begins if it has come by then, and else in the next backward pass.
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
    if scaler is not None and scaler.is_enabled():
        raise AttachError('a gradient scaler skips steps itself: use nonfinite="skip" with it in place of "late"')


class Late:
    """What one optimizer is told of the step under way, and whether the host has still to hear of it."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer: weakref.ref[Any] = weakref.ref(optimizer)
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

    @property
    def is_known(self) -> bool:
        """Whether the host need not wait to hear of it."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def heard(self) -> bool:
        """Whether the step was refused; from now on the host knows."""
        refused, self._refused = self._refused, None
        assert refused is not None
        if not self.is_known and self._event is not None:
            self._event.synchronize()
        return bool(refused)

    def release(self) -> None:
        """The optimizer takes every step again."""
        optimizer = self._optimizer()
        if optimizer is not None and hasattr(optimizer, "found_inf"):
            del optimizer.found_inf

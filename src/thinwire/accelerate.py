"""Accelerate: attach after `prepare`, and have `save_state` and `load_state` keep every rank's state.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    handle = thinwire.accelerate.attach(accelerator, model, "memsgd(topk(0.01))", optimizer)

`accelerator.register_for_checkpointing(handle)` would save rank 0's state alone.
"""

from __future__ import annotations

from typing import Any

import torch

from thinwire.checkpoint import OnResize
from thinwire.engines.ddp import Handle, Wish
from thinwire.extras import require
from thinwire.feedback import Auto, Rule

require("accelerate", "accelerate", "thinwire.accelerate")


def attach(
    accelerator: Any,
    model: torch.nn.Module,
    rule: Rule | Auto | str,
    optimizer: Any,
    *,
    on_resize: OnResize = "raise",
    **options: Any,
) -> Handle | None:
    """Exchange the gradients of a prepared model by a rule (or its text), and return the handle.

    From here on `accelerator.save_state` writes one file a rank into its folder, and `load_state` reads it.
    `accelerator.log(handle.ledger.metrics())` shows the ledger to trackers. Where a single process runs, Accelerate
    wraps no model, nothing is exchanged and the result is None. Other arguments are those of `thinwire.attach`;
    `on_resize` says what becomes of a checkpoint that another number of ranks wrote.

    >>> import accelerate, torch
    >>> accelerator = accelerate.Accelerator(cpu=True)
    >>> model = torch.nn.Linear(10, 1)
    >>> model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> attach(accelerator, model, "memsgd(topk(0.01))", optimizer) is None  # a single process
    True
    """
    wish = Wish.of(rule, on_resize, options)
    handle = wish.attach(model, optimizer, accelerator.scaler, accelerator.num_processes)
    if handle is not None:
        _keep(accelerator, wish, handle)
    return handle


def _keep(accelerator: Any, wish: Wish, handle: Handle) -> None:
    """Hooks that Accelerate runs on every rank."""

    def save(models: Any, weights: Any, folder: str) -> None:
        handle.save(folder)

    def load(models: Any, folder: str) -> None:
        wish.load(handle, folder)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)

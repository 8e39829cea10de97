"""What the doors to frameworks share: a wish to attach, granted once the framework has wrapped the model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from thinwire.checkpoint import OnResize
from thinwire.engines.ddp import Handle, attach
from thinwire.errors import CheckpointWarning
from thinwire.feedback import Rule
from thinwire.spec import rule_from

LOG = logging.getLogger("thinwire")


@dataclass(frozen=True)
class Wish:
    """A rule (or its text) and what `attach` is to be given beside it, checked before there is a model to attach."""

    rule: Rule
    on_resize: OnResize = "raise"
    """What becomes of a state that another number of ranks saved."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `attach`; `moments` may be a function that is given the wrapped model, such as `thinwire.moments.watch`."""

    @staticmethod
    def of(rule: Rule | str, on_resize: OnResize, options: Mapping[str, Any]) -> Wish:
        """Read the rule, so that a mistake in it is found here and not when training starts."""
        return Wish(rule_from(rule), on_resize, dict(options))

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
        return attach(model, self.rule, bare(optimizer), **options)

    def load(self, handle: Handle, folder: str | Path) -> None:
        """Load the parts in a framework's checkpoint folder; it is said if there are none."""
        if not handle.load(folder, on_resize=self.on_resize):
            warn_of_nothing(folder)


def bare(optimizer: Any) -> torch.optim.Optimizer:
    """The torch optimizer inside a framework's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)  # type: ignore[no-any-return]


def warn_of_nothing(checkpoint: object) -> None:
    """A checkpoint from before thinwire, or from which its files were taken."""
    warnings.warn(
        f"{checkpoint} holds no state of thinwire: model and optimizer are resumed, and memories begin empty",
        CheckpointWarning,
        stacklevel=2,
    )

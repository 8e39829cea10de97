"""Lightning: a callback that attaches thinwire to the model which the DDP strategy has wrapped.

    trainer = Trainer(strategy="ddp", callbacks=[thinwire.lightning.Thinwire("memsgd(topk(0.01))")])

Lightning's own `DDPStrategy(ddp_comm_hook=...)` is registered on CUDA devices only and ignored on others.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from thinwire.checkpoint import OnResize
from thinwire.engines.ddp import Handle, Wish
from thinwire.engines.ddp.beside import warn_of_nothing
from thinwire.errors import AttachError
from thinwire.extras import require
from thinwire.feedback import Auto, Rule

# The same code is published as two packages, whose classes differ: the one that the user has imported is meant.
_PACKAGE = "lightning.pytorch" if "lightning.pytorch" in sys.modules else "pytorch_lightning"
_Callback: Any = require(_PACKAGE, "lightning", "thinwire.lightning").Callback
BAR = {"sent_bytes": "MB sent", "ratio_fp32": "× fewer", "residual_ratio": "residual"}
"""What the bar calls the ledger's totals."""


class Thinwire(_Callback):  # type: ignore[misc]
    """Exchanges gradients by a rule (or its text) from the start of `fit`; `handle` is what `attach` returned.

    Checkpoints hold the states of all ranks. They travel to rank 0, which writes the file: as many bytes as the states
    have, and as much of rank 0's memory. The logger and the progress bar show the ledger. Other arguments are those of
    `thinwire.attach`; `on_resize` says what becomes of a checkpoint that another number of ranks wrote.

    >>> print(Thinwire("memsgd(topk(0.01))").rule)
    memsgd(topk(0.01))
    """

    def __init__(self, rule: Rule | Auto | str, *, on_resize: OnResize = "raise", **options: Any) -> None:
        self._wish = Wish.of(rule, on_resize, options)
        self._saved: Mapping[str, Any] | None = None
        self.handle: Handle | None = None
        """Of the last `fit`."""

    @property
    def rule(self) -> Rule | Auto:
        """The rule."""
        return self._wish.rule

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The strategy has wrapped the model and built the optimizer: attach, and load what a checkpoint held."""
        if len(trainer.optimizers) != 1:
            raise AttachError(
                f"one optimizer is exchanged for, configure_optimizers gives {len(trainer.optimizers)}: put the "
                "parameters into groups of one optimizer, or attach thinwire to each DDP model by hand"
            )
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.handle = self._wish.attach(trainer.strategy.model, trainer.optimizers[0], scaler, trainer.world_size)
        saved, self._saved = self._saved, None
        if self.handle is not None and saved is not None:
            self.handle.load_state_dict(saved, on_resize=self._wish.on_resize)
        elif self.handle is not None and trainer.ckpt_path is not None:
            warn_of_nothing(trainer.ckpt_path)

    def state_dict(self) -> dict[str, Any]:
        """All ranks' states, for the one file that rank 0 writes. Lightning asks on every rank."""
        return {} if self.handle is None else self.handle.merged_state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep the state until there is a handle: Lightning restores callbacks before it wraps the model."""
        self._saved = state_dict

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the ledger about as often as Lightning logs; in the bar, whose columns are narrow, by short names."""
        step, last = trainer.global_step, trainer.is_last_batch
        if self.handle is not None and (last or (step and step % max(trainer.log_every_n_steps, 1) == 0)):
            metrics = self.handle.ledger.metrics("")
            pl_module.log_dict({f"thinwire/{key}": value for key, value in metrics.items()}, rank_zero_only=True)
            shown = {BAR[key]: value / (1e6 if key == "sent_bytes" else 1) for key, value in metrics.items()}
            pl_module.log_dict(shown, prog_bar=True, logger=False, rank_zero_only=True)

"""The Trainer of transformers: a callback that attaches thinwire to the model which the Trainer has wrapped.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[ThinwireCallback("memsgd(topk(0.01))")])

Pretrained models get DDP's `find_unused_parameters` from the Trainer, for which ranks agree in every bucket on what was
used: `TrainingArguments(ddp_find_unused_parameters=False)` saves that round.
"""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

from thinwire.checkpoint import OnResize
from thinwire.engines.ddp import Handle, Wish
from thinwire.errors import AttachError, OptimizerWarning, StateError
from thinwire.extras import require
from thinwire.feedback import Auto, Need, Rule

_transformers: Any = require("transformers", "transformers", "thinwire.transformers")


class ThinwireCallback(_transformers.TrainerCallback):  # type: ignore[misc]
    """Exchanges gradients by a rule (or its text) from the start of `train`; `handle` is what `attach` returned.

    Each checkpoint folder gets a file of every rank. Training that resumes reads them from there: from
    `args.resume_from_checkpoint` if that is a path, else from `checkpoint-STEP` in the output folder;
    `resume_from` names another. Logs and the bar show the ledger. Other arguments are those of `thinwire.attach`;
    `on_resize` says what becomes of a checkpoint that another number of ranks wrote.

    >>> print(ThinwireCallback("memsgd(topk(0.01))").rule)
    memsgd(topk(0.01))
    """

    def __init__(
        self,
        rule: Rule | Auto | str,
        *,
        on_resize: OnResize = "raise",
        resume_from: str | Path | None = None,
        **options: Any,
    ) -> None:
        self._wish, self._resume_from = Wish.of(rule, on_resize, options), resume_from
        self.handle: Handle | None = None
        """Of the last `train`."""

    @property
    def rule(self) -> Rule | Auto:
        """The rule."""
        return self._wish.rule

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer has wrapped the model and resumed it: attach, and load every rank's state."""
        trainer = self._trainer()
        scaler = trainer.accelerator.scaler
        self.handle = self._wish.attach(trainer.model_wrapped, trainer.optimizer, scaler, args.world_size)
        if self.handle is None:
            return
        self._warn_of_clipping(args.max_grad_norm)
        handler = trainer.callback_handler  # first of all, so that every logger gets what `on_log` adds
        handler.callbacks = [self, *(each for each in handler.callbacks if each is not self)]
        if state.global_step:
            self._load(self.handle, args, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer has written a checkpoint: put every rank's state beside it."""
        if self.handle is not None and not args.save_only_model:
            self.handle.save(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Add the ledger to what is logged of a step."""
        if self.handle is not None and logs is not None and "loss" in logs:
            metrics = self.handle.ledger.metrics()
            logs |= metrics
            state.log_history[-1] |= metrics

    def _trainer(self) -> Any:
        """The Trainer that holds this callback. It gives callbacks the bare model only, and itself to none of them."""
        for one in gc.get_objects():
            if issubclass(type(one), _transformers.Trainer) and self in one.callback_handler.callbacks:
                return one
        raise AttachError("no Trainer holds this callback: Trainer(..., callbacks=[ThinwireCallback(rule)])")

    def _load(self, handle: Handle, args: Any, step: int) -> None:
        """Load every rank's part from the checkpoint that is being resumed, which the Trainer does not name."""
        given = self._resume_from or args.resume_from_checkpoint
        named = isinstance(given, str | Path) and given not in ("True", "true")
        folder = Path(given) if named else Path(args.output_dir) / f"checkpoint-{step}"
        self._wish.load(handle, folder)
        if not folder.is_dir():
            raise StateError(
                f"training resumes at step {step}, and {folder} is not there to read thinwire's state from: name the "
                "checkpoint's folder by ThinwireCallback(rule, resume_from=FOLDER)"
            )

    def _warn_of_clipping(self, limit: float | None) -> None:
        if limit and self.handle is not None and Need.STEP_SIZE in self.handle.channel.needs:
            warnings.warn(
                f"the Trainer clips gradients to a norm of {limit:g} (max_grad_norm, whose default is 1). {self.rule} "
                "hands over sums of many gradients, whose norm is many times that of one; what is clipped of them is "
                "lost: set TrainingArguments(max_grad_norm=0)",
                OptimizerWarning,
                stacklevel=2,
            )

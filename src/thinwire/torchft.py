"""The door to elastic training by torchft: replicas that are lost, and come back, without a loss of what was not sent.

    optimizer = thinwire.torchft.attach_elastic(manager, model, "memsgd(topk(0.01))", optimizer)

in place of torchft's own DistributedDataParallel and Optimizer: the loop that trains stays as it is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.engines.elastic.participant import ElasticHandle, Elasticity
from thinwire.errors import AttachError, PeerLost, QuorumError
from thinwire.exchange import Group
from thinwire.extras import require
from thinwire.feedback import Rule
from thinwire.spec import rule_from

if TYPE_CHECKING:
    from thinwire.moments import Moments

LOG = logging.getLogger("thinwire")
KEY = "thinwire"
"""Under which the state that a newcomer takes is registered with the manager."""


def attach_elastic(
    manager: Any,
    model: nn.Module,
    rule: Rule | str,
    optimizer: torch.optim.Optimizer,
    *,
    moments: Moments | None = None,
    nonfinite: Literal["raise", "skip"] = "raise",
    fold: bool = True,
    seed: int = 0,
    ledger_every: int = 10,
) -> ElasticOptimizer:
    """Have the replicas of a `torchft.Manager` exchange gradients by `rule`, and return the optimizer to train with.

    `model` is the plain module, the same on every replica in its names and shapes; weights and the optimizer's state
    are taken from a replica of the run, at the start too. Build the manager with `use_async_quorum=False`: a replica
    that joins must have its weights before its forward pass. A step on which a replica is lost is taken by none of the
    rest; with `fold` its gradient is added to the memory of a rule that has one (go on to the next batch), else it is
    dropped.
    """
    torchft = require("torchft", "torchft", "elastic training")
    _check_manager(manager, torchft)
    if isinstance(model, DistributedDataParallel):
        raise AttachError(
            "attach_elastic takes the plain module, and takes DistributedDataParallel's place: pass ddp.module"
        )
    given = Elasticity(moments, nonfinite, fold, seed, ledger_every)
    handle = ElasticHandle(model, rule_from(rule), optimizer, given)
    return ElasticOptimizer(manager, model, optimizer, handle)


class ElasticOptimizer:
    """What `attach_elastic` returns: an optimizer each of whose steps all replicas take, or none.

    `zero_grad` asks who is there, and takes a newcomer's state; `step` exchanges the gradients and gives whether the
    step was taken. `handle` has the ledger, the roster, and who left.
    """

    def __init__(self, manager: Any, model: nn.Module, optimizer: torch.optim.Optimizer, handle: ElasticHandle) -> None:
        self.manager, self.optimizer, self.handle = manager, optimizer, handle
        self._model, self._group = model, None
        manager.register_state_dict_fn(KEY, self._load, self._state)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begin a step: the manager forms a quorum, and a replica that lags behind takes the state of another."""
        self.manager.start_quorum()
        self.optimizer.zero_grad(set_to_none)
        try:
            self._enroll()
        except (PeerLost, QuorumError) as error:
            self._report(error)

    def step(self) -> bool:
        """Exchange the gradients, and take the step if all replicas can. Gives whether it was taken."""
        try:
            if not self.manager.errored() and not self.handle.exchange():
                return False
        except (PeerLost, QuorumError) as error:
            self._report(error)
        return self._end()

    def _end(self) -> bool:
        """Take the step that is open, or take it back: also where the manager cannot say."""
        taken = False
        try:
            taken = bool(self.manager.should_commit())
        finally:
            if not taken:
                self.handle.revoke()
        if taken:
            self.optimizer.step()
            self.handle.commit()
        return taken

    def _enroll(self) -> None:
        """Go on in the group that the manager has formed, if it is another one than before."""
        if self.manager.errored():
            return
        group = self.manager._pg.parent
        if group is self._group:
            return
        self._group = None
        try:
            self.handle.enroll(Group(group))
        except QuorumError:
            if (
                self.handle.astray
            ):  # torchft gives a state to whoever is behind: by the steps it counts, which are alike
                self.manager.load_state_dict({**self.manager.state_dict(), "step": self.manager.current_step() - 1})
            raise
        self._group = group

    def _report(self, error: Exception) -> None:
        """Have the manager give up this step, and form another quorum for the next."""
        LOG.info("a step is given up: %s", error)
        self.manager.report_error(error)

    def _state(self) -> dict[str, Any]:
        """What a newcomer takes."""
        return {
            "model": self._model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "shared": self.handle.shared_state(),
        }

    def _load(self, state: dict[str, Any]) -> None:
        self._group = None
        self.handle.load_shared_state(state["shared"])
        self._model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def _check_manager(manager: Any, torchft: Any) -> None:
    """Refuse a manager under which states cannot be kept together."""
    if not isinstance(manager, torchft.Manager):
        raise AttachError(f"attach_elastic takes a torchft.Manager, got {type(manager).__name__}")
    if manager._use_async_quorum:
        raise AttachError(
            "a replica that joins would compute its first gradient at weights that are not the run's: build the "
            "manager with use_async_quorum=False"
        )
    if manager._replica_world_size_mode.name != "DYNAMIC":
        raise AttachError("spare replicas would send nothing and remember it: use WorldSizeMode.DYNAMIC, the default")
    if manager._group_world_size != 1:
        raise AttachError(
            f"each replica must be one process, this one has {manager._group_world_size}: sharded ones are not served"
        )
    if not hasattr(type(manager._pg), "parent"):
        raise AttachError(
            f"{type(manager._pg).__name__} keeps its group in another process: use torchft.ProcessGroupGloo"
        )

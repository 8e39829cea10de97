"""An update as a torch optimizer, for training loops, schedules and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from thinwire.errors import ConfigError, StateError
from thinwire.updates.steps import Update


class UpdateOptimizer(torch.optim.Optimizer):
    """x <- (1 - lr weight_decay) x, then `update(x, .grad, lr)`, for each parameter group.

    A group may have its own `update`, `lr` and `weight_decay`. There is no momentum: rules such as `ef21sgdm` apply it
    on the workers, before anything is lost. Parameters without a gradient stay as they are. An update that looks at all
    parameters (`Normalised`) looks at those of its group.

    >>> import torch
    >>> from thinwire.updates import NewtonSchulz, Sign, UpdateOptimizer
    >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4))
    >>> groups = [{"params": model[1].parameters()}, {"params": model[0].parameters(), "update": Sign(), "lr": 0.01}]
    >>> optimizer = UpdateOptimizer(groups, NewtonSchulz(), lr=0.02, weight_decay=0.1)
    >>> model(torch.arange(9)).square().sum().backward()
    >>> optimizer.step()
    >>> [(group["update"], group["lr"]) for group in optimizer.param_groups]
    [('newtonschulz()', 0.02), ('sign()', 0.01)]
    """

    def __init__(self, params: ParamsT, update: Update, lr: float | Tensor, *, weight_decay: float = 0.0) -> None:
        self._updates: list[Update] = []
        super().__init__(params, {"update": update, "lr": lr, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with the optimizer's own settings where it has none."""
        group = {**self.defaults, **param_group}
        update = _checked(group)
        # The group holds the text: it can be saved with weights only, and ranks that are attached compare it.
        super().add_param_group({**group, "update": str(update)})
        for parameter in self.param_groups[-1]["params"]:
            if not parameter.is_floating_point():
                self.param_groups.pop()
                raise ConfigError(f"an update moves real floating-point parameters, got one of {parameter.dtype}")
        self._updates.append(update)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of every group."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, update in zip(self.param_groups, self._updates, strict=True):
            x = {f"{place}": p for place, p in enumerate(group["params"]) if p.grad is not None}
            rate, decay = float(group["lr"]), group["weight_decay"]
            for parameter in x.values() if decay else ():
                parameter.mul_(1 - rate * decay)
            update(x, {place: p.grad for place, p in x.items()}, rate)
        return loss

    def update_of(self, group: int) -> Update:
        """The update of the parameter group at this place."""
        return self._updates[group]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load rates and decays; the updates must be those that were saved."""
        saved = [group.get("update") for group in state_dict["param_groups"]]
        mine = [str(update) for update in self._updates]
        if saved != mine:
            raise StateError(f"the state is of an optimizer with the updates {saved}, this one has {mine}: build it so")
        super().load_state_dict(dict(state_dict))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_updates": self._updates}


def _checked(group: Mapping[str, Any]) -> Update:
    """The group's update, if all of its settings can be used."""
    update, rate, decay = group["update"], group["lr"], group["weight_decay"]
    if not isinstance(update, Update):
        raise ConfigError(f"an optimizer of updates takes one such as NewtonSchulz(), got {update!r}")
    for name, value in (("lr", rate), ("weight_decay", decay)):
        single = isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
        number = float(value) if single else inf
        if not 0 <= number < inf:
            raise ConfigError(f"{name} must be a number of at least 0, got {value!r}")
    return update

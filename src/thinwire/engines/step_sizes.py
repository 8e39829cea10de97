"""The step size of every parameter, read from an optimizer's parameter groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from thinwire.errors import AttachError
from thinwire.updates import UpdateOptimizer

ADAPTIVE = frozenset({"eps", "betas", "etas"})
"""Options of those optimizers only that divide by a gradient's own size: Adam, RMSprop, Adagrad, Muon; Lion; Rprop."""


class StepSizes:
    """Parameter name -> learning rate of its group, as it stands now."""

    def __init__(self, parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
        names = {id(parameter): name for name, parameter in parameters.items()}
        self._optimizer = optimizer
        self._group_of: dict[str, int] = {}
        for place, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if id(parameter) in names:
                    self._group_of[names[id(parameter)]] = place
        missing = sorted(parameters.keys() - self._group_of.keys())
        if missing:
            raise AttachError(
                f"the optimizer does not hold {len(missing)} of the model's {len(parameters)} parameters, such as "
                f"{missing[0]!r}: their step sizes are unknown. Build the optimizer from the parameters of this very "
                "model, or set requires_grad=False on them before wrapping the model"
            )

    def now(self) -> dict[str, float]:
        """The present step sizes."""
        return self.at(self.rates())

    def at(self, rates: Sequence[float]) -> dict[str, float]:
        """The step sizes where these are the groups' learning rates."""
        return {name: rates[place] for name, place in self._group_of.items()}

    def peaks(self) -> list[float]:
        """The learning rate that each group's schedule began with, as far as a scheduler has noted it."""
        return [float(group.get("initial_lr", group["lr"])) for group in self._optimizer.param_groups]

    def rates(self) -> list[float]:
        """The present learning rate of each group."""
        return [float(group["lr"]) for group in self._optimizer.param_groups]

    def settings(self) -> dict[str, str]:
        """What every rank must have set alike, as texts: the optimizer, its numbers and who is in which group."""
        groups = [
            (f"{option} of the optimizer's parameter group {place}", str(float(value) if option == "lr" else value))
            for place, group in enumerate(self._optimizer.param_groups)
            for option, value in group.items()
            if option == "lr" or isinstance(value, Number | tuple | str | None)
        ]
        members = [(f"parameter group of {name!r}", str(place)) for name, place in self._group_of.items()]
        return {"optimizer": self.optimizer_name, **dict(groups), **dict(members)}

    def signs(self) -> dict[str, float]:
        """Parameter name -> -1 where its group ascends (`maximize=True`), else 1."""
        ascends = [bool(group.get("maximize", False)) for group in self._optimizer.param_groups]
        return {name: -1.0 if ascends[place] else 1.0 for name, place in self._group_of.items()}

    @property
    def optimizer_name(self) -> str:
        """The name of the optimizer's class."""
        return type(self._optimizer).__name__

    def is_adaptive(self, name: str) -> bool:
        """Whether the optimizer divides this parameter's gradients by their own size, as Adam and its like do."""
        return bool(ADAPTIVE & self._optimizer.param_groups[self._group_of[name]].keys())

    def of_one_length(self, name: str) -> str | None:
        """The update that moves this parameter as far whatever the size of its gradient, if it is such a one."""
        if not isinstance(self._optimizer, UpdateOptimizer):
            return None
        update = self._optimizer.update_of(self._group_of[name])
        return None if update.proportional else str(update)

    @property
    def has_momentum(self) -> bool:
        """Whether the optimizer keeps gradients from step to step."""
        return any(map(_keeps_gradients, self._optimizer.param_groups))

    def keeps_gradients(self, name: str) -> bool:
        """Whether the optimizer keeps gradients of this parameter from step to step."""
        return _keeps_gradients(self._optimizer.param_groups[self._group_of[name]])


def _keeps_gradients(group: Mapping[str, Any]) -> bool:
    """By momentum, or by moments as Adam and its like do."""
    return bool(ADAPTIVE & group.keys()) or bool(group.get("momentum", 0))

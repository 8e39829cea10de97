"""The step size of every parameter, read from an optimizer's parameter groups."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from thinwire.errors import AttachError


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
        sizes = [float(group["lr"]) for group in self._optimizer.param_groups]
        return {name: sizes[place] for name, place in self._group_of.items()}

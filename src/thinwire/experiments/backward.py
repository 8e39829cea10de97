"""What one worker computes at a step: loss and gradient of its batch, and second moments where a rule needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from thinwire.feedback import Need, Rule, rule_of
from thinwire.moments import watch
from thinwire.problems.task import Batch, Task

ByName = Mapping[str, Tensor]
"""Parameter name -> tensor of its shape."""


def needs_moments(rule: Rule | None, model: nn.Module) -> bool:
    """Whether the rule of any parameter needs second moments; no rule needs none."""
    if rule is None:
        return False
    parameters = model.named_parameters()
    return any(Need.MOMENTS in rule_of(rule, name, parameter.numel()).needs for name, parameter in parameters)


@dataclass(frozen=True)
class Computed:
    """One worker's share of a step."""

    loss: Tensor
    """Its loss, or the mean over workers where they compute together: the record has no more than that."""
    gradient: ByName
    moment: ByName | None


@final
class Backward:
    """Forward and backward pass of one model, operation by operation, as torch runs it."""

    def __init__(self, model: nn.Module, task: Task, rule: Rule | None) -> None:
        self._model, self._task = model, task
        self._parameters = dict(model.named_parameters())
        self._moments = watch(model, rule=rule) if needs_moments(rule, model) else None

    def __call__(self, batch: Batch) -> Computed:
        loss = self._task.loss(self._model, batch)
        gradients = torch.autograd.grad(loss, list(self._parameters.values()))
        gradient = dict(zip(self._parameters, gradients, strict=True))
        return Computed(loss.detach(), gradient, self._moments.take() if self._moments else None)

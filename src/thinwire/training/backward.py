"""What one worker computes at a step: loss and gradient of its batch, and second moments where a rule needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from thinwire.errors import AttachError
from thinwire.feedback import Need, Route, Rule, rule_of
from thinwire.feedback.route import DENSE
from thinwire.moments import Moments, plan, watch
from thinwire.training.tasks.task import Batch, Task

ByName = Mapping[str, Tensor]
"""Parameter name -> tensor of its shape."""


def needs_moments(rule: Rule | None, model: nn.Module) -> bool:
    """Whether the rule of any parameter needs second moments; no rule needs none."""
    if rule is None:
        return False
    return bool(_needing(rule, model))


def _needing(rule: Rule, model: nn.Module) -> list[str]:
    """The parameters whose rule needs second moments."""
    named = ((name, parameter.numel()) for name, parameter in model.named_parameters())
    return [name for name, numel in named if Need.MOMENTS in rule_of(rule, name, numel).needs]


def check_served(rule: Rule, model: nn.Module) -> None:
    """Refuse a rule that needs second moments which no exact layer gives, with the text of a method that works.

    Runs take one backward pass a step: micro-batches, which would serve any parameter, are for loops in Python.
    """
    needing = _needing(rule, model)
    unserved = {entry.name: entry.why for entry in plan(model).unserved if entry.name in needing}
    if unserved:
        reasons = "; ".join(f"{name} ({why})" for name, why in unserved.items())
        table = rule.table if isinstance(rule, Route) else {"*": rule}
        least = rule.min_numel if isinstance(rule, Route) else 0
        route = Route({**dict.fromkeys(unserved, DENSE), **table}, min_numel=least)
        raise AttachError(
            f"{rule} needs second moments that no exact layer gives: {reasons}. Let these parameters travel in full: "
            f'--method "{route}"'
        )


@dataclass(frozen=True)
class Computed:
    """One worker's share of a step."""

    loss: Tensor
    """Its loss, or the mean over workers where they compute together: the record has no more than that."""
    gradient: ByName
    moment: ByName | None
    terms: Mapping[str, int]
    """How many gradients were squared for each moment."""


@final
class Backward:
    """Forward and backward pass of one model, operation by operation, as torch runs it."""

    def __init__(self, model: nn.Module, task: Task, rule: Rule | None) -> None:
        self._model, self._task = model, task
        self._parameters = dict(model.named_parameters())
        self._moments: Moments | None = None
        if rule is not None and needs_moments(rule, model):
            check_served(rule, model)
            self._moments = watch(model, rule=rule)

    def __call__(self, batch: Batch) -> Computed:
        loss = self._task.loss(self._model, batch)
        gradients = torch.autograd.grad(loss, list(self._parameters.values()))
        gradient = dict(zip(self._parameters, gradients, strict=True))
        if self._moments is None:
            return Computed(loss.detach(), gradient, None, {})
        terms = {name: self._moments.terms(name) for name in self._moments.names}
        return Computed(loss.detach(), gradient, self._moments.take(), terms)

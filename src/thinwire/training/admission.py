"""Admission: which rules a model can be trained with by one backward pass a step, found before anything starts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from thinwire.channel import Channel
from thinwire.engines.needs import check_one_backward
from thinwire.errors import AttachError
from thinwire.feedback import Need, Route, Rule, rule_of
from thinwire.feedback.route import DENSE
from thinwire.moments import plan
from thinwire.training.config import TORCH_METHODS, RunConfig, rule_in
from thinwire.training.tasks import Task


def check_rules(configs: Sequence[RunConfig], task: Task) -> None:
    """Refuse a rule that cannot be trained on the task's model by one backward pass a step."""
    methods = {config.method: config for config in configs if config.method not in TORCH_METHODS}
    for config in methods.values():
        _check_rule(config, task)


def _check_rule(config: RunConfig, task: Task) -> None:
    rule, model = rule_in(config.method), task.model(config.seed)
    if rule is None:  # auto takes one that any model can be trained with
        return
    channel = Channel(rule, dict(model.named_parameters()), rank=0, size=config.workers, seed=config.seed)
    check_one_backward(channel)
    if needs_moments(rule, model):
        for name, each in channel.rules.items():
            if Need.MOMENTS in each.needs:
                each.admit_terms(name, config.batch)  # an exact layer squares the gradient of every sample


def needs_moments(rule: Rule | None, model: nn.Module) -> bool:
    """Whether the rule of any parameter needs second moments, which the model's layers then have to give exactly.

    A rule that needs others is refused, with the text of a method that works. Runs take one backward pass a step:
    micro-batches, which would serve any parameter, are for loops in Python.
    """
    needing = [] if rule is None else _needing(rule, model)
    if rule is None or not needing:
        return False
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
    return True


def _needing(rule: Rule, model: nn.Module) -> list[str]:
    """The parameters whose rule needs second moments."""
    named = ((name, parameter.numel()) for name, parameter in model.named_parameters())
    return [name for name, numel in named if Need.MOMENTS in rule_of(rule, name, numel).needs]

"""Admission: what an engine would refuse when a rule is attached, found before processes start or others train."""

from __future__ import annotations

from collections.abc import Sequence

import thinwire
from thinwire.channel import Channel
from thinwire.engines.needs import check_one_backward
from thinwire.feedback import Need
from thinwire.training.backward import check_served, needs_moments
from thinwire.training.config import RunConfig
from thinwire.training.peers import PEERS
from thinwire.training.tasks.task import Task


def check_rules(configs: Sequence[RunConfig], task: Task) -> None:
    """Refuse a rule that cannot be trained on the task's model by one backward pass a step."""
    methods = {config.method: config for config in configs if config.method not in PEERS}
    for config in methods.values():
        _check_rule(config, task)


def _check_rule(config: RunConfig, task: Task) -> None:
    rule, model = thinwire.parse(config.method), task.model(config.seed)
    channel = Channel(rule, dict(model.named_parameters()), rank=0, size=config.workers, seed=config.seed)
    check_one_backward(channel)
    if needs_moments(rule, model):
        check_served(rule, model)
        for name, each in channel.rules.items():
            if Need.MOMENTS in each.needs:
                each.admit_terms(name, config.batch)  # an exact layer squares the gradient of every sample

"""What workers have not sent yet, handed over at last: exchanged dense, in units of updates."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.engines.step_sizes import StepSizes
from thinwire.errors import ConfigError
from thinwire.feedback.route import DENSE


def owed(channel: Channel, step_sizes: StepSizes | None) -> dict[str, Tensor]:
    """This worker's unsent updates, flat, by parameter: the step size times what its rule still owes the model.

    The step size is that of the last exchange (not zero), in whose units Mem-SGD keeps its memory: the present one may
    be zero, where a schedule has come to its end. Where the optimizer ascends, so does the update.
    """
    named = [name for name, rule in channel.rules.items() if rule.owes and name in channel.started]
    signs = {} if step_sizes is None else step_sizes.signs()
    if unknown := [name for name in named if name not in channel.step_sizes]:
        raise ConfigError(
            f"flush applies what {channel.rule} has not sent of {unknown[0]!r} as an update, and needs its step size: "
            "pass the optimizer to attach or to the simulation. (detach(flush=False) leaves it in the state)"
        )
    return {name: _owed(channel, name) * (channel.step_sizes[name] * signs.get(name, 1.0)) for name in named}


def _owed(channel: Channel, name: str) -> Tensor:
    """What this rank has not passed on of a parameter: its memory, and n times a server's for its own numbers, for the
    server's is of the mean of n."""
    memory = channel.worker.view(name, channel.rules[name].owes[0])
    hub = channel.hub
    own, slot = (None, None) if hub is None else (hub.share(name, channel.parameters[name]), hub.hops[name].owes)
    if hub is None or own is None or slot is None:
        return memory
    memory = memory.clone()
    memory[own].add_(hub.store.view(name, slot), alpha=channel.size)
    return memory


def dense_channel(channel: Channel, updates: Mapping[str, Tensor]) -> Channel:
    """A channel that exchanges these updates whole, at the moment where another one stands."""
    dense = Channel(DENSE, updates, rank=channel.rank, size=channel.size, seed=channel.seed)
    dense.step = channel.step
    return dense


@torch.no_grad()
def apply_(parameters: Mapping[str, Tensor], updates: Mapping[str, Tensor]) -> float:
    """x <- x - update, in place; the norm of all updates together."""
    for name, update in updates.items():
        parameters[name].sub_(update.view(parameters[name].shape).to(parameters[name].dtype))
    return math.sqrt(sum(float(update.double().square().sum()) for update in updates.values()))


@torch.no_grad()
def forget_(channel: Channel, updates: Mapping[str, Tensor]) -> None:
    """Empty the memories that were handed over."""
    for name in updates:
        for slot in channel.rules[name].owes:
            channel.worker.write(name, slot, torch.zeros(()))
        if channel.hub is not None:
            channel.hub.forget_(name)

"""What becomes of a channel's state when workers leave a run and others join it, without going back to a checkpoint.

own state (m_i, h_i, v_i)   stays with its worker and is never copied
common state (h, the step)  is copied to a newcomer from any worker of the run
join                        memories begin empty; h_i := h, so that the mean over all stays h
leave                       h <- the mean of the h_i that remain: one dense exchange. Without it the leaver's share
                            would stay in h for ever, as a bias that no step removes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.feedback import Need


@dataclass(frozen=True)
class Roster:
    """Who takes part, in rank order: each worker has a random number by which it is known for as long as it lives.

    >>> Roster((7, 5, 9)).came_from(Roster((5, 8, 7)))
    (2, 0, None)
    """

    members: tuple[int, ...] = ()

    def came_from(self, old: Roster) -> tuple[int | None, ...]:
        """For each rank its rank in an older roster; None for those that were not in it."""
        places = {member: rank for rank, member in enumerate(old.members)}
        return tuple(places.get(member) for member in self.members)

    def left(self, old: Roster) -> tuple[int, ...]:
        """Who was in an older roster, and is no longer."""
        return tuple(member for member in old.members if member not in self.members)


def shares(channel: Channel) -> dict[tuple[str, str], Tensor]:
    """What this worker has of each common slot that is a mean over all workers, by parameter and common slot."""
    return {
        (name, slot.summed_in): channel.worker.view(name, slot.name)
        for name in channel.parameters
        for slot in channel.worker.slots_of(name)
        if slot.summed_in is not None and name in channel.started
    }


@torch.no_grad()
def settle_(channel: Channel, means: Mapping[tuple[str, str], Tensor]) -> None:
    """h <- the mean of the h_i: set the common slots of `shares`."""
    for (name, slot), mean in means.items():
        channel.server.write(name, slot, mean)


@torch.no_grad()
def enter_(channel: Channel) -> None:
    """Begin as a newcomer: h_i := h, once the common state is there; what a rule says nothing of is left as it is."""
    for name in channel.parameters:
        for slot in channel.worker.slots_of(name):
            source = slot.joins or slot.summed_in
            if source is not None:
                common = channel.server.view(name, source)
                own = channel.worker.view(name, slot.name)
                channel.worker.write(name, slot.name, common if common.dim() == own.dim() else common.mean(0))


@torch.no_grad()
def rescale_(channel: Channel, step_sizes: Mapping[str, float]) -> None:
    """Carry memories that are kept in units of updates to the step sizes of the run: e <- (s_own / s_run) e."""
    for name, rule in channel.rules.items():
        before, now = channel.step_sizes.get(name), step_sizes.get(name)
        in_updates = Need.STEP_SIZE in rule.needs and rule.owes
        if in_updates and before is not None and now is not None and before != now:
            memory = channel.worker.view(name, rule.owes[0])
            channel.worker.write(name, rule.owes[0], memory * (before / now))


def mean_of(vectors: Sequence[Tensor]) -> Tensor:
    """The mean of some workers' vectors, added in rank order."""
    total = vectors[0].clone()
    for vector in vectors[1:]:
        total.add_(vector)
    return total.div_(len(vectors))

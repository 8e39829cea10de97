"""What the ranks tell each other about a checkpoint: a row of whole numbers each, as tensors, never pickled."""

from __future__ import annotations

import os
from typing import Any

from thinwire.errors import ConfigError
from thinwire.exchange import Group


class Alone:
    """A process by itself, as in a simulation: the only rank of one."""

    rank, size = 0, 1

    def tell(self, *numbers: int) -> list[list[int]]:
        """Its own row."""
        return [list(numbers)]


class Together:
    """The ranks of a process group."""

    def __init__(self, group: Group) -> None:
        if group.rank < 0:
            raise ConfigError("this process is not a member of the group: only members save and load")
        self.rank, self.size, self._group = group.rank, group.size, group
        group.begin("saving or loading")

    def tell(self, *numbers: int) -> list[list[int]]:
        """Every rank's row, in rank order; waits for all."""
        return self._group.everyone(numbers, "a checkpoint")


Ranks = Alone | Together


def joined(group: Any = None) -> Ranks:
    """The ranks of a process group, the default one if there is any."""
    try:
        return Together(Group(group))
    except ValueError:  # torch: "Default process group has not been initialized"
        if group is not None:
            raise
        return Alone()


def check_alone(ranks: Ranks) -> None:
    """A launcher's rank that has not joined its group would write as if it were the only one, and so would the rest."""
    launched = os.environ.get("WORLD_SIZE", "1")
    if isinstance(ranks, Alone) and launched.isdigit() and int(launched) > 1:
        raise ConfigError(
            f"WORLD_SIZE is {launched}, but this process has joined no process group: call "
            "torch.distributed.init_process_group before saving (or unset WORLD_SIZE if there is only this process)"
        )

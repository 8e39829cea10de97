"""What all ranks must have in common at a step, beyond the method itself: looked at when the step begins."""

from __future__ import annotations

import json
import struct
import weakref
import zlib
from collections.abc import Sequence

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire.channel import Channel
from thinwire.checkpoint import digest
from thinwire.engines.step_sizes import StepSizes
from thinwire.exchange import Group

EVERY = 100
"""Steps between two looks at the state that all ranks hold alike: a checksum of 100 M numbers takes 0.1 to 0.3 s."""


class Common:
    """Step sizes, common state, and how `ddp.join` divides. Each message carries a digest of it, the mark."""

    def __init__(self, ddp: DistributedDataParallel, channel: Channel, step_sizes: StepSizes | None) -> None:
        self._ddp, self._channel, self._step_sizes = weakref.ref(ddp), channel, step_sizes
        self.step_sizes: dict[str, float] | None = None
        self.rates: list[float] = []
        self.divides_by_active = False
        self.mark = 0

    def look(self, group: Group) -> None:
        """See how things stand at the beginning of a step."""
        ddp = self._ddp()
        joining = ddp is not None and _is_joining(ddp)
        self.divides_by_active = joining and not getattr(ddp, "_divide_by_initial_world_size", True)
        if self._step_sizes is not None:
            rates = self._step_sizes.rates()
            self.rates = _of_active(group, rates) if joining else rates
            self.step_sizes = self._step_sizes.at(self.rates)
        self.mark = zlib.crc32(json.dumps(self.describe()).encode())

    def describe(self) -> dict[str, str]:
        """All of it as texts, by which an error can name what differs."""
        channel = self._channel
        texts = {"rule": str(channel.rule), "seed": str(channel.seed), "step": str(channel.step)}
        for place, rate in enumerate(self.rates):
            texts[f"the learning rate of the optimizer's parameter group {place}"] = repr(rate)
        texts["join(divide_by_initial_world_size)"] = str(not self.divides_by_active)
        return texts | (self._slots() if channel.step % EVERY == 0 and channel.step else {})

    def _slots(self) -> dict[str, str]:
        server = self._channel.server
        turn = self._channel.clock.now.turn
        return {
            f"slot {slot.name!r} of parameter {name!r}": f"checksum {digest(server.settled(name, slot.name, turn)):08x}"
            for name in self._channel.parameters
            for slot in server.slots_of(name)
        }


def _is_joining(ddp: DistributedDataParallel) -> bool:
    """Whether a `ddp.join()` is in force under which ranks may run out of data. torch never unsets it, but after it all
    ranks have data. By whom gradients are divided is left to us: with a comm hook the reducer does not divide at all.
    """
    config = ddp._join_config
    return bool(config.enable and config.is_first_joinable and not config.throw_on_early_termination)


def _of_active(group: Group, rates: Sequence[float]) -> list[float]:
    """This rank's learning rates if it has data, else those of the first rank that does: nobody steps the schedule of
    a rank that has left its loop."""
    active = torch._C._current_graph_task_id() != -1
    bits = struct.unpack(f"<{len(rates)}q", struct.pack(f"<{len(rates)}d", *rates))
    rows = group.everyone([int(active), *bits], "the learning rates under join")
    others = (row for row in rows if row[0])
    chosen = rows[group.rank] if active else next(others, rows[group.rank])
    return list(struct.unpack(f"<{len(rates)}d", struct.pack(f"<{len(rates)}q", *chosen[1:])))

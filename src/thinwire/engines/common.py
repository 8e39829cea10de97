"""What all ranks must have in common at a step, beyond the method itself: looked at when the step begins."""

from __future__ import annotations

import json
import weakref
import zlib

from torch.nn.parallel import DistributedDataParallel

from thinwire.channel import Channel
from thinwire.checkpoint import digest
from thinwire.engines.step_sizes import StepSizes

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

    def look(self) -> None:
        """See how things stand at the beginning of a step."""
        if self._step_sizes is not None:
            self.step_sizes, self.rates = self._step_sizes.now(), self._step_sizes.rates()
        ddp = self._ddp()
        self.divides_by_active = ddp is not None and _divides_by_active(ddp)
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


def _divides_by_active(ddp: DistributedDataParallel) -> bool:
    """Whether `ddp.join(divide_by_initial_world_size=False)` is in force. torch never unsets it, but outside a join all
    ranks have data. With a comm hook torch itself ignores it: the reducer divides only where there is none."""
    config = ddp._join_config
    uneven = config.enable and config.is_first_joinable and not config.throw_on_early_termination
    return uneven and not getattr(ddp, "_divide_by_initial_world_size", True)

"""A step as all ranks see it: what they must have in common when it begins, and what they decide at its end."""

from __future__ import annotations

import json
import struct
import weakref
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire.channel import Channel
from thinwire.checkpoint import digest
from thinwire.engines.ddp.agreement import first_clash, told
from thinwire.engines.step_sizes import StepSizes
from thinwire.errors import ThinwireError, WireError
from thinwire.exchange import Exchange
from thinwire.step import Fault

EVERY = 100
"""Steps between two looks at the state that all ranks hold alike: a checksum of 100 M numbers takes 0.1 to 0.3 s."""
FINE, REFUSED, BROKEN = 0, 1, 2
"""What a rank says: it can take the step; something was not finite; something went wrong."""


class HeldInCommon(Protocol):
    """What ranks have in common, as a verdict asks for it."""

    @property
    def divides_by_active(self) -> bool:
        """Whether the mean is over the ranks that had data."""

    def describe(self) -> dict[str, str]:
        """All of it as texts, by which an error can name what differs."""


class Common:
    """Step sizes, common state, and how `ddp.join` divides. Each message carries a digest of it, the mark."""

    def __init__(
        self,
        ddp: weakref.ref[DistributedDataParallel] | None,
        channel: Channel,
        step_sizes: StepSizes | None,
        shard: str = "",
    ) -> None:
        self._ddp, self._channel, self._step_sizes, self._shard = ddp, channel, step_sizes, shard
        self.step_sizes: dict[str, float] | None = None
        self.rates: list[float] = []
        self.divides_by_active = False
        self.mark = 0
        self._method = zlib.crc32(str(channel.rule).encode())

    def look(self, exchange: Exchange) -> None:
        """See how things stand at the beginning of a step."""
        ddp = None if self._ddp is None else self._ddp()
        joining = ddp is not None and _is_joining(ddp)
        self.divides_by_active = joining and not getattr(ddp, "_divide_by_initial_world_size", True)
        if self._step_sizes is not None:
            rates = self._step_sizes.rates()
            self.rates = _of_active(exchange, rates) if joining else rates
            self.step_sizes = self._step_sizes.at(self.rates)
        self.mark = self._digest()

    def _digest(self) -> int:
        """Of what `describe` tells, without its words, which take 100 microseconds."""
        numbers = (self._channel.seed % (1 << 64), self._channel.step, *self.rates, self.divides_by_active)
        known = zlib.crc32(struct.pack(f"<Qq{len(self.rates)}d?", *numbers), self._method)
        return zlib.crc32(json.dumps(self._slots()).encode(), known) if self._is_due else known

    @property
    def _is_due(self) -> bool:
        """Whether the state that all ranks hold alike is looked at in this step."""
        return self._channel.step % EVERY == 0 and self._channel.step > 0

    def describe(self) -> dict[str, str]:
        """All of it as texts, by which an error can name what differs."""
        channel = self._channel
        texts = {"rule": str(channel.rule), "seed": str(channel.seed), "step": str(channel.step)}
        for place, rate in enumerate(self.rates):
            texts[f"the learning rate of the optimizer's parameter group {place}"] = repr(rate)
        texts["join(divide_by_initial_world_size)"] = str(not self.divides_by_active)
        return texts | (self._slots() if self._is_due else {})

    def _slots(self) -> dict[str, str]:
        server = self._channel.server
        turn = self._channel.clock.now.turn
        where = f" in {self._shard}" if self._shard else ""
        return {
            f"slot {slot.name!r} of parameter {name!r}{where}": (
                f"checksum {digest(server.settled(name, slot.name, turn)):08x}"
            )
            for name in self._channel.parameters
            for slot in server.slots_of(name)
        }


def _is_joining(ddp: DistributedDataParallel) -> bool:
    """Whether a `ddp.join()` is in force under which ranks may run out of data. torch never unsets it, but after it all
    ranks have data. By whom gradients are divided is left to us: with a comm hook the reducer does not divide at all.
    """
    config = ddp._join_config
    return bool(config.enable and config.is_first_joinable and not config.throw_on_early_termination)


def _of_active(exchange: Exchange, rates: Sequence[float]) -> list[float]:
    """This rank's learning rates if it has data, else those of the first rank that does: nobody steps the schedule of
    a rank that has left its loop."""
    active = torch._C._current_graph_task_id() != -1
    bits = struct.unpack(f"<{len(rates)}q", struct.pack(f"<{len(rates)}d", *rates))
    rows = exchange.everyone([int(active), *bits], "the learning rates under join")
    others = (row for row in rows if row[0])
    chosen = rows[exchange.rank] if active else next(others, rows[exchange.rank])
    return list(struct.unpack(f"<{len(rates)}d", struct.pack(f"<{len(rates)}q", *chosen[1:])))


@dataclass(frozen=True)
class Verdict:
    """The answer, the same on every rank but for the words of the error."""

    error: ThinwireError | None
    """What went wrong, on this rank or on another."""
    fault: Fault | None
    """What was not finite."""
    factor: float
    """What the mean over all ranks is multiplied by: n / a, where it is to be the mean over a ranks that had data."""

    @property
    def taken(self) -> bool:
        """Whether all ranks take the step."""
        return self.error is None and self.fault is None

    @staticmethod
    def agreed(
        exchange: Exchange, problem: ThinwireError | None, fault: Fault | None, active: bool, common: HeldInCommon
    ) -> Verdict:
        """Tell the others how it went here, and hear how it went there. One small exchange; where ranks answer
        differently, or something went wrong, texts follow, so that every rank can say what it was."""
        mine = BROKEN if problem is not None else REFUSED if fault is not None else FINE
        answers = exchange.everyone([mine, int(active)], "agreeing on the step")
        said = {answer for answer, _ in answers}
        counted = sum(here for _, here in answers) if common.divides_by_active else exchange.size
        factor = exchange.size / counted if counted else 1.0
        if BROKEN in said or len(said) > 1:
            return _explained(exchange, problem, fault, factor, common)
        return Verdict(None, fault, factor)


def _explained(
    exchange: Exchange, problem: ThinwireError | None, fault: Fault | None, factor: float, common: HeldInCommon
) -> Verdict:
    """What this rank says of a step that not all could take."""
    text = None if problem is None else str(problem)
    found = None if fault is None else [fault.rank, fault.parameter, fault.overflows]
    try:
        answers = told(exchange, [text, found, common.describe()], "telling what went wrong")
    except WireError as error:  # the words were damaged too: no rank takes the step, and this one says what it knows
        return Verdict(problem or error, None, factor)
    difference = first_clash([description for _, _, description in answers])
    if difference is not None:
        words = (
            f"ranks have drifted apart in {difference}; no rank has taken the step. Give every rank the same settings"
        )
        return Verdict(WireError(f"{words}, and load the same checkpoint on all"), None, factor)
    if problem is not None:
        return Verdict(problem, None, factor)
    faults = [Fault(*theirs) for _, theirs, _ in answers if theirs is not None]
    if faults:
        return Verdict(None, fault or faults[0], factor)
    rank, said = next((rank, said) for rank, (said, _, _) in enumerate(answers) if said is not None)
    return Verdict(WireError(f"rank {rank} could not take the step, so no rank has: {said}"), None, factor)

"""What rules with a memory of the unsent share: how much of it they keep from step to step, and in how many bits."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.checks import is_number
from thinwire.errors import ConfigError
from thinwire.feedback.base import Slot
from thinwire.layout import Layout
from thinwire.ops.live import LiveRatios


def check_decay(name: str, decay: float) -> None:
    """Check the share of a memory that is kept from one step to the next."""
    if not (is_number(decay) and 0 < decay <= 1):
        raise ConfigError(
            f"{name} decay must lie in (0, 1], got {decay!r}: 1 forgets nothing, 0.95 a twentieth in every step; use "
            "plain to forget all"
        )


MEMORIES = {"full": 32, "int8": 8}
"""How a memory may be kept, in bits a number: as float32 (float64 of float64), or as bytes with a scale a block."""


def check_memory(name: str, memory: str) -> None:
    """Check how a memory is kept."""
    if memory not in MEMORIES:
        raise ConfigError(f"{name} memory must be one of {', '.join(MEMORIES)}, got {memory!r}")


def memory_slots(memory: str, *names: str) -> tuple[Slot, ...]:
    """The slots of a memory, each as it is to be kept."""
    return tuple(Slot(name, bits=MEMORIES[memory]) for name in names)


def decayed(ratios: Sequence[float] | None, decay: float, layout: Layout) -> Sequence[float] | None:
    """What a memory is multiplied by, for each piece: the change of the step size, times `decay`."""
    if decay == 1.0:
        return ratios
    if isinstance(ratios, LiveRatios):
        return ratios.times(decay)
    return (decay,) * len(layout.pieces) if ratios is None else tuple(decay * ratio for ratio in ratios)

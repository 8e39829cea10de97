"""What a run of the lock-free engine reports."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment; its loss is that of the estimate, and was found with the clock stopped."""

    step: int
    seconds: float
    """Spent in steps, from the engine's first on."""
    written: int
    """Coordinates of x written so far (of sparsifiers, only numbers other than zero)."""
    loss: float


@dataclass
class Run:
    """What a call of `run` did."""

    snapshots: list[Snapshot] = field(default_factory=list)
    stopped: str = "steps"
    """Why it ended: steps (all were done), target (the loss was reached), watch, or interrupted (Ctrl-C)."""

    @property
    def losses(self) -> list[float]:
        return [snapshot.loss for snapshot in self.snapshots]

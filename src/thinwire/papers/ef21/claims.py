"""The paper's claim in numbers, that EF stops at a floor and EF21 goes on; and how its steps and bits are counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thinwire import MemSGD
from thinwire.papers.ef21.runs import EF21Run

UNITS = (
    "Steps are multiples of what the paper's scripts call 1×, and those differ: of theorem 1's step for EF21, EF and "
    "EF21's successors, of theorem 2's with μ = 0.1, which is about √2 smaller, for EF21+, of 1/L for gradient "
    "descent, and of theorem 2's for all that compress in least squares; above 1× no theorem covers a run."
)
COUNTS = (
    "Rounds to each tolerance, and below them a worker's bits: as the paper counts (32 for each number, nothing "
    "for positions and the start), and with ⌈log₂ d⌉ bits for each position, EF21+'s flag and the whole start. "
    "Where both ways are compared, what the server answers counts too."
)


def claims(runs: Sequence[EF21Run]) -> list[str]:
    """Sentences about the runs of a figure; those of the tuned methods alone are a claim of the paper's."""
    return list(_tuned(runs)) if runs[0].setting.figure == "tuned" else []


def _tuned(runs: Sequence[EF21Run]) -> Iterator[str]:
    """Where EF stopped though others came to the last tolerance: error feedback has a floor at a constant step."""
    done = [f"{one.setting.label} after {one.rounds:,}" for one in runs if one.status == "reached"]
    if not done:
        return
    yield f"Rounds to {runs[0].reached[-1].tolerance:.0e}: {'; '.join(done)}."
    for one in runs:
        if isinstance(one.rule, MemSGD) and one.status == "stopped":
            yield f"{one.setting.label} does not come below {one.best:.1e} in {one.rounds:,} rounds."

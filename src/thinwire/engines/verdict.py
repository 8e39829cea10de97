"""What all ranks decide at the end of a step: that everyone takes it, or no one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from thinwire.engines.agreement import first_difference
from thinwire.errors import ThinwireError, WireError
from thinwire.exchange import Group
from thinwire.step import Fault

FINE, REFUSED, BROKEN = 0, 1, 2
"""What a rank says: it can take the step; something was not finite; something went wrong."""


class Described(Protocol):
    """What can tell in what ranks may have drifted apart."""

    def describe(self) -> dict[str, str]: ...

    @property
    def divides_by_active(self) -> bool: ...


@dataclass(frozen=True)
class Verdict:
    """The answer, the same on every rank but for the words of the error."""

    error: ThinwireError | None
    """What went wrong, on this rank or on another."""
    fault: Fault | None
    """What was not finite."""
    factor: float
    """What the mean over all ranks is multiplied by: n / a, where it is to be the mean over a ranks that had data."""

    @staticmethod
    def agreed(
        group: Group, problem: ThinwireError | None, fault: Fault | None, active: bool, common: Described
    ) -> Verdict:
        """Tell the others how it went here, and hear how it went there. One small exchange; where ranks answer
        differently, or something went wrong, texts follow, so that every rank can say what it was."""
        mine = BROKEN if problem is not None else REFUSED if fault is not None else FINE
        answers = group.everyone([mine, int(active)], "agreeing on the step")
        said = {answer for answer, _ in answers}
        counted = sum(here for _, here in answers) if common.divides_by_active else group.size
        factor = group.size / counted if counted else 1.0
        if BROKEN in said or len(said) > 1:
            return _explained(group, problem, fault, factor, common)
        return Verdict(None, fault, factor)


def _explained(
    group: Group, problem: ThinwireError | None, fault: Fault | None, factor: float, common: Described
) -> Verdict:
    """What this rank says of a step that not all could take."""
    text = None if problem is None else str(problem)
    found = None if fault is None else [fault.rank, fault.parameter, fault.overflows]
    answers = group.agree([text, found, common.describe()], "telling what went wrong")
    difference = first_difference([description for _, _, description in answers])
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
